"""Balance conditions: pure functions from log-probabilities to residuals, model minus target.

A residual is zero where the condition holds and comes with a non-negative weight; the loss of a
batch is ``sum(weight * L(residual)) / B``. Every divergence and every partition goes with each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

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
        log_behaviour: log-probability of each step when it was sampled, ``[B, T]``, zero after the end.
        weight: importance of each trajectory, mean one in each group, ``[B]``.
        log_flow: log F of each state, log R at the final one, zero after it, ``[B, T + 1]``; or None.
        log_inflow: log of the edge flows into the state after each step, ``[B, T]``; or None.
        log_walk: log P_B of a walk back from each final state, drawn for P_B to learn from, ``[B]``; or None.
        returned: whether that walk reached an initial state, float ``[B]``; or None.
    """

    log_pf: Tensor
    log_pb: Tensor
    mask: Tensor
    log_reward: Tensor
    group: Tensor
    initial: Any
    log_behaviour: Tensor
    weight: Tensor
    log_flow: Tensor | None = None
    log_inflow: Tensor | None = None
    log_walk: Tensor | None = None
    returned: Tensor | None = None

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


def detailed_balance(scores: Scores, log_z: Tensor) -> tuple[Tensor, Tensor]:
    """log F(s) + log P_F(s'|s) − log P_B(s|s') − log F(s') of each step, ``[B, T]``; mean over all steps.

    Bengio et al. 2023 (arXiv:2111.09266). With flows implied by stopping it is modified detailed
    balance (Deleu et al. 2022, arXiv:2202.13903).

    Raises:
        ValueError: if there are no state flows.
    """
    log_flow = _flow_from(scores, log_z, "detailed_balance")
    residual = log_flow[:, :-1] + (scores.log_pf - scores.log_pb).double() - log_flow[:, 1:]
    return _mean_over_steps(residual, scores.mask)


def sub_trajectory_balance(
    scores: Scores,
    log_z: Tensor,
    weighting: Literal["geometric", "length", "equal"] = "geometric",
    decay: float = 0.9,
) -> tuple[Tensor, Tensor]:
    """Balance of every stretch s_i … s_j of a trajectory, i < j, ``[B, T + 1, T + 1]``.

    Madan et al. 2023 (arXiv:2209.12782).

    Args:
        weighting: of a stretch of j − i steps: ``decay`` to that power, that number itself, or equal;
            weights sum to one in each trajectory.
        decay: λ; small looks at single steps, large at whole trajectories.

    Raises:
        ValueError: if there are no state flows, or ``decay`` is not positive.
    """
    if decay <= 0:
        raise ValueError(f"sub_trajectory_balance: decay must be positive, got {decay}")
    log_flow = _flow_from(scores, log_z, "sub_trajectory_balance")
    gained = pad((scores.log_pf - scores.log_pb).double().cumsum(1), (1, 0))
    height = log_flow - gained  # a stretch is balanced if both its ends have the same height
    residual = height.unsqueeze(2) - height.unsqueeze(1)
    time = torch.arange(log_flow.shape[1], device=log_flow.device)
    span = time.unsqueeze(0) - time.unsqueeze(1)
    visited = pad(scores.mask, (1, 0), value=True)
    inside = (span > 0) & visited.unsqueeze(1)
    size = span.clamp(min=1).double()
    by_span = {"geometric": decay**size, "length": size, "equal": torch.ones_like(size)}[weighting]
    weight = by_span * inside
    return residual.masked_fill(~inside, 0.0), weight / weight.sum((1, 2), keepdim=True)


def flow_matching(scores: Scores, log_z: Tensor) -> tuple[Tensor, Tensor]:
    """log inflow − log outflow of the state after each step, ``[B, T]``; mean over all steps (Bengio et al. 2021).

    Raises:
        ValueError: if the flow is not made of edge flows.
    """
    if scores.log_inflow is None:
        raise ValueError("flow_matching needs flows on edges: use flow=edges, or balance=detailed with flow=mlp")
    log_flow = _flow_from(scores, log_z, "flow_matching")
    return _mean_over_steps(scores.log_inflow.double() - log_flow[:, 1:], scores.mask)


def _flow_from(scores: Scores, log_z: Tensor, name: str) -> Tensor:
    """State flows that begin with log Z, float64 ``[B, T + 1]``."""
    if scores.log_flow is None:
        raise ValueError(f"{name} needs state flows: use flow=mlp, or balance=trajectory which needs none")
    return torch.cat([log_z.double().unsqueeze(1), scores.log_flow[:, 1:].double()], 1)


def _mean_over_steps(residual: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return residual.masked_fill(~mask, 0.0), mask.double() * (len(mask) / mask.sum())
