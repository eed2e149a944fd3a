"""Evaluation with a generator of its own, so that looking at a run never changes it."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gfn import exact, metrics
from gfn.environment import Environment, as_enumerable, as_multimodal
from gfn.objectives import Learner
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Discovery:
    """Which modes training trajectories have ended in so far, under each of the environment's definitions."""

    def __init__(self, env: Environment[Any]):
        self.env = as_multimodal(env)
        names = self.env.mode_counts if self.env is not None else {}
        self.found: dict[str, Tensor] = {name: torch.zeros(0, dtype=torch.long) for name in names}

    def observe(self, final: Any) -> None:
        """Take note of the terminal states of a batch."""
        if self.env is None:
            return
        labels = self.env.modes(final)
        for name, seen in self.found.items():
            label = labels[name].cpu()
            self.found[name] = torch.cat([seen, label[label >= 0]]).unique()

    def counts(self) -> dict[str, int]:
        """Number of modes found, by definition."""
        return {name: len(seen) for name, seen in self.found.items()}

    def state_dict(self) -> dict[str, Tensor]:
        return dict(self.found)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what was found; a definition that ``state`` does not know starts with nothing."""
        self.found = {name: state.get(name, torch.zeros(0, dtype=torch.long)) for name in self.found}


class Evaluator(Generic[S]):
    """Measures a policy against the exact target where the environment can be listed, and by samples always.

    Args:
        env: the environment.
        objective: the policies and the log Z to look at.
        every: updates between evaluations.
        n_samples: trajectories for the sampled metrics.
        exact: enumerate if the environment can be; turn off for graphs too large to list.
        seed: of the evaluator's own generator.

    Raises:
        ValueError: if ``every`` or ``n_samples`` is not positive.
    """

    def __init__(
        self,
        env: Environment[S],
        objective: Learner[S],
        every: int = 100,
        n_samples: int = 256,
        exact: bool = True,
        seed: int = 0,
    ):
        if every < 1 or n_samples < 2:
            raise ValueError(f"Evaluator: needs every >= 1 and n_samples >= 2, got {every=} {n_samples=}")
        self.env, self.objective, self.every, self.n_samples = env, objective, every, n_samples
        self.seed = seed
        self.graph = _graph(env) if exact else None
        self.discovery = Discovery(env)

    def __call__(self, step: int) -> dict[str, float]:
        """All metrics of the current policy; the same for the same parameters and step, whatever came before."""
        generator = torch.Generator(self.env.device).manual_seed(self.seed * 1_000_003 + step)
        modes = {module: module.training for module in self.objective.modules()}  # parts may differ: a frozen prior
        self.objective.eval()
        try:
            with torch.no_grad():
                sampled = self._sampled(step, generator)
                listed = {} if self.graph is None else self._exact(self.graph, sampled["log_z"], generator)
        finally:
            for module, training in modes.items():
                module.training = training
        return {**sampled, **listed}

    def _sampled(self, step: int, generator: torch.Generator) -> dict[str, float]:
        start = self.env.reset(1, generator)[torch.zeros(self.n_samples, dtype=torch.long)]
        t = rollout(self.env, self.objective.policy, start, generator=generator)
        scores = self.objective.scores(t)
        log_weight = -scores.excess
        return {
            "elbo": metrics.evidence_bound(log_weight),
            "log_z_importance": metrics.log_z_estimate(log_weight),
            "importance_ess": metrics.effective_sample_size(log_weight),
            "log_reward_mean": float(t.log_reward.mean()),
            "length_mean": float(t.lengths.double().mean()),
            "log_z": float(self.objective.log_z(scores, step).mean()),
        }

    def _exact(self, graph: exact.StateGraph[S], log_z: float, generator: torch.Generator) -> dict[str, float]:
        log_p, log_target = exact.log_terminal(graph, self.objective.policy), graph.log_target
        result = {
            "tv": metrics.total_variation(log_p, log_target),
            "l1_sum": metrics.l1_sum(log_p, log_target),
            "jsd_nats": metrics.jsd(log_p, log_target),
            "kl_target_model": metrics.kl(log_target, log_p),
            "kl_model_target": metrics.kl(log_p, log_target),
            "correlation": metrics.pearson(log_p, graph.log_reward),
            "log_z_exact": float(graph.log_z),
            "log_z_error": log_z - float(graph.log_z),
            **self._eubo(graph, generator),
        }
        modal = as_multimodal(self.env)
        if modal is not None:
            labels = modal.modes(graph.states[graph.terminal])
            kept = {name: metrics.modes_kept(labels[name], log_p, log_target) for name in modal.mode_counts}
            result |= {f"{name}_kept": float(count) for name, count in kept.items()}
        return result

    def _eubo(self, graph: exact.StateGraph[S], generator: torch.Generator) -> dict[str, float]:
        """Upper bound on log Z by backward trajectories from exact samples of the target."""
        backward = self.objective.backward_policy
        draw = torch.multinomial(graph.log_target.exp(), self.n_samples, replacement=True, generator=generator)
        final = graph.states[graph.terminal[draw]]
        t: Trajectories[S] = rollout(self.env, backward, final, backward=True, generator=generator)
        return {"eubo": metrics.evidence_bound(-self.objective.scores(t).excess)}

    def state_dict(self) -> dict[str, Any]:
        return {"discovery": self.discovery.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over discoveries; a state without any is that of a run without an evaluator."""
        self.discovery.load_state_dict(state.get("discovery", {}))


def _graph(env: Environment[S]) -> exact.StateGraph[S] | None:
    return exact.state_graph(env) if as_enumerable(env) is not None else None
