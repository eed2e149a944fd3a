"""The hub: where the trainer leaves weights and finds groups, and searchers find weights and leave groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gfn import processes
from gfn.distributed.ledger import Ledger

GLANCE = 0.5  # seconds after which whoever waits asks whether to stop
# At one group, after which the run ends: its content may be what kills searchers. More than are likely to be lost by
# chance with the same group in hand, the only one that a search without staleness has open.
ATTEMPTS = 5


class SearchError(RuntimeError):
    """Searchers do not bring what the trainer waits for."""


class Interrupted(SearchError):
    """The trainer was asked to stop while it waited for searchers."""


@dataclass(frozen=True)
class Weights:
    """The policy as searchers are to use it.

    Attributes:
        version: updates it had seen.
        serial: counts publications, so that a searcher knows whether it has these weights.
        content: the weights, in whatever form an engine sends them.
        precision: number type that networks compute in, under autocast; None as they are.
    """

    version: int
    serial: int = 0
    content: Any = None
    precision: torch.dtype | None = None


@dataclass(frozen=True)
class Job:
    """What a searcher does next: one group, with these weights."""

    number: int
    weights: Weights


class Hub:
    """Keeps the ledger, the groups that are there, and the weights; may be called from several threads.

    Args:
        bound: groups that are given out and not trained on, at most.
        time_limit: seconds in which a group has to come.
        fixed_lag: the weights of a group are those published when it could first be given out, whoever makes it,
            whenever; otherwise the newest.

    Attributes:
        changed: notified whenever something happens; holding it keeps others out.
        ledger: who makes what.
        arrived: groups that came, without duplicates.
        error: what ended the search.
    """

    def __init__(self, bound: int, time_limit: float = float("inf"), fixed_lag: bool = False) -> None:
        self.changed = threading.Condition()
        self.ledger, self.fixed_lag = Ledger(bound, time_limit), fixed_lag
        self.arrived = 0
        self.error: Exception | None = None
        self._groups: dict[int, Mapping[str, Any]] = {}
        self._weights: list[tuple[int, Weights]] = []  # each of the groups up to a number, and which they are
        self._seen: dict[str, float] = {}  # last sign of life of each searcher
        self._loss = "none was lost"

    def advance(self, trained: Sequence[int], weights: Weights) -> None:
        """Groups have been trained on, and these are the weights now: one step, so that no group begins between."""
        with self.changed:
            self.ledger.commit(trained)
            for number in trained:
                del self._groups[number]
            kept = [entry for entry in self._weights if entry[0] > self.ledger.consumed] if self.fixed_lag else []
            self._weights = [*kept, (self.ledger.limit, weights)]
            self.changed.notify_all()

    def current(self) -> list[Weights]:
        """The weights that groups may be given out with from now on, until there are others."""
        with self.changed:
            return [weights for _, weights in self._weights]

    def lease(self, who: str, now: float) -> Job | None:
        """The next group for ``who``; None if there is nothing to do, or the search has ended."""
        with self.changed:
            self._seen[who] = now
            lease = self.ledger.lease(who, now) if self._weights and self.error is None else None
            if lease is None:
                return None
            if lease.attempt > ATTEMPTS:
                self.fail(
                    SearchError(
                        f"group {lease.number} was given to searchers {ATTEMPTS} times and did not come, the last time "
                        f"because {self._loss}: {self.ledger}"
                    )
                )
                return None
            return Job(lease.number, next(w for limit, w in self._weights if lease.number < limit))

    def put(self, who: str, number: int, group: Mapping[str, Any], now: float) -> bool:
        """A group, as tensors, from a searcher; False if it is there already."""
        with self.changed:
            self._seen[who] = now
            new = self.ledger.put(number)
            if new:
                self._groups[number] = group
                self.arrived += 1
            self.changed.notify_all()
            return new

    def lose(self, who: str, reason: str) -> None:
        """A searcher is gone; others make what it was making."""
        with self.changed:
            self._seen.pop(who, None)
            self._loss = reason
            self.ledger.lose(who)
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """The search has ended: whoever waits for groups is told why."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def ready(self, n: int) -> bool:
        """Whether the next ``n`` groups are there.

        Raises:
            Exception: the one that ended the search.
        """
        with self.changed:
            if self.error is not None:
                raise self.error
            return self.ledger.take(n) is not None

    def take(self, n: int) -> dict[int, Mapping[str, Any]]:
        """The next ``n`` groups by number; they stay until :meth:`advance` is told of them.

        Raises:
            SearchError: if they are not all there.
        """
        with self.changed:
            numbers = self.ledger.take(n)
            if numbers is None:
                raise SearchError(f"the next {n} groups are not all there: {self.ledger}")
            return {number: self._groups[number] for number in numbers}

    def wait_for_group(self, seconds: float) -> bool:
        """Until another group comes, or the search ends; False if neither happens in this time."""
        with self.changed:
            arrived = self.arrived
            return self.changed.wait_for(lambda: self.arrived > arrived or self.error is not None, seconds)

    def await_groups(self, n: int, timeout: float, stop: Callable[[], bool], status: Callable[[], str]) -> None:
        """Return when the next ``n`` groups are there.

        Args:
            n: number of groups.
            timeout: seconds without any group after which it is given up.
            stop: asked now and then; not with a fixed lag, whose checkpoints wait for groups, nor where other processes
                wait for this one.
            status: one line for messages.

        Raises:
            SearchError: if none comes for ``timeout`` seconds.
            Interrupted: if ``stop`` says so.
            Exception: the one that ended the search.
        """
        last = time.monotonic()
        asks = not self.fixed_lag and processes.count() == 1
        with self.changed:
            while not self.ready(n):
                if asks and stop():
                    raise Interrupted(f"asked to stop while the trainer waits for {n} groups: {status()}")
                if self.wait_for_group(min(GLANCE, timeout)):
                    last = time.monotonic()
                elif time.monotonic() - last >= timeout:
                    raise SearchError(
                        f"no group has come for timeout={timeout:g} s, and the trainer waits for {n}: {status()}; "
                        "where groups take so long, raise sampler.engine.timeout"
                    )

    def wait_for_work(self, seconds: float) -> None:
        """Until there is a group to make, or something else has happened, at most so long."""
        with self.changed:
            if not (self.ledger.open and self._weights):
                self.changed.wait(seconds)

    def status(self, now: float) -> str:
        """One line for messages: the ledger, and when each searcher was last heard of."""
        with self.changed:
            heard = ", ".join(f"{who} {now - then:.0f} s ago" for who, then in sorted(self._seen.items())) or "nobody"
            return f"{self.ledger}; heard of: {heard}; last loss: {self._loss}"

    def state_dict(self, trained: Sequence[int] = ()) -> dict[str, Any]:
        """All that a resumed run needs, as if groups ``trained`` had been told to :meth:`advance`."""
        with self.changed:
            ledger = Ledger(self.ledger.bound)
            ledger.load_state_dict(self.ledger.state_dict())
            ledger.commit(trained)
            groups = {number: dict(group) for number, group in sorted(self._groups.items()) if number not in trained}
            return {"ledger": ledger.state_dict(), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the hub that ``state`` is of; weights have to be published before anything is made."""
        with self.changed:
            self.ledger.load_state_dict(state["ledger"])
            self._groups = dict(state["groups"])
            self._weights = []
