"""Samplers made of samplers: mixed, repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from gfn.environment import Environment
from gfn.samplers.sampler import Sampler, apportion, checked_size, groups_in, unit_of
from gfn.schedules import Number, value_at
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Mixture(Generic[S]):
    """Parts of each batch from different samplers, in proportions that may change over training.

    Sizes are whole groups by largest remainder. If every sampler makes one group, so do they
    together, for each initial state.

    Args:
        samplers: where the parts come from.
        ratios: proportion of each; they need not sum to one.
        batch_size: trajectories in all; default, as many as the samplers make by themselves.

    Raises:
        ValueError: unless there is one ratio for each sampler, none negative and not all zero, and their groups
            are alike.
    """

    def __init__(self, samplers: Sequence[Sampler[S]], ratios: Sequence[Number], batch_size: int | None = None):
        if not samplers or len(samplers) != len(ratios):
            raise ValueError(
                f"Mixture: expected one ratio for each sampler, got {len(samplers)} samplers and {len(ratios)} ratios"
            )
        units = {unit_of(sampler) for sampler in samplers}
        self.one_group = samplers[0].one_group
        self.forward = all(sampler.forward for sampler in samplers)
        if len(units) > 1 or len({sampler.one_group for sampler in samplers}) > 1:
            raise ValueError(
                f"Mixture: all samplers must have one group_size, or all none; got {[s.group_size for s in samplers]}, "
                f"the whole batch in {sum(s.one_group for s in samplers)} of {len(samplers)}"
            )
        (unit,) = units
        self.samplers, self.ratios = list(samplers), list(ratios)
        self.batch_size = checked_size("Mixture", batch_size, sum(s.batch_size for s in samplers), unit)
        self.group_size = self.batch_size if self.one_group else unit
        self._sizes(0, self.batch_size)

    def _sizes(self, step: int, size: int) -> list[int]:
        try:
            return apportion(size, [value_at(ratio, step) for ratio in self.ratios], unit_of(self.samplers[0]))
        except ValueError as error:
            raise ValueError(f"Mixture: ratios at step {step}: {error}") from error

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        groups_in(self, size)
        sizes = self._sizes(step, size)
        parts = [sampler(step, part) for sampler, part in zip(self.samplers, sizes, strict=True) if part]
        whole = Trajectories.cat(parts)
        return whole.grouped_by_initial() if self.one_group else whole

    def settings(self, step: int) -> dict[str, float]:
        """The settings of every part under its number, and the parts' shares."""
        sizes = self._sizes(step, self.batch_size)
        named: dict[str, float] = {f"share_{i}": size / self.batch_size for i, size in enumerate(sizes)}
        for i, sampler in enumerate(self.samplers):
            named |= {f"{name}_{i}": value for name, value in sampler.settings(step).items()}
        return named

    def state_dict(self) -> dict[str, Any]:
        return {"samplers": [sampler.state_dict() for sampler in self.samplers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for sampler, own in zip(self.samplers, state["samplers"], strict=True):
            sampler.load_state_dict(own)


class Repeated(Generic[S]):
    """Each batch for several updates in a row, as for the epochs of PPO.

    Args:
        env: where the trajectories are from.
        sampler: called at every ``times``-th step (and whenever another size is asked for).
        times: updates on each batch.
        batch_size: trajectories per step; default, the inner sampler's.

    Raises:
        ValueError: if ``times`` is not positive.
    """

    def __init__(self, env: Environment[S], sampler: Sampler[S], times: int = 4, batch_size: int | None = None):
        if times < 1:
            raise ValueError(f"Repeated: times must be at least 1, got {times}")
        self.sampler, self.times, self.one_group = sampler, times, sampler.one_group
        self.forward = sampler.forward
        self.batch_size = checked_size("Repeated", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0))
        self._batch: Trajectories[S] | None = None
        self._left = 0

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        batch = self._batch
        if batch is None or self._left == 0 or len(batch) != size:
            batch, self._left = self.sampler(step, size), self.times
        self._batch = batch
        self._left -= 1
        return batch

    def settings(self, step: int) -> dict[str, float]:
        return self.sampler.settings(step)

    def state_dict(self) -> dict[str, Any]:
        batch = {} if self._batch is None else self._batch.tensors()
        return {"sampler": self.sampler.state_dict(), "batch": batch, "left": self._left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self._batch = Trajectories.from_tensors(state["batch"], self._like) if state["batch"] else None
        self._left = state["left"]
