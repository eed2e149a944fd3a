"""Advantages and surrogates of policy gradients: pure functions of tables with one trajectory a row."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gfn.objectives.divergence import bounded_exp

Baseline = Literal["none", "batch", "group", "leave_one_out", "value"]
EPSILON = 1e-6  # added to a standard deviation that is divided by


def compared(returns: Tensor, group: Tensor, baseline: Baseline, standardise: bool) -> Tensor:
    """Returns ``[B]`` minus a baseline made of other returns, ``[B]``.

    Args:
        group: which trajectories share an initial state, long ``[B]``.
        baseline: the mean of the ``batch``, of the trajectory's ``group``, or of the others in it
            (``leave_one_out``: Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740); or ``none``.
        standardise: divide by the standard deviation, with n − 1 in its denominator, of the returns in
            the group, or in the batch where the baseline does not look at groups.
    """
    whole = torch.zeros_like(group)
    row = group.unique(return_inverse=True)[1] if baseline in ("group", "leave_one_out") else whole
    count = torch.bincount(row).to(returns.dtype)
    mean = torch.zeros_like(count).index_add(0, row, returns) / count
    centred = returns - mean[row]
    if baseline == "leave_one_out":
        advantage = centred * (count / (count - 1))[row]  # r − (n r̄ − r)/(n − 1)
    else:
        advantage = returns if baseline == "none" else centred
    if not standardise:
        return advantage
    variance = torch.zeros_like(count).index_add(0, row, centred.square()) / (count - 1).clamp(min=1)
    return advantage / (variance.sqrt() + EPSILON)[row]


def generalised_advantage(reward: Tensor, value: Tensor, decay: float) -> Tensor:
    """Σ_l λ^l (r_{t+l} + V(s_{t+l+1}) − V(s_{t+l})), undiscounted (Schulman et al. 2016, arXiv:1506.02438).

    Args:
        reward: of each step, zero after the end, ``[B, T]``.
        value: of the state before each step, zero after the end, ``[B, T]``.
        decay: λ; 0 trusts the values, 1 the rewards.
    """
    following = torch.cat([value[:, 1:], torch.zeros_like(value[:, :1])], 1)
    surprise = reward + following - value
    advantage = torch.zeros_like(surprise)
    running = torch.zeros_like(surprise[:, 0])
    for time in reversed(range(surprise.shape[1])):
        running = surprise[:, time] + decay * running
        advantage[:, time] = running
    return advantage


def standardised(advantage: Tensor, mask: Tensor) -> Tensor:
    """Advantages of steps with mean 0 and standard deviation 1 over all steps of the batch, ``[B, T]``."""
    steps = mask.sum()
    centred = (advantage - (advantage * mask).sum() / steps) * mask
    return centred / ((centred.square().sum() / (steps - 1).clamp(min=1)).sqrt() + EPSILON)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor, Tensor]:
    """min(ρA, clip(ρ, 1 − low, 1 + high)·A) of each step (Schulman et al. 2017, arXiv:1707.06347).

    Args:
        log_ratio: log ρ, the current minus the behaviour policy's log-probability.

    Returns:
        The surrogate, its derivative with respect to log ρ, and where the clip holds it constant.
    """
    ratio = bounded_exp(log_ratio)
    clipped = torch.where(advantage > 0, ratio > 1 + high, (ratio < 1 - low) & (advantage < 0))
    value = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return value, (ratio * advantage).masked_fill(clipped, 0.0), clipped
