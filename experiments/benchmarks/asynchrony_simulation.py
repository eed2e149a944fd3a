"""Trainer and searchers as events in time: how fast any number of searchers would be, from what each thing takes.

What may be made when is decided by the ledger of real runs, which is asked here at simulated times.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gfn.distributed import Ledger


@dataclass(frozen=True)
class Costs:
    """What things take, in seconds.

    Attributes:
        search: to make a group, for the numbers from 0 on, and over again.
        update: to score a batch and update on it, and all else that the trainer does by itself.
        publish: to give out the weights after an update.
        load: to take over new weights, for each searcher.
        handoff: from the end of a group to the beginning of the searcher's next.
        receive: of the trainer's own time, for each group that comes.
        synchronous: an update of a run that samples its batches itself.
    """

    search: Sequence[float]
    update: float
    publish: float = 0.0
    load: float = 0.0
    handoff: float = 0.0
    receive: float = 0.0
    synchronous: float = float("nan")


@dataclass(frozen=True)
class Pace:
    """How a run goes on once it has begun.

    Attributes:
        step: seconds for an update.
        waited: share of time for which the trainer waits for groups.
        idle: share of time for which searchers have nothing to make, on average.
        lag: age of groups when they are trained on, in updates, on average.
        lag_max: the largest.
    """

    step: float
    waited: float
    idle: float
    lag: float
    lag_max: int


def simulated(costs: Costs, searchers: int, max_staleness: int, groups: int, steps: int = 400) -> Pace:
    """The pace of a run of ``steps`` updates, over their second half.

    Args:
        costs: seconds.
        searchers: number of them, each as quick as if it were alone.
        max_staleness: age of a group when it is used, in batches, at most.
        groups: of a batch.
        steps: number of updates, at least 2.
    """
    run = _Run(costs, searchers, max_staleness, groups)
    middle = run.after(steps // 2)
    return middle.to(run.after(steps), searchers)


@dataclass(frozen=True)
class _Moment:
    """What has added up until the end of an update."""

    time: float
    steps: int
    waited: float
    busy: float
    lags: tuple[float, ...]

    def to(self, later: _Moment, searchers: int) -> Pace:
        past, lags = later.time - self.time, later.lags[len(self.lags) :]
        return Pace(
            step=past / (later.steps - self.steps),
            waited=(later.waited - self.waited) / past,
            idle=1 - (later.busy - self.busy) / (past * searchers),
            lag=statistics.fmean(lags),
            lag_max=int(max(lags)),
        )


class _Run:
    def __init__(self, costs: Costs, searchers: int, max_staleness: int, groups: int) -> None:
        self.costs, self.groups = costs, groups
        self.ledger = Ledger((max_staleness + 1) * groups)
        self.now = self.waiting_since = self.waited = 0.0
        self.step = 0  # updates done, and so the version of the weights
        self.lags: list[float] = []  # of every group trained on
        self._began: dict[int, float] = {}  # when searchers began what they make
        self._busy = 0.0  # of what they have made
        self._idle = list(range(searchers))
        self._version = [0] * searchers  # of each searcher's weights
        self._made_with: dict[int, int] = {}  # version, by group
        self._training: list[int] | None = None  # the groups of the update that is going on
        self._events: list[tuple[float, int, int | None]] = []  # when, number of the group, searcher; None: an update
        self._hand_out()

    def after(self, steps: int) -> _Moment:
        """How it stands when so many updates are done and published."""
        while self.step < steps:
            self.now, number, searcher = heapq.heappop(self._events)
            if searcher is None:
                self._updated()
            else:
                self._put(number, searcher)
            self._train()
        busy = self._busy + sum(self.now - began for began in self._began.values())
        return _Moment(self.now, self.step, self.waited, busy, tuple(self.lags))

    def _hand_out(self) -> None:
        while self._idle and (lease := self.ledger.lease("a searcher", self.now)) is not None:
            searcher, costs = self._idle.pop(0), self.costs
            new = self._version[searcher] != self.step
            self._version[searcher] = self._made_with[lease.number] = self.step
            seconds = costs.handoff + costs.load * new + costs.search[lease.number % len(costs.search)]
            self._began[searcher] = self.now
            heapq.heappush(self._events, (self.now + seconds, lease.number, searcher))

    def _put(self, number: int, searcher: int) -> None:
        self.ledger.put(number)
        self._busy += self.now - self._began.pop(searcher)
        self._idle.append(searcher)
        self._hand_out()

    def _train(self) -> None:
        """Begin an update, if none is going on and the groups for it are there."""
        numbers = self.ledger.take(self.groups) if self._training is None else None
        if numbers is None:
            return
        self._training = numbers
        self.waited += self.now - self.waiting_since
        self.lags += [self.step - self._made_with.pop(number) for number in numbers]
        seconds = self.costs.update + self.groups * self.costs.receive + self.costs.publish
        heapq.heappush(self._events, (self.now + seconds, -1, None))

    def _updated(self) -> None:
        assert self._training is not None, "an update has ended"
        self.ledger.commit(self._training)
        self._training, self.waiting_since = None, self.now
        self.step += 1
        self._hand_out()
