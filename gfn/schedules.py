"""Schedules: frozen functions from a training step to a number, so a resumed run needs nothing saved.

Wherever a number may vary over training, a plain number and a schedule are both welcome; the
value in force is ``value_at(number_or_schedule, step)``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


class Schedule(ABC):
    """A number that depends on the training step."""

    @abstractmethod
    def __call__(self, step: int) -> float:
        """The value at ``step`` (0 is the first update)."""


Number = float | Schedule


def value_at(number: Number, step: int) -> float:
    """The value in force at ``step``: the number itself, or the schedule's value."""
    return number(step) if isinstance(number, Schedule) else float(number)


def _fraction(step: int, steps: int) -> float:
    return min(max(step / steps, 0.0), 1.0)


def _require_steps(schedule: Schedule, steps: int) -> None:
    if steps < 1:
        raise ValueError(f"{type(schedule).__name__}: steps must be at least 1, got {steps}")


@dataclass(frozen=True)
class Constant(Schedule):
    """Always ``value``."""

    value: float

    def __call__(self, step: int) -> float:
        return self.value


@dataclass(frozen=True)
class Linear(Schedule):
    """From ``start`` to ``end`` in a straight line over ``steps`` steps, then ``end``."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _require_steps(self, self.steps)

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * _fraction(step, self.steps)


@dataclass(frozen=True)
class Cosine(Schedule):
    """From ``start`` to ``end`` along half a cosine over ``steps`` steps, then ``end``."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _require_steps(self, self.steps)

    def __call__(self, step: int) -> float:
        weight = (1 - math.cos(math.pi * _fraction(step, self.steps))) / 2
        return self.start + (self.end - self.start) * weight


@dataclass(frozen=True)
class Exponential(Schedule):
    """From ``start`` to ``end`` by a constant factor per step over ``steps`` steps, then ``end``.

    Raises:
        ValueError: unless ``start`` and ``end`` are both non-zero and of the same sign.
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _require_steps(self, self.steps)
        if not self.start * self.end > 0:
            raise ValueError(
                f"Exponential: start and end must be non-zero and of one sign, got {self.start} and {self.end}; "
                "use Linear to reach or cross zero"
            )

    def __call__(self, step: int) -> float:
        return self.start * (self.end / self.start) ** _fraction(step, self.steps)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """``values[0]`` before ``boundaries[0]``, ``values[1]`` from there to ``boundaries[1]``, and so on.

    Raises:
        ValueError: unless there is one value more than boundaries, and boundaries ascend.
    """

    boundaries: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"Piecewise: expected one value more than boundaries, "
                f"got {len(self.values)} values and {len(self.boundaries)} boundaries"
            )
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ValueError(f"Piecewise: boundaries must ascend, got {list(self.boundaries)}")

    def __call__(self, step: int) -> float:
        return self.values[sum(step >= boundary for boundary in self.boundaries)]


@dataclass(frozen=True)
class Cyclic(Schedule):
    """From ``start`` to ``end`` and back to ``start`` along a cosine, again every ``period`` steps."""

    start: float
    end: float
    period: int

    def __post_init__(self) -> None:
        if self.period < 2:
            raise ValueError(f"Cyclic: period must be at least 2 steps, got {self.period}")

    def __call__(self, step: int) -> float:
        weight = (1 - math.cos(2 * math.pi * (step % self.period) / self.period)) / 2
        return self.start + (self.end - self.start) * weight
