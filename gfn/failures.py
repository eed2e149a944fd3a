"""What stops a run: numbers that are not finite, and where they come from."""

from __future__ import annotations

from typing import TypeVar

import torch

from gfn.objectives import Learner
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class NonFiniteError(RuntimeError):
    """A loss, gradient or parameter is not finite; nothing was updated."""


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
