"""Samplers made of samplers: mixed, delayed, repeated."""

from __future__ import annotations

from collections import deque
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


class Stale(Generic[S]):
    """Batches used ``lag`` updates after they were sampled: at step t, what the policy of step t − lag sampled.

    While there is nothing so old, the oldest there is, that of step 0. ``policy_version`` tells.

    Args:
        env: where the trajectories are from.
        sampler: called at every step.
        lag: age of the batches, in updates.
        batch_size: trajectories per step; default, the inner sampler's.

    Raises:
        ValueError: if ``lag`` is negative; when called, if the size asked for is not that of the batch
            whose turn it is.
    """

    def __init__(self, env: Environment[S], sampler: Sampler[S], lag: int = 10, batch_size: int | None = None):
        if lag < 0:
            raise ValueError(f"Stale: lag must not be negative, got {lag}; 0 uses every batch at once")
        self.sampler, self.lag, self.one_group = sampler, lag, sampler.one_group
        self.forward = sampler.forward
        self.batch_size = checked_size("Stale", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0))
        self._waiting: deque[tuple[int, Trajectories[S]]] = deque()

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        self._waiting.append((step, self.sampler(step, size)))
        while len(self._waiting) > 1 and self._waiting[1][0] <= step - self.lag:
            self._waiting.popleft()
        batch = self._waiting[0][1]
        if len(batch) != size:
            raise ValueError(
                f"Stale: asked for {size} trajectories at step {step}, and {len(batch)} were sampled at step "
                f"{self._waiting[0][0]}; the size must stay the same while batches wait"
            )
        return batch

    def settings(self, step: int) -> dict[str, float]:
        return {**self.sampler.settings(step), "lag": float(min(step, self.lag))}

    def state_dict(self) -> dict[str, Any]:
        waiting = [(step, batch.tensors()) for step, batch in self._waiting]
        return {"sampler": self.sampler.state_dict(), "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        waiting = ((step, Trajectories.from_tensors(batch, self._like)) for step, batch in state["waiting"])
        self._waiting = deque(waiting)


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
