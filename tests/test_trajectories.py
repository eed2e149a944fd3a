"""Flat ragged trajectories against plain lists of lists."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gfn.states import fingerprints
from gfn.trajectories import Trajectories, chosen, order_by_trajectory

LENGTHS = [3, 1, 4, 2]


class Plain(NamedTuple):
    """One trajectory as lists."""

    states: list[int]
    actions: list[list[int]]
    log_prob: list[float]
    log_reward: float
    group: int
    version: int


def plain(lengths: list[int] = LENGTHS) -> list[Plain]:
    """State 100·b + t at time t of trajectory b, and values that tell them apart everywhere else."""
    return [
        Plain(
            states=[100 * b + t for t in range(length + 1)],
            actions=[[b, t] for t in range(length)],
            log_prob=[-b - t / 10 for t in range(length)],
            log_reward=float(-b),
            group=b // 2,
            version=10 + b,
        )
        for b, length in enumerate(lengths)
    ]


def packed(parts: list[Plain]) -> Trajectories[Tensor]:
    return Trajectories(
        states=torch.tensor([s for p in parts for s in p.states]),
        actions=torch.tensor([a for p in parts for a in p.actions]),
        lengths=torch.tensor([len(p.actions) for p in parts]),
        log_reward=torch.tensor([p.log_reward for p in parts]),
        group=torch.tensor([p.group for p in parts]),
        behaviour_log_prob=torch.tensor([x for p in parts for x in p.log_prob]),
        policy_version=torch.tensor([p.version for p in parts]),
    )


def assert_same(given: Trajectories[Tensor], wanted: list[Plain]) -> None:
    for name, value in vars(packed(wanted)).items():
        assert getattr(given, name).tolist() == value.tolist(), name


def test_states_before_and_after_each_step() -> None:
    t, parts = packed(plain()), plain()
    assert len(t) == 4
    assert t.sources.tolist() == [s for p in parts for s in p.states[:-1]]
    assert t.targets.tolist() == [s for p in parts for s in p.states[1:]]
    assert t.initial.tolist() == [p.states[0] for p in parts]
    assert t.final.tolist() == [p.states[-1] for p in parts]


def test_row_and_column_of_each_step() -> None:
    t = packed(plain())
    assert t.row.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
    assert t.column.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 0, 1]


def test_padding_lays_steps_and_states_out_in_rows() -> None:
    t = packed(plain())
    assert t.mask.tolist() == [[time < length for time in range(4)] for length in LENGTHS]
    steps = torch.arange(1.0, 11.0)
    assert t.pad(steps).tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8], [9, 10, 0, 0]]
    assert t.pad_states(t.states + 1).tolist() == [
        [1, 2, 3, 4, 0],
        [101, 102, 0, 0, 0],
        [201, 202, 203, 204, 205],
        [301, 302, 303, 0, 0],
    ]


def test_padding_carries_gradients_to_each_step() -> None:
    t = packed(plain())
    values = torch.zeros(10, requires_grad=True)
    (t.pad(values).sum(1) * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [1, 1, 1, 2, 3, 3, 3, 3, 4, 4]


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (torch.tensor([2, 0]), [2, 0]),
        (torch.tensor([1, 1, 3]), [1, 1, 3]),
        (torch.tensor([-1]), [3]),
        (torch.tensor([True, False, False, True]), [0, 3]),
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2]),
    ],
)
def test_trajectories_are_selected_whole(index: Tensor | slice, rows: list[int]) -> None:
    assert_same(packed(plain())[index], [plain()[row] for row in rows])


def test_no_trajectories_may_be_selected() -> None:
    nothing = packed(plain())[torch.zeros(4, dtype=torch.bool)]
    assert len(nothing) == len(nothing.actions) == len(nothing.states) == 0


def test_reversal_turns_each_trajectory_round() -> None:
    turned = [p._replace(states=p.states[::-1], actions=p.actions[::-1], log_prob=p.log_prob[::-1]) for p in plain()]
    assert_same(packed(plain()).reversed(), turned)
    assert_same(packed(plain()).reversed().reversed(), plain())


def test_joined_groups_stay_apart() -> None:
    one, two, three = packed(plain()), packed(plain([2])), packed(plain([1, 1, 1]))
    whole = Trajectories.cat([one, two, three])
    wanted = [*plain(), *plain([2]), *plain([1, 1, 1])]
    groups = [0, 0, 1, 1, 2, 3, 3, 4]
    assert_same(whole, [p._replace(group=group) for p, group in zip(wanted, groups, strict=True)])


def test_values_by_step_are_put_in_order_of_trajectories() -> None:
    # Trajectory 1 ends after one step, 0 after two, 2 after three.
    alive = [torch.tensor([0, 1, 2]), torch.tensor([0, 2]), torch.tensor([2])]
    by_step = ["0 at 0", "1 at 0", "2 at 0", "0 at 1", "2 at 1", "2 at 2"]
    ordered = [by_step[i] for i in order_by_trajectory(alive).tolist()]
    assert ordered == ["0 at 0", "0 at 1", "1 at 0", "2 at 0", "2 at 1", "2 at 2"]


def test_the_order_in_time_is_kept_in_large_batches() -> None:
    lengths = torch.randint(1, 20, (200,))
    alive = [(lengths > time).nonzero().squeeze(1) for time in range(20)]
    by_step = torch.cat([rows * 100 + time for time, rows in enumerate(alive)])
    assert by_step[order_by_trajectory(alive)].equal(by_step.sort().values)


def test_states_at_a_time() -> None:
    assert packed(plain()).at(torch.tensor([0, 1, 4, 1])).tolist() == [0, 101, 204, 301]


def test_splicing_keeps_a_beginning_and_adds_the_rest() -> None:
    # The first 2, 0, 3 and 1 steps; what comes after begins where they end.
    kept = [2, 0, 3, 1]
    rest = [
        one._replace(states=[old.states[k], *one.states[1:]], log_reward=7.0 + b, version=50 + b)
        for b, (one, old, k) in enumerate(zip(plain([1, 2, 3, 1]), plain(), kept, strict=True))
    ]
    wanted = [
        old._replace(
            states=old.states[:k] + new.states,
            actions=old.actions[:k] + new.actions,
            log_prob=old.log_prob[:k] + new.log_prob,
            log_reward=new.log_reward,
            version=new.version,
        )
        for old, new, k in zip(plain(), rest, kept, strict=True)
    ]
    assert_same(packed(plain()).spliced(torch.tensor(kept), packed(rest)), wanted)


def test_each_trajectory_is_chosen_from_one_of_two_batches() -> None:
    other = [one._replace(version=99) for one in plain([1, 2, 1, 4])]
    which = torch.tensor([True, False, False, True])
    wanted = [a if w else b._replace(group=a.group) for a, b, w in zip(plain(), other, which.tolist(), strict=True)]
    assert_same(chosen(which, packed(plain()), packed(other)), wanted)


def test_trajectories_are_written_as_tensors_and_read_back() -> None:
    t = packed(plain())
    again = Trajectories.from_tensors(t.tensors(), torch.zeros(1, dtype=torch.long))
    assert_same(again, plain())
    moved = t.to("meta")
    assert {str(x.device) for x in vars(moved).values()} == {"meta"}


def test_grouping_by_initial_state() -> None:
    parts = [one._replace(group=b) for b, one in enumerate(plain())]
    parts = [one._replace(states=[one.states[0] % 200, *one.states[1:]]) for one in parts]  # 0 100 0 100
    group = packed(parts).grouped_by_initial().group.tolist()
    assert group[0] == group[2] != group[1] == group[3]


def test_joining_takes_the_widest_type_and_leaves_empty_batches_out_of_the_count() -> None:
    t = packed(plain())
    precise = replace(packed(plain()), log_reward=torch.full((4,), 1 / 3, dtype=torch.float64))
    whole = Trajectories.cat([t, t[:0], precise])
    assert whole.log_reward.dtype == torch.float64
    assert whole.log_reward[-1] == 1 / 3, "no digit is lost"
    assert whole.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(Trajectories.cat([t[:0], t[:0]])) == 0


def test_parts_on_different_devices_are_refused() -> None:
    t = packed(plain())
    with pytest.raises(ValueError, match=r"expected parts on one device, got \['cpu', 'meta'\]"):
        Trajectories.cat([t, t.to("meta")])


def test_fingerprints_tell_states_apart_and_depend_on_nothing_else() -> None:
    states = torch.tensor([[1, 2], [2, 1], [1, 2], [0, 0]])
    marks = fingerprints(states).tolist()
    assert marks[0] == marks[2]
    assert len(set(marks)) == 3
    assert fingerprints(states[3:]).tolist() == marks[3:]
    many = fingerprints(torch.arange(20000))
    assert len(many.unique()) == 20000
    assert (many < 0).double().mean() == pytest.approx(0.5, abs=0.02)
