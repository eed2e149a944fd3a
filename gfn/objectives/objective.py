"""The training objective: balance ∘ divergence ∘ partition, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gfn.environment import RewardError
from gfn.objectives.balance import LOG_OF_ZERO, Balance, Scores, trajectory_balance
from gfn.objectives.divergence import Divergence
from gfn.objectives.partition import Partition
from gfn.policies import Policy
from gfn.schedules import Number
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate; ``lr=None`` takes the trainer's."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    lr: Number | None


class Objective(nn.Module, Generic[S]):
    """Loss of a batch of trajectories, always rescored with the current policies.

    Args:
        policy: P_F.
        backward: P_B.
        balance: from scores and log Z to residuals Δ (model minus target) and weights.
        divergence: which f-divergence; its loss of Δ.
        partition: where log Z comes from.
    """

    def __init__(
        self,
        policy: Policy[S],
        backward: Policy[S],
        divergence: Divergence,
        partition: Partition,
        balance: Balance = trajectory_balance,
    ):
        super().__init__()
        self.policy, self.backward_policy = policy, backward
        self.divergence, self.partition, self.balance = divergence, partition, balance

    def scores(self, t: Trajectories[S]) -> Scores:
        """Current log-probabilities of every step."""
        return Scores(
            log_pf=t.pad(self.policy.log_prob(t)),
            log_pb=t.pad(self.backward_policy.log_prob_backward(t)),
            mask=t.mask,
            log_reward=t.log_reward.clamp(min=LOG_OF_ZERO),
            group=t.group,
            initial=t.initial,
        )

    def forward(self, t: Trajectories[S], step: int = 0) -> tuple[Tensor, dict[str, float | Tensor]]:
        """Loss of a batch at a training step, and a report of detached scalars.

        Raises:
            RewardError: if a trajectory has reward zero and the divergence's slope is unbounded there.
        """
        divergence = self.divergence.at(step)
        scores = self.scores(t)
        log_z = self.partition(scores, divergence)
        residual, weight = self.balance(scores, log_z)
        zero_reward = t.log_reward == -torch.inf
        if bool(zero_reward.any()):
            _require_bounded(divergence, int(zero_reward.sum()), len(t))
        weight = weight / len(t)
        loss = coefficient_loss(divergence, residual, weight)
        return loss, {
            "loss": loss.detach(),
            "log_reward": t.log_reward.mean(),
            "length": t.lengths.double().mean(),
            "zero_reward": zero_reward.double().mean(),
            **diagnose(divergence, residual.detach(), weight, log_z.detach()),
        }

    def parameter_groups(self) -> list[ParameterGroup]:
        """Trainable parameters, each once; those of log Z alone stand apart if it has its own rate."""
        policies = {id(p) for module in (self.policy, self.backward_policy) for p in module.parameters()}
        apart = self.partition.lr is not None
        own = tuple(p for p in _trainable(self.partition) if apart and id(p) not in policies)
        rest = tuple(p for p in _trainable(self) if id(p) not in {id(q) for q in own})
        groups = [ParameterGroup("policy", rest, None), ParameterGroup("log_z", own, self.partition.lr)]
        return [group for group in groups if group.parameters]


def _trainable(module: nn.Module) -> tuple[nn.Parameter, ...]:
    return tuple(p for p in module.parameters() if p.requires_grad)


def _require_bounded(divergence: Divergence, zeros: int, total: int) -> None:
    """Refuse trajectories with reward zero (Δ = +∞) where the slope has no bound."""
    limit, beyond = divergence.slope(torch.tensor([-LOG_OF_ZERO, -2 * LOG_OF_ZERO], dtype=torch.float64)).tolist()
    if limit > 1e4 or beyond > 1.01 * limit:
        raise RewardError(
            f"{zeros} of {total} trajectories have reward zero (log-reward -inf), where the slope of this divergence "
            "is unbounded: give the reward a positive floor, or use a divergence with a bounded slope there "
            "(alpha below 1, jensen_shannon, clipped)"
        )


def coefficient_loss(divergence: Divergence, residual: Tensor, weight: Tensor) -> Tensor:
    """Σ weight · L(residual), with the gradient Σ weight · L'(residual) ∇residual.

    Value and slope are computed in float64 on detached residuals, so no exponential is ever
    differentiated. Residuals of trajectories with reward zero count in the gradient, where their
    slope is finite, and not in the value, where they are infinite.
    """
    fixed = residual.detach().double()
    value = torch.where(fixed < -LOG_OF_ZERO / 2, divergence.loss(fixed), 0.0)
    moving = divergence.slope(fixed) * (residual.double() - fixed)
    return (weight * (value + moving)).sum()


def diagnose(divergence: Divergence, residual: Tensor, weight: Tensor, log_z: Tensor) -> dict[str, Tensor]:
    """What every partition reports: log Ẑ, effective sample size, largest coefficient, clipped fraction.

    The effective sample size is that of the weights L''(Δ), which for the α family are the
    self-normalised weights e^{(α−1)Δ}; as a fraction of the residuals, in (0, 1].
    """
    delta = residual[(weight > 0) & (residual < -LOG_OF_ZERO / 2)].double()
    if delta.numel() == 0:
        return {"log_z": log_z.mean()}
    curvature = divergence.curvature(delta)
    mass = curvature.sum()
    ess = torch.where(mass > 0, mass.square() / (curvature.square().sum() * len(delta)), torch.ones_like(mass))
    return {
        "log_z": log_z.mean(),
        "ess": ess.clamp(max=1),
        "max_coefficient": divergence.slope(delta).abs().max(),
        "clipped": divergence.saturated(delta).double().mean(),
        "residual": delta.abs().mean(),
    }
