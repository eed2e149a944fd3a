"""Schedules at their ends, between and beyond, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from gfn.schedules import Constant, Cosine, Cyclic, Exponential, Linear, Piecewise, Schedule, value_at

# schedule, and its value at some steps
VALUES: list[tuple[Schedule, dict[int, float]]] = [
    (Constant(0.3), {0: 0.3, 1: 0.3, 10**9: 0.3}),
    (Linear(1.0, 3.0, 10), {-5: 1.0, 0: 1.0, 1: 1.2, 5: 2.0, 10: 3.0, 11: 3.0}),
    (Linear(2.0, -2.0, 1), {0: 2.0, 1: -2.0, 2: -2.0}),
    (Cosine(1.0, 3.0, 12), {-1: 1.0, 0: 1.0, 4: 1.5, 6: 2.0, 8: 2.5, 12: 3.0, 99: 3.0}),
    (Exponential(1.0, 1e-4, 8), {0: 1.0, 2: 0.1, 4: 0.01, 8: 1e-4, 9: 1e-4}),
    (Exponential(-1.0, -4.0, 2), {0: -1.0, 1: -2.0, 2: -4.0}),
    (Piecewise([10, 20], [1.0, 0.5, 0.1]), {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.1, 99: 0.1}),
    (Piecewise([], [0.7]), {0: 0.7, 5: 0.7}),
    (Cyclic(1.0, 3.0, 2), {0: 1.0, 1: 3.0, 2: 1.0}),
    (Cyclic(1.0, 3.0, 12), {0: 1.0, 2: 1.5, 6: 3.0, 10: 1.5, 12: 1.0, 18: 3.0, 26: 1.5}),
]


@pytest.mark.parametrize(("schedule", "values"), VALUES, ids=lambda x: repr(x) if isinstance(x, Schedule) else "")
def test_values(schedule: Schedule, values: dict[int, float]) -> None:
    for step, value in values.items():
        assert schedule(step) == pytest.approx(value, rel=1e-12), step
        assert value_at(schedule, step) == schedule(step)


@pytest.mark.parametrize("kind", [Linear, Cosine, Exponential])
def test_ends_are_reached_exactly(kind: Callable[..., Schedule]) -> None:
    schedule = kind(0.1, 0.7, 7)
    assert schedule(0) == 0.1
    assert schedule(7) == schedule(8) == pytest.approx(0.7, rel=1e-15)


def test_a_number_stands_for_itself() -> None:
    assert value_at(0.25, 3) == 0.25
    assert isinstance(value_at(1, 3), float)


@pytest.mark.parametrize("kind", [Linear, Cosine, Exponential])
@pytest.mark.parametrize("steps", [0, -3])
def test_steps_are_positive(kind: Callable[..., Schedule], steps: int) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__}: steps must be at least 1, got {steps}"):
        kind(1.0, 2.0, steps)


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.nan, 1.0)])
def test_exponentials_neither_reach_nor_cross_zero(start: float, end: float) -> None:
    with pytest.raises(ValueError, match="use Linear to reach or cross zero"):
        Exponential(start, end, 10)


def test_pieces_have_a_value_more_than_boundaries() -> None:
    with pytest.raises(ValueError, match="got 2 values and 2 boundaries"):
        Piecewise([1, 2], [0.1, 0.2])


@pytest.mark.parametrize("boundaries", [[2, 1], [1, 1]])
def test_boundaries_ascend(boundaries: list[int]) -> None:
    with pytest.raises(ValueError, match="boundaries must ascend"):
        Piecewise(boundaries, [0.1, 0.2, 0.3])


def test_a_cycle_has_two_steps_at_least() -> None:
    with pytest.raises(ValueError, match="period must be at least 2 steps, got 1"):
        Cyclic(0.0, 1.0, 1)
