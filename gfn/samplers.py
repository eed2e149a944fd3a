"""Samplers: where the trajectories of each training step come from."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import torch

from gfn.environment import Environment
from gfn.exploration import Exploration, NoExploration
from gfn.policies import Policy
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Sampler(Protocol[S]):
    """Answers which trajectories to train on at a step, and can be stopped and resumed bit for bit."""

    group_size: int

    def __call__(self, step: int) -> Trajectories[S]:
        """The batch for training step ``step``."""
        ...

    def settings(self, step: int) -> dict[str, float]:
        """Scheduled values in force, for the log."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OnPolicy(Generic[S]):
    """Fresh trajectories from the current policy, with optional exploration.

    Args:
        env: where to sample.
        policy: P_F.
        batch_size: trajectories per step, B.
        group_size: trajectories that share an initial state, K; default, the whole batch.
        exploration: how actions are drawn.
        seed: of the sampler's own generator.

    Raises:
        ValueError: unless ``group_size`` divides ``batch_size`` and both are positive.
    """

    def __init__(
        self,
        env: Environment[S],
        policy: Policy[S],
        batch_size: int = 16,
        group_size: int | None = None,
        exploration: Exploration | None = None,
        seed: int = 0,
    ):
        self.env, self.policy = env, policy
        self.group_size = batch_size if group_size is None else group_size
        if batch_size < 1 or self.group_size < 1 or batch_size % self.group_size:
            raise ValueError(
                f"OnPolicy: batch_size must be a positive multiple of group_size, "
                f"got batch_size={batch_size} group_size={self.group_size}"
            )
        self.groups = batch_size // self.group_size
        self.exploration: Exploration = exploration if exploration is not None else NoExploration()
        self.generator = torch.Generator(env.device).manual_seed(seed)

    def __call__(self, step: int) -> Trajectories[S]:
        group = torch.arange(self.groups, device=self.env.device).repeat_interleave(self.group_size)
        return rollout(
            self.env,
            self.policy,
            self.env.reset(self.groups, self.generator)[group],
            explore=lambda distribution: self.exploration(distribution, step),
            group=group,
            generator=self.generator,
            version=step,
        )

    def settings(self, step: int) -> dict[str, float]:
        return self.exploration.settings(step)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
