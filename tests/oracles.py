"""The six-outcome problem, and members of the f family with their exact values, float64 throughout.

Tables list members as they are commonly written; ``Member.norm`` is the factor to f''(1) = 1, by
which every value of the class ``Member.divergence`` is larger than that of the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gfn.objectives import (
    Alpha,
    Divergence,
    Huber,
    Jeffreys,
    JensenShannon,
    LogCosh,
    Scores,
    ShiftedCosh,
    TotalVariation,
)


def f64(*values: float) -> Tensor:
    """A float64 vector."""
    return torch.tensor(values, dtype=torch.float64)


THETA = f64(0.3, -1.2, 0.8, 0.0, -0.5, 1.1)
LOG_R = f64(1.0, 0.2, -0.7, 1.5, -2.0, 0.4)
LOG_Z = LOG_R.logsumexp(0)
LOG_Q = LOG_R - LOG_Z
LOG_P = THETA.log_softmax(0)
P, Q = LOG_P.exp(), LOG_Q.exp()
DELTA = LOG_P - LOG_Q


@dataclass(frozen=True)
class Member:
    """A divergence and the factor between it and its tables."""

    divergence: Divergence
    norm: float = 1.0


MEMBERS = {
    "alpha=-1": Member(Alpha(-1.0)),
    "alpha=0": Member(Alpha(0.0)),
    "alpha=.5": Member(Alpha(0.5)),
    "alpha=.75": Member(Alpha(0.75)),
    "alpha=1": Member(Alpha(1.0)),
    "alpha=1.2": Member(Alpha(1.2)),
    "alpha=2": Member(Alpha(2.0)),
    "alpha=3": Member(Alpha(3.0)),
    "js": Member(JensenShannon(0.5), 4),
    "js.25": Member(JensenShannon(0.25), 16 / 3),
    "js.9": Member(JensenShannon(0.9), 100 / 9),
    "jeffreys": Member(Jeffreys(), 0.5),
    "cosh": Member(ShiftedCosh(), 0.5),
    "huber": Member(Huber(1.0)),
    "logcosh": Member(LogCosh(), 2),
    "tv": Member(TotalVariation()),
}
SMOOTH = {name: member.divergence for name, member in MEMBERS.items() if name not in ("tv", "huber")}
ALPHAS = {name: member.divergence.settings()["alpha"] for name, member in MEMBERS.items() if "alpha" in name}


def gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Gradient of a scalar function by autograd."""
    x = at.detach().clone().requires_grad_()
    (result,) = torch.autograd.grad(function(x), x)
    return result


def divergence_gradient(divergence: Divergence) -> Tensor:
    """∇_θ D_f(softmax(θ)‖q) on the six outcomes, from the definition."""
    return gradient(lambda t: (Q * divergence.generator(t.softmax(0) / Q)).sum(), THETA)


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two vectors."""
    return float(a @ b / (a.norm() * b.norm()))


def scores(excess: Tensor, group: Tensor | None = None, log_reward: Tensor | None = None) -> Scores:
    """Scores of one-step trajectories with a given excess, rewards zero or given."""
    log_reward = torch.zeros_like(excess) if log_reward is None else log_reward
    return Scores(
        log_pf=(excess + log_reward).unsqueeze(1),
        log_pb=torch.zeros_like(excess).unsqueeze(1),
        mask=torch.ones(len(excess), 1, dtype=torch.bool),
        log_reward=log_reward,
        group=torch.zeros(len(excess), dtype=torch.long) if group is None else group,
        initial=None,
        log_behaviour=torch.zeros_like(excess).unsqueeze(1),
        weight=torch.ones_like(excess),
    )
