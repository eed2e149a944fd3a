"""The ledger, by hand and in hundreds of random histories: every group once, in order, never too old."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from gfn.distributed.ledger import Lease, Ledger

EVENTS = ["lease", "lease", "lease", "put", "put", "again", "lose", "train", "train", "save", "crash"]


def finish(ledger: Ledger, numbers: list[int]) -> None:
    for number in numbers:
        assert ledger.put(number)


def test_numbers_are_consecutive_and_paced() -> None:
    ledger = Ledger(bound=3, time_limit=10)
    assert [ledger.lease("a", 0) for _ in range(4)] == [Lease(0, 10, 1), Lease(1, 10, 1), Lease(2, 10, 1), None]
    finish(ledger, [0, 1, 2])
    assert ledger.lease("a", 0) is None, "groups that are there and not trained on hold searchers back"
    ledger.commit([0, 1])
    assert (ledger.lease("a", 5), ledger.lease("b", 6)) == (Lease(3, 15, 1), Lease(4, 16, 1))
    assert ledger.lease("a", 6) is None


def test_groups_are_taken_in_order_and_stay_until_they_are_trained_on() -> None:
    ledger = Ledger(bound=4)
    for _ in range(4):
        ledger.lease("a", 0)
    finish(ledger, [1, 2, 3])
    assert ledger.take(2) is None, "group 0 is not there, and others do not pass it"
    finish(ledger, [0])
    assert ledger.take(2) == ledger.take(2) == [0, 1]
    assert ledger.waiting == 4
    ledger.commit([0, 1])
    assert (ledger.take(2), ledger.waiting, ledger.consumed) == ([2, 3], 2, 2)


def test_expired_leases_come_again_under_their_numbers_before_new_ones() -> None:
    ledger = Ledger(bound=9, time_limit=10)
    for who, now in (("a", 0), ("b", 1), ("a", 2)):
        ledger.lease(who, now)
    assert ledger.expire(9.5) == []
    assert ledger.lease("c", 11) == Lease(0, 21, 2), "0 and 1 are over"
    assert ledger.lose("c") == [0]
    assert ledger.lose("c") == []
    assert [ledger.lease("d", 11.5), ledger.lease("d", 11.5)] == [Lease(0, 21.5, 3), Lease(1, 21.5, 2)]
    assert ledger.lease("d", 11.5) == Lease(3, 21.5, 1)
    assert ledger.expired == 3


def test_the_first_answer_counts() -> None:
    ledger = Ledger(bound=2, time_limit=1)
    ledger.lease("slow", 0)
    assert ledger.lease("quick", 5) == Lease(0, 6, 2)
    assert ledger.put(0), "from whomever"
    assert not ledger.put(0)
    assert ledger.lease("quick", 7) == Lease(1, 8, 1), "what is there is not made again"
    finish(ledger, [1])
    ledger.commit([0, 1])
    assert not ledger.put(1), "not after it was trained on, either"
    assert (ledger.duplicates, ledger.waiting, ledger.consumed) == (2, 0, 2)


def test_an_answer_that_comes_too_late_and_before_any_other_counts() -> None:
    ledger = Ledger(bound=2, time_limit=1)
    ledger.lease("slow", 0)
    assert ledger.expire(5) == [0]
    assert ledger.put(0)
    assert ledger.lease("quick", 5) == Lease(1, 6, 1)


def test_what_was_being_made_is_made_again_after_a_restart() -> None:
    ledger = Ledger(bound=5, time_limit=1)
    for _ in range(5):
        ledger.lease("a", 0)
    finish(ledger, [0, 1, 3])
    ledger.put(3)
    ledger.commit([0])
    state = ledger.state_dict()
    assert state == {"next": 5, "consumed": 1, "done": [1, 3], "expired": 0, "duplicates": 1}
    again = Ledger(bound=5, time_limit=1)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert [again.lease("b", 0), again.lease("b", 0)] == [Lease(2, 1, 1), Lease(4, 1, 1)]
    assert again.lease("b", 0) == Lease(5, 1, 1)
    assert again.take(1) == [1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda ledger: ledger.put(2), "group 2 was never given out; 2 were"),
        (lambda ledger: ledger.put(-1), "group -1 was never given out"),
        (lambda ledger: ledger.take(4), "cannot take 4 groups; from 1 to bound=3"),
        (lambda ledger: ledger.take(0), "cannot take 0 groups"),
        (lambda ledger: ledger.commit([1]), r"cannot commit groups \[1\]; .* from 0 on"),
        (lambda ledger: ledger.commit([0, 1]), r"cannot commit groups \[0, 1\]"),
        (lambda ledger: Ledger(0), "must be positive, got bound=0"),
        (lambda ledger: Ledger(1, 0.0), "must be positive, got bound=1 time_limit=0.0"),
    ],
)
def test_mistakes_are_told(wrong, message: str) -> None:
    ledger = Ledger(bound=3)
    ledger.lease("a", 0)
    ledger.lease("a", 0)
    ledger.put(0)
    before = str(ledger)
    with pytest.raises(ValueError, match=message):
        wrong(ledger)
    assert str(ledger) == before


def test_messages_show_who_makes_what() -> None:
    ledger = Ledger(bound=4, time_limit=5)
    for who in ("a", "b", "c"):
        ledger.lease(who, 0)
    ledger.put(0)
    ledger.lose("c")
    assert str(ledger) == (
        "3 groups given out, 0 trained on, 1 waiting; being made: 1 with b; to be made again: [2]; "
        "1 leases expired, 0 duplicates"
    )


@pytest.mark.parametrize("block", range(8))
def test_random_histories(block: int) -> None:
    """Searchers that are slow, die, answer twice; trainers that crash and go on from what was saved."""
    for seed in range(50 * block, 50 * (block + 1)):
        _history(Random(seed))


def _history(random: Random) -> None:
    size, staleness = random.randint(1, 4), random.randint(0, 3)
    ledger = Ledger((staleness + 1) * size, time_limit=3)
    made: list[tuple[int, int]] = []  # answers on their way: the group, and the policy it is made with
    there: dict[int, int] = {}  # the policy each group was made with
    trained: list[list[int]] = []
    saved = (ledger.state_dict(), dict(there), 0)
    for now in range(120):
        event = random.choice(EVENTS)
        if event == "lease":
            lease = ledger.lease(random.choice("abc"), now)
            if lease is not None:
                assert lease.number < len(trained) * size + ledger.bound
                made.append((lease.number, len(trained)))
        elif event in ("put", "again") and made:
            number, version = made[random.randrange(len(made))]
            if event == "put":
                made.remove((number, version))
            if ledger.put(number):
                there[number] = version
        elif event == "lose":
            ledger.lose(random.choice("abc"))
        elif event == "train" and (numbers := ledger.take(size)) is not None:
            assert all(0 <= len(trained) - there[number] <= staleness for number in numbers)
            ledger.commit(numbers)
            trained.append(numbers)
        elif event == "save":
            saved = (ledger.state_dict(), dict(there), len(trained))
        elif event == "crash" and random.random() < 0.3:
            ledger, made = Ledger(ledger.bound, time_limit=3), []
            ledger.load_state_dict(saved[0])
            there, trained = dict(saved[1]), trained[: saved[2]]
        assert ledger.next - ledger.consumed <= ledger.bound
        assert ledger.consumed == size * len(trained)
    for _ in range(20):  # whatever has happened, it goes on
        while (lease := ledger.lease("last", 1000)) is not None:
            ledger.put(lease.number)
        numbers = ledger.take(size)
        if numbers is None:
            ledger.expire(2000)
            continue
        ledger.commit(numbers)
        trained.append(numbers)
    counted = Counter(number for numbers in trained for number in numbers)
    assert counted == Counter(range(ledger.consumed))
    assert len(trained) >= 18
