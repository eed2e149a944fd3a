"""Fresh trajectories together with stored ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, TypeVar

from gfn.buffers import Buffer
from gfn.environment import Environment
from gfn.policies import Policy
from gfn.priorities import require_in
from gfn.samplers.sampler import Sampler, apportion, checked_size, generator_of, groups_in, unit_of
from gfn.sampling import rollout
from gfn.schedules import Number, value_at
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Replay(Generic[S]):
    """Stores the trajectories of another sampler and mixes in ``ratio`` times as many stored ones.

    A batch is stored before any is drawn, so the first can be drawn at the first step. Where the
    inner sampler makes one group, fresh and replayed trajectories from one initial state are one
    group together; otherwise replayed groups stand beside the fresh ones.

    Args:
        env: where the trajectories are from.
        sampler: source of fresh trajectories.
        buffer: where they are stored, and which of them are drawn.
        ratio: replayed trajectories for each fresh one; the number is rounded to whole groups.
        reexpand: replay the terminal states only, each with a new path by P_B.
        backward: P_B, if ``reexpand``.
        batch_size: trajectories in all; default, the inner sampler's and the replayed ones on top.
        seed: of the generator of new paths.

    Raises:
        ValueError: if ``ratio`` is negative, or there is no ``backward`` to re-expand by.
    """

    def __init__(
        self,
        env: Environment[S],
        sampler: Sampler[S],
        buffer: Buffer[S],
        ratio: Number = 1.0,
        reexpand: bool = False,
        backward: Policy[S] | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ):
        require_in(self, "ratio", ratio, 0, float("inf"))
        if reexpand and backward is None:
            raise ValueError("Replay: reexpand needs a backward policy; give backward, or set reexpand=false")
        self.env, self.sampler, self.buffer, self.ratio = env, sampler, buffer, ratio
        self.backward = backward if reexpand else None
        self.one_group, self.forward = sampler.one_group, sampler.forward and not reexpand
        unit = unit_of(sampler)
        grown = sampler.batch_size + self._replayed(0, sampler.batch_size)
        self.total = batch_size
        self.batch_size = checked_size("Replay", batch_size, grown, unit)
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self.generator = generator_of(self, env.device, seed)

    def _replayed(self, step: int, fresh: int) -> int:
        unit = unit_of(self.sampler)
        ratio = value_at(self.ratio, step)
        if ratio < 0:
            raise ValueError(f"Replay: ratio must not be negative, got {ratio} at step {step}")
        return round(ratio * fresh / unit) * unit

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.total if size is None else size
        if size is None:
            fresh = self.sampler(step)
            replayed = self._replayed(step, len(fresh))
        else:
            groups_in(self, size)
            unit = unit_of(self.sampler)
            ratio = value_at(self.ratio, step)
            first = max(apportion(size, [1.0, ratio], unit)[0], unit)
            fresh, replayed = self.sampler(step, first), size - first
        self.buffer.add(fresh, step)
        if replayed == 0:
            return fresh
        groups = groups_in(self, replayed)
        stored = self._expanded(self.buffer.draw(groups, replayed // groups, step), step)
        whole = Trajectories.cat([fresh, stored])
        return whole.grouped_by_initial() if self.one_group else whole

    def _expanded(self, t: Trajectories[S], step: int) -> Trajectories[S]:
        """The same terminal states, by new paths if there is a P_B for them."""
        if self.backward is None:
            return t
        new = rollout(self.env, self.backward, t.final, backward=True, generator=self.generator, version=step)
        return replace(new, group=t.group)

    def settings(self, step: int) -> dict[str, float]:
        own = {"replay_ratio": value_at(self.ratio, step), "stored": float(len(self.buffer))}
        return {**self.sampler.settings(step), **own}

    def state_dict(self) -> dict[str, Any]:
        return {
            "sampler": self.sampler.state_dict(),
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.buffer.load_state_dict(state["buffer"])
        self.generator.set_state(state["generator"].cpu())
