"""Environments and samplers that tests of stored trajectories share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from envs.hypergrid import Classic, GridStates, Hypergrid
from gfn.buffers import Buffer
from gfn.policies import MLPPolicy, Tabular, Uniform
from gfn.samplers import OnPolicy, Replay, Sampler
from gfn.trajectories import Trajectories


@dataclass(frozen=True)
class Heated(GridStates):
    """A grid point, and the temperature drawn at the start."""

    temperature: Tensor


class Conditioned(Hypergrid):
    """A hypergrid whose trajectories carry one of ``kinds`` temperatures."""

    kinds = 3

    def reset(self, n, generator=None):
        drawn = torch.randint(self.kinds, (n,), generator=generator).double()
        return Heated(**vars(super().reset(n)), temperature=drawn)

    def step(self, states, actions):
        return Heated(**vars(super().step(states, actions)), temperature=states.temperature)

    def undo(self, states, actions):
        return Heated(**vars(super().undo(states, actions)), temperature=states.temperature)


def grid(side: int = 4) -> Hypergrid:
    return Hypergrid(side, 2, Classic(r0=0.1))


def uniform(env: Hypergrid, **settings: Any) -> OnPolicy[GridStates]:
    """Trajectories of the uniform policy."""
    return OnPolicy(env, Uniform(env.forward_mask), **settings)


def biased(env: Hypergrid, seed: int = 0, scale: float = 1.0) -> Tabular[GridStates]:
    """A policy far from uniform."""
    logits = torch.randn(2 * env.side**env.ndim, env.n_actions, generator=torch.Generator().manual_seed(seed))
    return Tabular(env, env.forward_mask, logits * scale)


def network(env: Hypergrid, seed: int = 0) -> MLPPolicy[GridStates]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MLPPolicy(env, 8, 1)


def listed(t: Trajectories[Any]) -> list[tuple[Any, ...]]:
    """Each trajectory as plain values: states, actions, log-probabilities, reward, version; groups left out."""
    found: list[tuple[Any, ...]] = []
    for b in range(len(t)):
        one = t[b : b + 1]
        states = [getattr(one.states, f.name).tolist() for f in fields(one.states)]
        rest = (one.actions, one.behaviour_log_prob, one.log_reward, one.policy_version)
        found.append((str(states), *(str(x.tolist()) for x in rest)))
    return found


def replay(env: Hypergrid, capacity: int = 100, group_size: int | None = None, **settings: Any) -> Replay[GridStates]:
    """Trajectories of the uniform policy, eight at a time, and stored ones."""
    inner = uniform(env, batch_size=8, group_size=group_size)
    return Replay(env, inner, Buffer(env, capacity), **settings)


def moved(policy: MLPPolicy[GridStates]) -> None:
    """An update, of a kind."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn_like(parameter))


def in_batches(sampler: Sampler[GridStates], steps: int, size: int | None = None) -> list[Trajectories[GridStates]]:
    """The batches of the first steps."""
    return [sampler(step, size) for step in range(steps)]
