"""Flat ragged trajectories against plain lists of lists."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gfn.trajectories import Trajectories, order_by_trajectory

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
