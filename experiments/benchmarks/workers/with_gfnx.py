"""Hypergrids trained by gfnx (Tiapkin et al. 2025) with JAX, in an environment where both are installed.

The loss is built as that of its own baseline: the network is mapped over trajectories and over the steps of each,
and every row up to the horizon is evaluated. With the variant ``flat`` the rows of all trajectories are put into one
axis before, a change that a user could make.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

import numpy as np
from turns import Arrays, play

jax, jnp, optax, eqx, gfnx = map(import_module, ("jax", "jax.numpy", "optax", "equinox", "gfnx"))
PACKAGES = ("gfnx", "jax", "jaxlib", "equinox", "optax")


def steps_first(tree: Any) -> Any:
    """``[B, T, …]`` to ``[T, B, …]`` and back."""
    return jax.tree.map(partial(jnp.swapaxes, axis1=0, axis2=1), tree)


def after_first(x: Any) -> Any:
    """``[B, T, …]`` without the first step."""
    return x[:, 1:]


def before_last(x: Any) -> Any:
    """``[B, T, …]`` without the last step."""
    return x[:, :-1]


def label(name: str, _: Any) -> str:
    """Which learning rate a parameter has."""
    return name


def chosen(logits: Any, invalid: Any, actions: Any) -> Any:
    """Log-probability of each action under masked logits."""
    log_probs = jax.nn.log_softmax(gfnx.utils.mask_logits(logits, invalid), axis=-1)
    return jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]


class Gfnx:
    """Trajectory balance as its baseline has it, each iteration one compiled call."""

    def __init__(self, task: Mapping[str, Any], given: Arrays | None):
        reward = gfnx.GeneralHypergridRewardModule(R0=task["r0"], R1=0.5, R2=2.0)
        self.env = gfnx.environment.HypergridEnvironment(reward, dim=task["ndim"], side=task["side"])
        self.batch, self.flat, self.learned = task["batch"], task["variant"] == "flat", task["backward"] == "learned"
        self.n, self.n_back = self.env.action_space.n, self.env.backward_action_space.n
        self.key, initial, reward_key = jax.random.split(jax.random.PRNGKey(task["seed"]), 3)
        self.constants = self.env.init(reward_key)
        n_out = self.n + self.n_back * self.learned
        network = eqx.nn.MLP(task["side"] * task["ndim"], n_out, width_size=256, depth=2, key=initial)
        if given is not None:
            network = self._loaded(network, given)
        arrays, self.static = eqx.partition(network, eqx.is_array)
        log_z = 0.0 if given is None else float(given["log_z"])
        self.parameters = {
            "network": arrays,
            "log_z": jnp.array(log_z, jnp.float32),
        }  # a weak type would compile it twice more
        labels = {name: jax.tree.map(partial(label, name), some) for name, some in self.parameters.items()}
        rates = {"network": optax.adam(task["lr"]), "log_z": optax.adam(task["log_z_lr"])}
        self.optimizer = optax.multi_transform(rates, labels)
        self.state = self.optimizer.init(self.parameters)
        self.iterate = jax.jit(self._iterate, donate_argnums=(0, 1))
        self.steps, self.versions = 0, {name: version(name) for name in PACKAGES}

    def train(self, stop: Callable[[], bool]) -> None:
        while True:
            self.parameters, self.state, self.key, steps = self.iterate(self.parameters, self.state, self.key)
            self.steps += int(steps)
            if stop():
                return

    def _split(self, out: Any) -> tuple[Any, Any]:
        """Logits of P_F and of P_B from the output of the network."""
        if self.learned:
            return out[..., : self.n], out[..., self.n :]
        return out, jnp.zeros((*out.shape[:-1], self.n_back))

    def _iterate(self, parameters: Any, state: Any, key: Any) -> tuple[Any, Any, Any, Any]:
        key, sampling = jax.random.split(key)

        def policy(_: Any, observed: Any, arrays: Any) -> tuple[Any, dict[str, Any]]:
            forward, backward = self._split(jax.vmap(eqx.combine(arrays, self.static))(observed))
            return forward, {"forward_logits": forward, "backward_logits": backward}

        batch, info = gfnx.utils.forward_rollout(
            sampling, self.batch, policy, parameters["network"], self.env, self.constants
        )
        gradient = jax.grad(partial(self._loss, batch=batch))(parameters)
        updates, state = self.optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, key, info["trajectory_length"].sum()

    def _loss(self, parameters: Any, batch: Any) -> Any:
        network = eqx.combine(parameters["network"], self.static)
        if self.flat:
            rows = batch.obs.reshape(-1, batch.obs.shape[-1])
            out = jax.vmap(network)(rows).reshape(*batch.obs.shape[:2], -1)
        else:
            out = jax.vmap(jax.vmap(network))(batch.obs)
        forward, backward = self._split(out)
        masks = jax.vmap(self.env.get_invalid_mask, in_axes=(0, None))
        back_masks = jax.vmap(self.env.get_invalid_backward_mask, in_axes=(0, None))
        invalid = steps_first(masks(steps_first(batch.state), self.constants))
        log_pf = jnp.where(batch.pad, 0.0, chosen(forward, invalid, batch.action)).sum(1)

        later, sooner = jax.tree.map(after_first, batch.state), jax.tree.map(before_last, batch.state)
        undo = jax.vmap(self.env.get_backward_action, in_axes=(0, 0, 0, None))
        undone = undo(sooner, batch.action[:, :-1], later, self.constants)
        invalid = steps_first(back_masks(steps_first(later), self.constants))
        pad = batch.pad[:, :-1]
        log_pb = jnp.where(pad, 0.0, chosen(backward[:, 1:], invalid, undone))
        log_reward = jnp.where(pad, 0.0, batch.log_gfn_reward[:, :-1])
        return jnp.square(parameters["log_z"] + log_pf - (log_pb + log_reward).sum(1)).mean()

    def _loaded(self, network: Any, given: Arrays) -> Any:
        heads = ("forward", "backward")[: 1 + self.learned]
        rows = (self.n, self.n_back)

        def joint(kind: str) -> Any:
            return np.concatenate([given[f"{head}.{kind}"][:n] for head, n in zip(heads, rows, strict=False)])

        values = [given[f"trunk.{i}.{kind}"] for i in (0, 1) for kind in ("weight", "bias")]
        values += [joint("weight"), joint("bias")]
        return eqx.tree_at(self._places, network, [jnp.asarray(value) for value in values])

    @staticmethod
    def _places(network: Any) -> list[Any]:
        return [value for layer in network.layers for value in (layer.weight, layer.bias)]

    def weights(self) -> Arrays:
        names = [f"{layer}.{kind}" for layer in ("trunk.0", "trunk.1", "out") for kind in ("weight", "bias")]
        found = dict(zip(names, map(np.asarray, self._places(self.parameters["network"])), strict=True))
        for kind in ("weight", "bias"):
            out = found.pop(f"out.{kind}")
            found[f"forward.{kind}"] = out[: self.n]
            if self.learned:  # with a row for stopping, which means nothing
                found[f"backward.{kind}"] = np.concatenate([out[self.n :], np.zeros_like(out[:1])])
        return {**found, "log_z": np.asarray(self.parameters["log_z"])}


if __name__ == "__main__":
    play(Gfnx)
