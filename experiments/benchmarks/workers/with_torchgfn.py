"""Hypergrids trained by torchgfn (Lahlou et al. 2023, arXiv:2305.14594), in an environment where it is installed.

Its package has the name that ours has, hence the imports by text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
from turns import Arrays, play


class Torchgfn:
    """Trajectory balance as its tutorials write it, on policy, log-probabilities computed again for the loss.

    With the variant ``cached`` those of sampling are used instead.
    """

    def __init__(self, task: Mapping[str, Any], given: Arrays | None):
        torch.set_num_threads(1)
        torch.manual_seed(task["seed"])
        grids, estimators = import_module("gfn.gym"), import_module("gfn.estimators")
        modules, preprocessors = import_module("gfn.utils.modules"), import_module("gfn.preprocessors")
        side, ndim = task["side"], task["ndim"]
        self.env: Any = grids.HyperGrid(
            ndim=ndim, height=side, reward_fn_kwargs={"R0": task["r0"], "R1": 0.5, "R2": 2.0}, validate_modes=False
        )
        encode = preprocessors.KHotPreprocessor(height=side, ndim=ndim)
        n = self.env.n_actions
        self.forward: Any = modules.MLP(encode.output_dim, n, hidden_dim=256, n_hidden_layers=2)
        self.learned = task["backward"] == "learned"
        self.backward: Any = (
            modules.MLP(encode.output_dim, n - 1, trunk=self.forward.trunk)
            if self.learned
            else modules.UniformModule(n - 1)
        )
        pf = estimators.DiscretePolicyEstimator(self.forward, n, preprocessor=encode)
        pb = estimators.DiscretePolicyEstimator(self.backward, n, preprocessor=encode, is_backward=True)
        self.flow: Any = import_module("gfn.gflownet").TBGFlowNet(pf=pf, pb=pb, init_logZ=0.0)
        self.sampler: Any = import_module("gfn.samplers").Sampler(estimator=pf)
        if given is not None:
            self._load(given)
        network = {id(p): p for p in (*self.forward.parameters(), *self.backward.parameters())}
        groups = [
            {"params": list(network.values()), "lr": task["lr"]},
            {"params": [self.flow.logZ], "lr": task["log_z_lr"]},
        ]
        self.optimizer = torch.optim.Adam(groups)
        self.batch, self.cached, self.steps = task["batch"], task["variant"] == "cached", 0
        self.versions = {"torchgfn": version("torchgfn"), "torch": version("torch")}

    def train(self, stop: Callable[[], bool]) -> None:
        while True:
            batch = self.sampler.sample_trajectories(self.env, n=self.batch, save_logprobs=self.cached)
            self.optimizer.zero_grad()
            loss = self.flow.loss(self.env, batch, recalculate_all_logprobs=not self.cached)
            loss.backward()
            self.optimizer.step()
            self.steps += int(batch.terminating_idx.sum())
            if stop():
                return

    def _layers(self) -> dict[str, torch.nn.Linear]:
        layers = {"trunk.0": self.forward.trunk[0], "trunk.1": self.forward.trunk[2]}
        layers["forward"] = self.forward.last_layer
        return {**layers, "backward": self.backward.last_layer} if self.learned else layers

    @torch.no_grad()
    def _load(self, given: Arrays) -> None:
        for name, layer in self._layers().items():
            rows = len(layer.weight)  # without that of stopping
            layer.weight.copy_(torch.from_numpy(given[f"{name}.weight"])[:rows])
            layer.bias.copy_(torch.from_numpy(given[f"{name}.bias"])[:rows])
        self.flow.logZ.fill_(float(given["log_z"]))

    def weights(self) -> Arrays:
        found = {"log_z": self.flow.logZ.detach().numpy()}
        for name, layer in self._layers().items():
            more = (0, 0, 0, 1) if name == "backward" else (0, 0, 0, 0)
            found[f"{name}.weight"] = torch.nn.functional.pad(layer.weight.detach(), more).numpy()
            found[f"{name}.bias"] = torch.nn.functional.pad(layer.bias.detach(), more[2:]).numpy()
        return found


if __name__ == "__main__":
    play(Torchgfn)
