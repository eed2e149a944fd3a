"""Balance conditions: pure functions from log-probabilities to residuals, model minus target.

A residual is zero where the condition holds and comes with a non-negative weight; the loss of a
batch is ``sum(weight * L(residual)) / B``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Stands for log 0 of a reward of zero: e^(−10⁶) is zero in any arithmetic, and differences with it stay finite.
LOG_OF_ZERO = -1e6


@dataclass(frozen=True)
class Scores:
    """All that a balance condition and a partition may look at: B trajectories, padded to T steps.

    Attributes:
        log_pf: log P_F of each step, ``[B, T]``, zero after the end.
        log_pb: log P_B of each step, ``[B, T]``, zero after the end.
        mask: which entries are steps, bool ``[B, T]``.
        log_reward: log R of each final state, LOG_OF_ZERO for a reward of zero, ``[B]``.
        group: trajectories that share an initial state, long ``[B]``.
        initial: the initial states, B of them.
    """

    log_pf: Tensor
    log_pb: Tensor
    mask: Tensor
    log_reward: Tensor
    group: Tensor
    initial: Any

    @property
    def excess(self) -> Tensor:
        """Δ without its log Z: log P_F(τ) − log P_B(τ|x) − log R(x), float64 ``[B]``."""
        return (self.log_pf - self.log_pb).double().sum(1) - self.log_reward.double()


# From scores and log Z of each trajectory, [B], to residuals and their weights, both [B, ...].
Balance = Callable[[Scores, Tensor], tuple[Tensor, Tensor]]


def trajectory_balance(scores: Scores, log_z: Tensor) -> tuple[Tensor, Tensor]:
    """Δ(τ) = log Z + log P_F(τ) − log P_B(τ|x) − log R(x), one a trajectory (Malkin et al. 2022, arXiv:2201.13259)."""
    residual = scores.excess + log_z
    return residual, torch.ones_like(residual)
