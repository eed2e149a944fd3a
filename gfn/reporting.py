"""What is told of a training run, and who is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gfn.examples import Example


@dataclass(frozen=True)
class Report:
    """What callbacks are told after an update.

    Attributes:
        step, steps: number of updates done, and in all.
        trajectories: number of trajectories trained on.
        metrics: of this update's batch.
        evaluation: of the policy now, or None if this is not a step to evaluate at.
        examples: some of the states that the evaluation looked at.
    """

    step: int
    steps: int
    trajectories: int
    metrics: Mapping[str, float]
    evaluation: Mapping[str, float] | None
    examples: Sequence[Example] = ()


class Callback(Protocol):
    """Sees every report; cannot steer.

    ``close`` is called on every way out, also when ``start`` or another callback has failed.
    """

    def start(self, step: int) -> None:
        """Training begins, or goes on, after ``step`` updates."""
        ...

    def __call__(self, report: Report) -> None: ...

    def close(self) -> None:
        """Training is over, for whatever reason."""
        ...


@runtime_checkable
class Durable(Protocol):
    """A callback that keeps what it was told in a file."""

    def sync(self) -> None:
        """Have it outlive a machine that stops at once: a checkpoint is about to count it as told."""
        ...


def sync(callbacks: Sequence[Callback]) -> None:
    """Have all that was told outlive a machine that stops at once.

    Raises:
        OSError: if a file cannot be written.
    """
    for callback in callbacks:
        if isinstance(callback, Durable):
            callback.sync()
