"""What stops a run: numbers that are not finite, and where they come from."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from gfn import checkpoint, processes
from gfn.environment import RewardError
from gfn.objectives import Learner
from gfn.states import States, to_tensors
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class NonFiniteError(RuntimeError):
    """A loss, gradient or parameter is not finite; nothing was updated."""


@contextmanager
def recorded(directory: Path | None, step: int) -> Generator[list[Trajectories[Any]]]:
    """Make an update; if it fails by its numbers, ``failure.pt`` keeps what it was made of beside the checkpoints.

    The file is a checkpoint: its ``trajectories`` are for :meth:`Trajectories.from_tensors`. If a reward failed before
    there were any, its ``states`` are those that were to be rewarded, for :func:`gfn.states.from_tensors`.

    Args:
        directory: of the checkpoints; None keeps nothing.
        step: updates done before this one.

    Yields:
        A list for the batch, as soon as there is one.
    """
    batches: list[Trajectories[Any]] = []
    try:
        yield batches
    except (NonFiniteError, RewardError) as error:
        if directory is not None:
            with suppress(checkpoint.CheckpointError, TypeError):  # the error itself is what matters
                _keep(directory, step, error, batches)
        raise


def _keep(directory: Path, step: int, error: NonFiniteError | RewardError, batches: list[Trajectories[Any]]) -> None:
    kept: dict[str, Any] = {"step": step, "cause": str(error)}
    if batches:
        kept["trajectories"] = batches[0].tensors()
    elif isinstance(error, RewardError) and error.states is not None:
        kept["states"] = to_tensors(error.states)
    else:
        return
    path = directory / ("failure.pt" if processes.rank() == 0 else f"failure_{processes.rank()}.pt")
    checkpoint.save(path, kept)
    error.add_note(f"what it was made of is in {path}")


def broken_parameters(objective: Learner[S]) -> list[str]:
    """Names of the parameters that are not finite."""
    return [name for name, p in objective.named_parameters() if not bool(p.isfinite().all())]


@torch.no_grad()
def cause_of_loss(objective: Learner[S], batch: Trajectories[S]) -> str:
    """The first thing found that a loss which is not finite can come from."""
    broken = broken_parameters(objective)
    if broken:
        return f"parameter {broken[0]} is not finite"
    scores = objective.scores(batch)
    for name, table in (("log P_F", scores.log_pf), ("log P_B", scores.log_pb)):
        bad = (~table.isfinite()).nonzero()
        if len(bad) > 0:
            row, column = bad[0].tolist()
            return f"{name} of step {column} of trajectory {row} is {float(table[row, column])}"
    return "log P_F, log P_B and the parameters are finite, so it comes from log Z or the divergence"


def cause_of_gradient(objective: Learner[S]) -> str:
    """Which parameters have a gradient that is not finite, or the largest one if their norm overflows."""
    gradients = {name: p.grad for name, p in objective.named_parameters() if p.grad is not None}
    bad = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
    if bad:
        return f"that of {', '.join(bad[:5])}" + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
    largest = max(gradients, key=lambda name: float(gradients[name].abs().max()))
    return f"its norm overflows, with entries up to {float(gradients[largest].abs().max()):.3g} in that of {largest}"
