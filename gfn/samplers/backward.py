"""Trajectories that end in given terminal states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gfn.environment import Environment, as_enumerable, checked_log_reward
from gfn.policies import Policy
from gfn.priorities import draw, powered, require_in
from gfn.samplers.sampler import checked_size, generator_of, groups_in
from gfn.sampling import rollout
from gfn.schedules import Number, value_at
from gfn.states import States, fingerprints
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


def every_terminal(env: Environment[S]) -> S:
    """All terminal states, once each: the data set from which ``inverse_temperature=1`` draws R/Z exactly.

    Raises:
        ValueError: if the environment cannot be enumerated.
    """
    listed = as_enumerable(env)
    if listed is None:
        raise ValueError(
            f"every_terminal needs an environment with enumerate and index; {type(env).__name__} has none: "
            "give a function that returns terminal states of your own"
        )
    states = listed.enumerate()
    return states[env.is_terminal(states)]


class BackwardFromData(Generic[S]):
    """Terminal states drawn from a data set, each with a path by P_B.

    Args:
        env: where the states are from.
        backward: P_B.
        data: terminal states, or a function from the environment to them, such as :func:`every_terminal`.
        batch_size: trajectories per step.
        group_size: trajectories that share an initial state; default, one group for each initial state in the batch.
        inverse_temperature: states are drawn in proportion to R to this power; 0 draws all alike.
        seed: of the sampler's own generator.

    Raises:
        ValueError: if there are no data, some are not terminal, or the sizes do not come out even.
    """

    def __init__(
        self,
        env: Environment[S],
        backward: Policy[S],
        data: S | Callable[[Environment[S]], S],
        batch_size: int = 16,
        group_size: int | None = None,
        inverse_temperature: Number = 0.0,
        seed: int = 0,
    ):
        require_in(self, "inverse_temperature", inverse_temperature, 0, float("inf"))
        self.env, self.backward, self.inverse_temperature = env, backward, inverse_temperature
        self.one_group, self.forward = group_size is None, False
        self.batch_size = checked_size("BackwardFromData", batch_size, 16, group_size or 1)
        self.group_size = self.batch_size if group_size is None else group_size
        self.generator = generator_of(self, env.device, seed)
        self.data = data(env) if callable(data) else data
        _require_terminal(env, self.data)
        self.log_reward = checked_log_reward(env, self.data)
        self.condition = torch.zeros_like(self.log_reward, dtype=torch.long) if self.one_group else self._conditions()

    def _conditions(self) -> Tensor:
        """Which states have the same initial state, long ``[M]``: found by one walk back from each."""
        walks = rollout(self.env, self.backward, self.data, backward=True, generator=self.generator)
        return fingerprints(walks.initial).to(self.log_reward.device)

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        groups = groups_in(self, size)
        log_weight = powered(self.log_reward, value_at(self.inverse_temperature, step))
        index = draw(log_weight, self.condition, groups, size // groups, self.generator)
        t = rollout(
            self.env,
            self.backward,
            self.data[index],
            backward=True,
            group=torch.arange(groups, device=index.device).repeat_interleave(size // groups),
            generator=self.generator,
            version=step,
        )
        return t.grouped_by_initial() if self.one_group else t

    def settings(self, step: int) -> dict[str, float]:
        return {"inverse_temperature": value_at(self.inverse_temperature, step)}

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"].cpu())


def _require_terminal(env: Environment[S], data: S) -> None:
    if len(data) == 0:
        raise ValueError("BackwardFromData: the data set is empty; give at least one terminal state")
    wrong = (~env.is_terminal(data)).nonzero().flatten()
    if len(wrong) > 0:
        first = int(wrong[0])
        raise ValueError(
            f"BackwardFromData: {len(wrong)} of {len(data)} states in the data set are not terminal, such as number "
            f"{first}: {env.describe(data[first : first + 1])[0]}"
        )
