"""Fresh trajectories from the current policy."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch

from gfn.environment import Environment
from gfn.exploration import Exploration, NoExploration
from gfn.fused import Table
from gfn.policies import Policy
from gfn.samplers.sampler import groups_in
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class OnPolicy(Generic[S]):
    """Fresh trajectories from the current policy, or a moving average of it, with optional exploration.

    Args:
        env: where to sample.
        policy: P_F.
        batch_size: trajectories per step, B; default 16, or one group.
        group_size: trajectories that share an initial state, K; default, the whole batch, whatever its size.
        exploration: how actions are drawn.
        averaging: sample from the exponential moving average of the parameters that keeps this fraction
            of itself at each update; 0 samples from the policy itself.
        fused: list the environment's states and take each step of a rollout in one compiled call, which small batches
            gain most from; the compiler runs the first time. Exploration goes one operator at a time all the same.
        seed: of the sampler's own generator.

    Raises:
        ValueError: unless ``group_size`` divides ``batch_size``, both are positive, and ``averaging`` lies in [0, 1);
            or if the states of a fused sampler cannot be listed.
    """

    def __init__(
        self,
        env: Environment[S],
        policy: Policy[S],
        batch_size: int | None = None,
        group_size: int | None = None,
        exploration: Exploration | None = None,
        averaging: float = 0.0,
        fused: bool = False,
        seed: int = 0,
    ):
        self.env, self.policy = env, policy
        self.one_group, self.forward = group_size is None, True
        self.batch_size = (group_size or 16) if batch_size is None else batch_size
        self.group_size = self.batch_size if group_size is None else group_size
        if self.batch_size < 1 or self.group_size < 1 or self.batch_size % self.group_size:
            raise ValueError(
                f"OnPolicy: batch_size must be a positive multiple of group_size, "
                f"got batch_size={batch_size} group_size={self.group_size}"
            )
        if not 0 <= averaging < 1:
            raise ValueError(f"OnPolicy: averaging must lie in [0, 1), got {averaging}")
        self.table = Table(env) if fused else None
        self.exploration: Exploration = exploration if exploration is not None else NoExploration()
        self.averaging = averaging
        self.average = frozen_copy(policy, env) if averaging > 0 else policy
        self.updated = 0
        self.generator = torch.Generator(env.device).manual_seed(seed)

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        groups = groups_in(self, size)
        group = torch.arange(groups, device=self.env.device).repeat_interleave(size // groups)
        self._average(step)
        return rollout(
            self.env,
            self.average,
            self.env.reset(groups, self.generator)[group],
            explore=None if isinstance(self.exploration, NoExploration) else lambda d: self.exploration(d, step),
            group=group,
            generator=self.generator,
            version=step,
            table=self.table,
        )

    @torch.no_grad()
    def _average(self, step: int) -> None:
        """Move the average towards the policy, if there is one and there have been updates since the last call."""
        if self.averaging == 0 or step <= self.updated:
            return
        self.updated = step
        for mean, current in zip(self.average.parameters(), self.policy.parameters(), strict=True):
            mean.lerp_(current, 1 - self.averaging)
        for mean, current in zip(self.average.buffers(), self.policy.buffers(), strict=True):
            mean.copy_(current)

    def settings(self, step: int) -> dict[str, float]:
        return self.exploration.settings(step)

    def state_dict(self) -> dict[str, Any]:
        average = {"average": self.average.state_dict(), "updated": self.updated} if self.averaging > 0 else {}
        return {"generator": self.generator.get_state(), **average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())
        if self.averaging > 0:
            self.average.load_state_dict(state["average"])
            self.updated = state["updated"]


def frozen_copy(policy: Policy[S], env: Environment[S]) -> Policy[S]:
    """A copy of a policy with the same parameters, which nothing trains; the environment it knows is shared."""
    return copy.deepcopy(policy, {id(env): env}).requires_grad_(False)
