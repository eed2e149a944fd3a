"""Batches drawn from a buffer that another sampler refreshes now and then, as in trajectory balance with asynchrony."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch

from gfn.buffers import Buffer
from gfn.priorities import require_in
from gfn.samplers.sampler import Sampler, checked_size, generator_of, groups_in, unit_of
from gfn.schedules import Number, value_at
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Refreshed(Generic[S]):
    """Groups of stored trajectories, refreshed every few updates by what searchers have found (arXiv:2503.18929).

    At every ``every``-th step one batch of ``source`` is stored. Each group is drawn from the latest of these batches
    with probability ``newest``, all alike there, and otherwise from all that is stored, by the buffer's priority. How
    many trajectories an update learns from (``batch_size``) and how many are sampled for it
    (``source.batch_size / every``) are numbers of their own. Where the source makes one group, so is the batch (or one
    for each initial state in it), and each of its trajectories is drawn so.

    Args:
        source: where trajectories come from.
        buffer: where they are stored, and which of them are drawn.
        newest: probability of the latest batch.
        every: updates between two batches of the source.
        batch_size: trajectories of an update; default, as many as a batch of the source has.
        group_size: of the groups that are drawn; default, that of the source.
        seed: of the choice between new and old.

    Raises:
        ValueError: if ``every`` is not positive, ``newest`` outside [0, 1], ``group_size`` given where the source makes
            one group, or if the buffer lets a trajectory be used too seldom for what is drawn.
    """

    def __init__(
        self,
        source: Sampler[S],
        buffer: Buffer[S],
        newest: Number = 0.5,
        every: int = 10,
        batch_size: int | None = None,
        group_size: int | None = None,
        seed: int = 0,
    ):
        require_in(self, "newest", newest, 0, 1)
        if every < 1:
            raise ValueError(f"Refreshed: every must be at least 1, got {every}")
        if group_size is not None and (group_size < 1 or source.one_group):
            raise ValueError(
                f"Refreshed: group_size must be positive and needs a source that makes groups (source.group_size=…), "
                f"got {group_size=}, and the source makes one group: {source.one_group}"
            )
        self.source, self.buffer, self.newest, self.every = source, buffer, newest, every
        self.one_group, self.forward = source.one_group, source.forward
        unit = unit_of(source) if group_size is None else group_size
        self.batch_size = checked_size("Refreshed", batch_size, source.batch_size, unit)
        self.group_size = self.batch_size if self.one_group else unit
        uses = None if buffer.max_reuse is None else buffer.max_reuse * source.batch_size
        if uses is not None and uses < every * self.batch_size:
            raise ValueError(
                f"Refreshed: {source.batch_size} trajectories that may be used {buffer.max_reuse} times do not last "
                f"for every={every} updates on {self.batch_size}: raise source.batch_size or buffer.max_reuse"
            )
        self.generator = generator_of(self, torch.device("cpu"), seed)
        self.refreshed: int | None = None  # the step of the latest batch
        self._said: dict[str, float] = {}

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        if self.refreshed is None or step // self.every > self.refreshed // self.every:
            self.buffer.add(self.source(step), step)
            self.refreshed = step
        unit = 1 if self.one_group else self.group_size
        count = size if self.one_group else groups_in(self, size)
        chances = torch.rand(count, dtype=torch.float64, generator=self.generator)
        new = int((chances < value_at(self.newest, step)).sum())
        parts: list[Trajectories[S]] = []
        if new:
            parts.append(self.buffer.draw(new, unit, step, self.refreshed))
        if count > new:
            parts.append(self.buffer.draw(count - new, unit, step))
        batch = Trajectories.cat(parts)
        age = (step - batch.policy_version).double()
        self._said = {"newest_share": new / count, "lag_mean": float(age.mean()), "lag_max": float(age.max())}
        return batch.grouped_by_initial() if self.one_group else batch

    def settings(self, step: int) -> dict[str, float]:
        """Share of the latest batch, age of what was drawn in updates, and how much is stored."""
        inner = {name: value for name, value in self.source.settings(step).items() if not name.startswith("lag_")}
        return {**inner, **self._said, "stored": float(len(self.buffer))}

    def state_dict(self) -> dict[str, Any]:
        return {
            "source": self.source.state_dict(),
            "buffer": self.buffer.state_dict(),
            "generator": self.generator.get_state(),
            "refreshed": self.refreshed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state["source"])
        self.buffer.load_state_dict(state["buffer"])
        self.generator.set_state(state["generator"].cpu())
        self.refreshed = state["refreshed"]
