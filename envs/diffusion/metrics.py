"""How far samples are from a target: pure functions."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def covered(mode: Tensor, count: int, share: float = 0.25) -> int:
    """How many of ``count`` equally likely modes have at least ``share`` of the samples due to them, and at least one.

    Args:
        mode: of each sample, −1 for none, long ``[N]``.
        count: how many there are.
        share: of N/count.
    """
    _, times = mode[mode >= 0].unique(return_counts=True)
    return int((times >= max(1.0, share * len(mode) / count)).sum())


def wasserstein(first: Tensor, second: Tensor) -> float:
    """2-Wasserstein distance of two samples of one size, ``[N, D]``: exact, by the cheapest assignment.

    It does not vanish between samples of one distribution: compare it with what those have.
    """
    cost = torch.cdist(first.double(), second.double()).square().cpu()
    rows, columns = linear_sum_assignment(cost.numpy())
    return float(cost[torch.as_tensor(rows), torch.as_tensor(columns)].mean().sqrt())
