"""The training objective: balance ∘ divergence ∘ partition, and what it reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from gfn.backward import walks
from gfn.chunks import in_chunks
from gfn.environment import Environment, RewardError
from gfn.flows import Flow
from gfn.objectives.balance import LOG_OF_ZERO, Balance, Scores, trajectory_balance
from gfn.objectives.divergence import Divergence
from gfn.objectives.learner import Learner, ParameterGroup, Reported, split_groups
from gfn.objectives.partition import Partition
from gfn.policies import Policy
from gfn.schedules import Number, value_at
from gfn.states import States
from gfn.trajectories import Trajectories, seed_of

S = TypeVar("S", bound=States)


class Objective(Learner[S]):
    """Loss of a batch of trajectories under a balance condition, a divergence and a source of log Z.

    Args:
        policy: P_F.
        backward: P_B.
        divergence: which f-divergence; its loss of Δ.
        partition: where log Z comes from.
        balance: from scores and log Z to residuals Δ (model minus target) and weights.
        flow: state flows, for balances that need them.
        backward_loss: how P_B learns, if it does: through the ``balance``; by ``likelihood`` of the
            trajectories trained on, held constant in the balance (Jang et al. 2024, arXiv:2410.15184); or by
            ``reinforce``, from walks back by P_B itself, one from each final state, of which those that reach
            the start are worth 1 and those that are lost 0, less their mean over the batch (Cretu et al. 2024,
            arXiv:2405.01155).
        backward_entropy: with ``reinforce``, weight of the entropy of these walks beside that worth.
        reward_exponent: power to which rewards are raised in training, best a schedule that ends in 1; what is
            evaluated is always the reward itself.
        importance: exponent λ of the weights (P_F(τ)/μ(τ))^λ of trajectories sampled by another policy
            μ; 0 trusts the balance alone, 1 restores the on-policy gradient at the price of variance.
        importance_limit: largest such weight, as a multiple of the group's mean.
        backward_lr, flow_lr: learning rates of their own; None takes the trainer's.
        env: where to walk back; only ``reinforce`` does.

    Raises:
        ValueError: if the balance needs flows that are not given, or ``backward_loss`` is none of the three.
    """

    def __init__(
        self,
        policy: Policy[S],
        backward: Policy[S],
        divergence: Divergence,
        partition: Partition,
        balance: Balance = trajectory_balance,
        flow: Flow[S] | None = None,
        backward_loss: Literal["balance", "likelihood", "reinforce"] = "balance",
        backward_entropy: Number = 0.0,
        reward_exponent: Number = 1.0,
        importance: Number = 0.0,
        importance_limit: float = 10.0,
        backward_lr: Number | None = None,
        flow_lr: Number | None = None,
        env: Environment[S] | None = None,
    ):
        super().__init__(policy, backward)
        if backward_loss not in ("balance", "likelihood", "reinforce"):
            raise ValueError(
                f"Objective: backward_loss must be balance, likelihood or reinforce, got {backward_loss!r}"
            )
        if backward_loss == "reinforce" and env is None:
            raise ValueError("Objective: backward_loss=reinforce walks back through an environment; give it env=")
        self.divergence, self.partition, self.balance, self.flow = divergence, partition, balance, flow
        self.backward_loss, self.importance, self.importance_limit = backward_loss, importance, importance_limit
        self.backward_entropy, self.reward_exponent, self.env = backward_entropy, reward_exponent, env
        self.backward_lr, self.flow_lr = backward_lr, flow_lr
        _require_inputs(balance, partition, flow)

    def scores(self, t: Trajectories[S]) -> Scores:
        scores = super().scores(t)
        if self.backward_loss == "reinforce" and self.env is not None and self.training:
            # Seeded by the trajectories, so that a batch that is scored twice (in parts) has the same walks.
            generator = torch.Generator(t.lengths.device).manual_seed(seed_of(t))
            back = walks(self.env, self.backward_policy, t.final, generator)
            scores = replace(scores, log_walk=back.log_prob, returned=back.returned.double())
        if self.flow is None:
            return scores
        inner = t.pad(in_chunks(self.flow, self.policy.at_once, t.sources))
        log_flow = torch.cat([inner, inner.new_zeros(len(t), 1)], 1)
        log_flow = log_flow.scatter(1, t.lengths.unsqueeze(1), scores.log_reward.to(inner.dtype).unsqueeze(1))
        inflow = self.flow.inflow
        log_inflow = t.pad(in_chunks(inflow, self.policy.at_once, t.targets)) if self.flow.on_edges else None
        return replace(scores, log_flow=log_flow, log_inflow=log_inflow)

    def loss(self, scores: Scores, step: int) -> tuple[Tensor, Reported]:
        """Loss of scored trajectories at a training step, and a report of detached numbers.

        Raises:
            RewardError: if a trajectory has reward zero and the divergence's slope is unbounded there.
        """
        scores = self._weighted(self._tempered(scores, step), step)
        divergence = self.divergence.at(step).fitted(scores.excess.detach(), scores.group)
        zero_reward = scores.log_reward <= LOG_OF_ZERO
        if bool(zero_reward.any()):
            _require_bounded(divergence, int(zero_reward.sum()), len(zero_reward))
        backward_loss, backward_report = self._backward_loss(scores, step)
        if self.backward_loss != "balance":
            scores = replace(scores, log_pb=scores.log_pb.detach())
        log_z = self.partition(scores, divergence)
        residual, weight = self.balance(scores, log_z)
        weight = weight * scores.weight.reshape(-1, *[1] * (weight.ndim - 1)) / len(weight)
        loss = coefficient_loss(divergence, residual, weight)
        report: Reported = {
            "loss": loss.detach(),
            "log_reward": scores.log_reward.mean(),
            "length": scores.mask.sum(1).double().mean(),
            "zero_reward": zero_reward.double().mean(),
            **diagnose(divergence, residual.detach(), weight, log_z.detach()),
            **divergence.settings(),
            **backward_report,
        }
        return loss + backward_loss, report

    def _backward_loss(self, scores: Scores, step: int) -> tuple[Tensor | float, Reported]:
        """What P_B learns by, if not the balance, and a report."""
        if self.backward_loss == "likelihood":
            likelihood = scores.log_pb.double().sum(1)
            return -likelihood.mean(), {"log_pb": likelihood.detach().mean()}
        if scores.log_walk is None or scores.returned is None:
            return 0.0, {}
        worth = scores.returned - value_at(self.backward_entropy, step) * scores.log_walk.detach()
        advantage = (worth - worth.mean()) * len(worth) / max(len(worth) - 1, 1)  # less the mean of the others
        surrogate = -(advantage * scores.log_walk).mean()
        entropy = -scores.log_walk.detach().mean()
        return surrogate, {"walks_returned": scores.returned.mean(), "walk_entropy": entropy}

    def log_z(self, scores: Scores, step: int) -> Tensor:
        """The partition's log Z of each trajectory's initial state, ``[B]``."""
        return self.partition(scores, self.divergence.at(step).fitted(scores.excess, scores.group))

    def check_direction(self, forward: bool) -> None:
        if not forward and value_at(self.importance, 0) != 0:
            raise ValueError(
                "Objective: importance weights compare P_F with a policy that sampled forward, and this sampler walks "
                "backward: use importance=0, since a balance holds for any data, or sampler=replay"
            )

    def check_group_size(self, size: int, step: int = 0) -> None:
        self.partition.check_group_size(size, self.divergence.at(step))

    def _tempered(self, scores: Scores, step: int) -> Scores:
        """Scores with rewards to the power in force at a step."""
        exponent = value_at(self.reward_exponent, step)
        if exponent == 1:
            return scores
        log_reward = torch.where(scores.log_reward <= LOG_OF_ZERO, LOG_OF_ZERO, exponent * scores.log_reward)
        if scores.log_flow is None:
            return replace(scores, log_reward=log_reward)
        end = scores.mask.sum(1, keepdim=True)
        log_flow = scores.log_flow.scatter(1, end, log_reward.to(scores.log_flow.dtype).unsqueeze(1))
        return replace(scores, log_reward=log_reward, log_flow=log_flow)

    def _weighted(self, scores: Scores, step: int) -> Scores:
        """Scores with truncated, self-normalised importance weights in the place of ones."""
        exponent = value_at(self.importance, step)
        if exponent == 0:
            return scores
        log_ratio = exponent * (scores.log_pf.detach() - scores.log_behaviour).double().sum(1)
        _, group = scores.group.unique(return_inverse=True)
        count = torch.bincount(group).double()
        peak = torch.full_like(count, -torch.inf).scatter_reduce(0, group, log_ratio, "amax")
        raw = (log_ratio - peak[group]).exp()
        mean = torch.zeros_like(count).index_add(0, group, raw) / count
        weight = (raw / mean[group]).clamp(max=self.importance_limit)
        return replace(scores, weight=weight * (count / torch.zeros_like(count).index_add(0, group, weight))[group])

    def parameter_groups(self) -> list[ParameterGroup]:
        """Parameters of the policies, and apart those of P_B, of the flow and of log Z that have their own rates."""
        apart = {"backward": (self.backward_policy, self.backward_lr), "log_z": (self.partition, self.partition.lr)}
        return split_groups(self, apart if self.flow is None else {**apart, "flow": (self.flow, self.flow_lr)})


def _require_inputs(balance: Balance, partition: Partition, flow: Flow[S] | None) -> None:
    """Try the balance and the partition on one made-up step, so that what they miss is told before training."""
    one, kept = torch.zeros(1, 1), torch.ones(1, dtype=torch.long)
    flows = None if flow is None else torch.zeros(1, 2)
    edges = one if flow is not None and flow.on_edges else None
    nothing = torch.zeros(1)
    scores = Scores(one, one, one == 0, nothing, kept, None, one, nothing + 1, flows, edges)
    partition.require(scores)
    balance(scores, nothing)


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
