"""The ledger: which groups of trajectories are to be made, are being made, are there, and have been trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lease:
    """The right to make one group, for some time.

    Attributes:
        number: of the group, consecutive from 0.
        deadline: when the group is given to somebody else.
        attempt: how often it has been given out, from 1.
    """

    number: int
    deadline: float
    attempt: int


@dataclass(frozen=True)
class _Holder:
    who: str
    deadline: float


class Ledger:
    """Each group is made, taken and trained on once, in the order of the numbers, whatever happens to searchers.

    A number is given out only while fewer than ``bound`` numbers are given out and not trained on. Groups are taken
    strictly in order, rather than as they come in, for two reasons: the group taken at place n was given out after
    group n − bound had been trained on, which bounds its age; and short trajectories, which are ready sooner, are not
    trained on more often than they are sampled.

    A group that does not come in time is given out again under the same number, before any new one. The first answer
    counts, later ones are duplicates. There are no clocks here: whoever asks says what time it is.

    Args:
        bound: numbers given out and not trained on, at most.
        time_limit: how long a lease lasts.

    Attributes:
        next: first number that was never given out, that is, how many were.
        consumed: first number that was not trained on, that is, how many were.
        expired: leases that ended without a group.
        duplicates: groups that came again.

    Raises:
        ValueError: unless both are positive.
    """

    def __init__(self, bound: int, time_limit: float = float("inf")) -> None:
        if bound < 1 or not time_limit > 0:
            raise ValueError(f"Ledger: bound and time_limit must be positive, got {bound=} {time_limit=}")
        self.bound, self.time_limit = bound, time_limit
        self.next = self.consumed = self.expired = self.duplicates = 0
        self._leased: dict[int, _Holder] = {}
        self._orphans: set[int] = set()  # given out once, and nobody makes them
        self._done: set[int] = set()  # there, and not trained on
        self._attempts: dict[int, int] = {}  # of what is not there

    @property
    def waiting(self) -> int:
        """Groups that are there and not trained on."""
        return len(self._done)

    @property
    def limit(self) -> int:
        """First number that must not be given out yet."""
        return self.consumed + self.bound

    @property
    def open(self) -> bool:
        """Whether there is a group to make for whoever asks."""
        return bool(self._orphans) or self.next < self.limit

    def lease(self, who: str, now: float) -> Lease | None:
        """The next group for ``who`` to make; None while others are not trained on."""
        self.expire(now)
        if self._orphans:
            number = min(self._orphans)
            self._orphans.remove(number)
        elif self.next < self.limit:
            number = self.next
            self.next += 1
        else:
            return None
        self._attempts[number] = self._attempts.get(number, 0) + 1
        self._leased[number] = _Holder(who, now + self.time_limit)
        return Lease(number, now + self.time_limit, self._attempts[number])

    def expire(self, now: float) -> list[int]:
        """Take back the leases whose time is over; their numbers."""
        return self._withdraw([number for number, holder in self._leased.items() if holder.deadline <= now])

    def lose(self, who: str) -> list[int]:
        """Take back the leases of a searcher that is gone; their numbers."""
        return self._withdraw([number for number, holder in self._leased.items() if holder.who == who])

    def _withdraw(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            del self._leased[number]
        self._orphans.update(numbers)
        self.expired += len(numbers)
        return numbers

    def put(self, number: int) -> bool:
        """Note that a group is there; False if it was there before.

        Raises:
            ValueError: if the number was never given out.
        """
        if not 0 <= number < self.next:
            raise ValueError(f"Ledger: group {number} was never given out; {self.next} were, from 0 on")
        if number < self.consumed or number in self._done:
            self.duplicates += 1
            return False
        self._leased.pop(number, None)
        self._orphans.discard(number)
        del self._attempts[number]
        self._done.add(number)
        return True

    def take(self, n: int) -> list[int] | None:
        """The first ``n`` numbers that were not trained on, if all are there; they stay until :meth:`commit`.

        Raises:
            ValueError: if so many can never be there.
        """
        if not 1 <= n <= self.bound:
            raise ValueError(f"Ledger: cannot take {n} groups; from 1 to bound={self.bound} can be there at once")
        numbers = list(range(self.consumed, self.consumed + n))
        return numbers if self._done.issuperset(numbers) else None

    def commit(self, numbers: Sequence[int]) -> None:
        """Note that groups, which :meth:`take` gave, have been trained on.

        Raises:
            ValueError: if they are others than the first ones, or not all there.
        """
        first = list(range(self.consumed, self.consumed + len(numbers)))
        if list(numbers) != first or not self._done.issuperset(first):
            raise ValueError(
                f"Ledger: cannot commit groups {list(numbers)}; expected the first ones that were not trained on, "
                f"from {self.consumed} on, all of them there"
            )
        self._done.difference_update(first)
        self.consumed += len(first)

    def state_dict(self) -> dict[str, Any]:
        """Plain values. Who had which lease is left out: those searchers do not outlive the run."""
        return {
            "next": self.next,
            "consumed": self.consumed,
            "done": sorted(self._done),
            "expired": self.expired,
            "duplicates": self.duplicates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the ledger that ``state`` is of; what was being made is given out again, first."""
        self.next, self.consumed = state["next"], state["consumed"]
        self.expired, self.duplicates = state["expired"], state["duplicates"]
        self._done = set(state["done"])
        self._orphans = set(range(self.consumed, self.next)) - self._done
        self._leased, self._attempts = {}, dict.fromkeys(self._orphans, 0)

    def __str__(self) -> str:
        held = ", ".join(f"{number} with {holder.who}" for number, holder in sorted(self._leased.items())) or "none"
        return (
            f"{self.next} groups given out, {self.consumed} trained on, {len(self._done)} waiting; being made: {held}; "
            f"to be made again: {sorted(self._orphans)}; {self.expired} leases expired, {self.duplicates} duplicates"
        )
