"""Policy-gradient baselines: REINFORCE, RLOO, GRPO, Dr. GRPO and PPO as named choices of one loss.

============ ============== ===== ========= ================ ====================================
method       baseline       scale surrogate average          source
============ ============== ===== ========= ================ ====================================
REINFORCE    none, batch    none  score     trajectory_sums  Williams 1992
RLOO         leave_one_out  none  score     trajectory_sums  Ahmadian et al. 2024, arXiv:2402.14740
GRPO         group          std   clipped   trajectory_means Shao et al. 2024, arXiv:2402.03300
Dr. GRPO     group          none  clipped   trajectory_sums  Liu et al. 2025, arXiv:2503.20783
PPO          value          std   clipped   steps            Schulman et al. 2017, arXiv:1707.06347
============ ============== ===== ========= ================ ====================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from gfn.environment import RewardError
from gfn.flows import Flow
from gfn.objectives.advantage import Baseline, clipped_surrogate, compared, generalised_advantage, standardised
from gfn.objectives.balance import LOG_OF_ZERO, Scores
from gfn.objectives.divergence import bounded_exp, bounded_expm1, bounded_expm1_minus
from gfn.objectives.learner import Learner, ParameterGroup, Reported, split_groups
from gfn.policies import Policy
from gfn.schedules import Number, value_at
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
Reward = Literal["log", "value"]
Scale = Literal["none", "std"]
Surrogate = Literal["score", "clipped"]
Average = Literal["trajectory_sums", "trajectory_means", "steps"]


class PolicyGradient(Learner[S]):
    """Ascends the expected return, log R(x) − kl_coefficient·(log P_F(τ) − log P_B(τ|x)).

    With ``kl_coefficient=1`` and the log-reward its maximum is the policy that balances, and its expected
    on-policy gradient is that of KL(P_F ‖ R P_B / Z), as trajectory balance has it; with 0 the maximum is
    the policy of largest reward. Unlike a balance it has no log Z, and it is right only for trajectories
    sampled forward by the current policy, or with the clipped surrogate by one near it.

    Args:
        policy: P_F.
        backward: P_B, or :class:`gfn.policies.Prior`: what the KL is taken to. If it is learned, it
            follows the same expected return.
        reward: reward of the final state: its ``log``, or its ``value``.
        baseline: what a return is compared with: ``none``, the mean of the ``batch`` or of the
            ``group``, of the others in the group (``leave_one_out``), or a learned ``value`` of each
            state, with generalised advantage estimation.
        scale: divide advantages by their standard deviation (``std``: in the group, or the batch; for
            ``baseline=value`` over all steps, whose mean is taken away too), or not (``none``).
        surrogate: ``score``, log P_F times the advantage; or ``clipped``, the ratio of each step to the
            behaviour policy.
        average: over trajectories, each the sum of its steps (``trajectory_sums``) or their mean
            (``trajectory_means``), or over all steps of the batch (``steps``).
        kl_coefficient: of log P_F − log P_B of each step in its reward, by the current policy.
        entropy_coefficient: of −log P_F of each step in its reward: a bonus on the entropy of trajectories.
        kl_penalty: of e^x − x − 1 at each step in the loss, x = log P_B − log P_F, for a P_B that is a
            ``Prior``; its on-policy gradient is that of KL(π_ref ‖ P_F) at the visited states (GRPO).
        clip_low, clip_high: the ratio counts between 1 − clip_low and 1 + clip_high.
        value: network of the expected return from each state, for ``baseline=value``.
        value_coefficient: weight of its squared error, halved, in the loss.
        value_lr: its own learning rate; None takes the trainer's.
        gae_lambda: λ of generalised advantage estimation.

    Raises:
        ValueError: if a choice is none of those named, a clip or λ lies outside [0, 1] (``clip_high``
            below 0), or ``value`` is given without ``baseline=value`` or the other way round.
    """

    def __init__(
        self,
        policy: Policy[S],
        backward: Policy[S],
        reward: Reward = "log",
        baseline: Baseline = "batch",
        scale: Scale = "none",
        surrogate: Surrogate = "score",
        average: Average = "trajectory_sums",
        kl_coefficient: Number = 1.0,
        entropy_coefficient: Number = 0.0,
        kl_penalty: Number = 0.0,
        clip_low: Number = 0.2,
        clip_high: Number = 0.2,
        value: Flow[S] | None = None,
        value_coefficient: float = 0.5,
        value_lr: Number | None = None,
        gae_lambda: Number = 0.95,
    ):
        super().__init__(policy, backward)
        _require_choices(
            ("reward", reward, Reward), ("baseline", baseline, Baseline), ("scale", scale, Scale),
            ("surrogate", surrogate, Surrogate), ("average", average, Average),
        )  # fmt: skip
        if (baseline == "value") != (value is not None):
            raise ValueError(
                "PolicyGradient: baseline=value needs a network, such as objective.value._target_=gfn.flows.MLPFlow; "
                "use baseline=leave_one_out, which needs none"
                if value is None
                else f"PolicyGradient: baseline={baseline} has no use for a value network; "
                "give objective.value=null, or use baseline=value"
            )
        self.baseline: Baseline = baseline
        self.average: Average = average
        self.reward, self.scale, self.surrogate = reward, scale, surrogate
        self.kl_coefficient, self.entropy_coefficient, self.kl_penalty = kl_coefficient, entropy_coefficient, kl_penalty
        self.clip_low, self.clip_high, self.gae_lambda = clip_low, clip_high, gae_lambda
        self.value, self.value_coefficient, self.value_lr = value, value_coefficient, value_lr
        self._clip(0)
        if not 0 <= value_at(gae_lambda, 0) <= 1:
            raise ValueError(f"PolicyGradient: gae_lambda must lie in [0, 1], got {value_at(gae_lambda, 0)}")

    def check_direction(self, forward: bool) -> None:
        if not forward:
            raise ValueError(
                "PolicyGradient: the gradient is an expectation over trajectories of P_F, and this sampler walks "
                "backward: use sampler=on_policy or sampler=repeated, or objective=ftb, which learns from any data"
            )

    def check_group_size(self, size: int, step: int = 0) -> None:
        if self.baseline in ("group", "leave_one_out") and size < 2:
            raise ValueError(
                f"PolicyGradient: baseline={self.baseline} compares trajectories of one group and needs at least 2 in "
                f"each, got {size}: alone, a trajectory has nothing to be better than; "
                "raise sampler.group_size, or use objective.baseline=batch"
            )

    def scores(self, t: Trajectories[S]) -> Scores:
        """Current log-probabilities of every step; in ``log_flow`` the values of the states, zero at the end."""
        scores = super().scores(t)
        return scores if self.value is None else replace(scores, log_flow=pad(t.pad(self.value(t.sources)), (0, 1)))

    def loss(self, scores: Scores, step: int) -> tuple[Tensor, Reported]:
        """Loss of scored trajectories at a training step, and a report of detached numbers.

        Raises:
            ValueError: if trajectories stand alone that are to be compared.
            RewardError: if a trajectory has reward zero, and returns are made of its logarithm.
        """
        self._require_company(scores.group)
        log_pf, log_pb = scores.log_pf.double(), scores.log_pb.double()
        fixed, prior = log_pf.detach(), log_pb.detach()
        reward = self._step_rewards(scores, step)
        advantage, value_error = self._advantage(scores, reward, step)
        log_ratio = fixed - scores.log_behaviour.double()
        gain, slope, clipped = fixed * advantage, advantage, torch.zeros_like(scores.mask)
        if self.surrogate == "clipped":
            gain, slope, clipped = clipped_surrogate(log_ratio, advantage, *self._clip(step))
        penalty = value_at(self.kl_penalty, step)
        gain = gain - penalty * bounded_expm1_minus(prior - fixed)
        slope = slope + penalty * bounded_expm1(prior - fixed)
        weight = _weights(scores.mask, self.average)
        loss = -(weight * (gain + slope * (log_pf - fixed))).sum()
        loss = loss - value_at(self.kl_coefficient, step) * (log_pb - prior).sum() / len(log_pb)  # for a learned P_B
        value_loss = 0.5 * (value_error.square() * scores.mask).sum() / scores.mask.sum()
        loss = loss + self.value_coefficient * value_loss
        steps = scores.mask.sum()
        report: Reported = {
            "loss": loss.detach(),
            "log_reward": scores.log_reward.mean(),
            "length": scores.mask.sum(1).double().mean(),
            "return": reward.sum(1).mean(),
            "advantage_std": advantage.expand_as(fixed)[scores.mask].std(correction=0),
            "clipped": clipped.sum() / steps,
            "ratio": (bounded_exp(log_ratio) * scores.mask).sum() / steps,
            "entropy": -fixed.sum(1).mean(),
            "kl": (fixed - prior).sum(1).mean(),
            "value_loss": value_loss.detach(),
        }
        return loss, report

    def _step_rewards(self, scores: Scores, step: int) -> Tensor:
        """The reward of each step, that of the final state on the last one, float64 ``[B, T]``, detached."""
        final = scores.log_reward.double()
        if self.reward == "log":
            _require_positive(final)
        fixed = scores.log_pf.detach().double()
        kl = value_at(self.kl_coefficient, step) * (fixed - scores.log_pb.detach().double())
        reward = -kl - value_at(self.entropy_coefficient, step) * fixed
        last = scores.mask.sum(1, keepdim=True) - 1
        return reward.scatter_add(1, last, (final if self.reward == "log" else final.exp()).unsqueeze(1))

    def _advantage(self, scores: Scores, reward: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Advantage of each step, ``[B, T]`` or ``[B, 1]``, and error of the values, differentiable, ``[B, T]``."""
        if scores.log_flow is None:
            returns = reward.sum(1)
            advantage = compared(returns, scores.group, self.baseline, self.scale == "std")
            return advantage.unsqueeze(1), torch.zeros_like(reward)
        value = scores.log_flow[:, :-1].double()
        advantage = generalised_advantage(reward, value.detach(), value_at(self.gae_lambda, step))
        error = value - (advantage + value.detach())
        return standardised(advantage, scores.mask) if self.scale == "std" else advantage, error

    def _clip(self, step: int) -> tuple[float, float]:
        """How far below and above 1 the ratio counts."""
        low, high = value_at(self.clip_low, step), value_at(self.clip_high, step)
        if not 0 <= low <= 1 or high < 0:
            raise ValueError(
                f"PolicyGradient: needs clip_low in [0, 1] and clip_high >= 0, got clip_low={low} clip_high={high}"
            )
        return low, high

    def _require_company(self, group: Tensor) -> None:
        self.check_group_size(int(group.unique(return_counts=True)[1].min()))
        if self.baseline == "batch" and len(group) < 2:
            raise ValueError(
                "PolicyGradient: baseline=batch compares trajectories of one batch and needs at least 2, got 1; "
                "raise sampler.batch_size, or use objective.baseline=none"
            )

    def parameter_groups(self) -> list[ParameterGroup]:
        """Parameters of the policies, and apart those of the value network if it has a rate of its own."""
        return split_groups(self, {} if self.value is None else {"value": (self.value, self.value_lr)})


def _weights(mask: Tensor, average: Average) -> Tensor:
    """Weight of each step in a mean, float64 ``[B, T]``, zero after the end."""
    steps, length = mask.double(), mask.sum(1, keepdim=True)
    if average == "steps":
        return steps / length.sum()
    return steps / len(mask) if average == "trajectory_sums" else steps / (length * len(mask))


def _require_choices(*choices: tuple[str, str, Any]) -> None:
    for name, given, allowed in choices:
        if given not in get_args(allowed):
            raise ValueError(f"PolicyGradient: {name} must be one of {', '.join(get_args(allowed))}, got {given!r}")


def _require_positive(log_reward: Tensor) -> None:
    zeros = int((log_reward <= LOG_OF_ZERO).sum())
    if zeros > 0:
        raise RewardError(
            f"{zeros} of {len(log_reward)} trajectories have reward zero (log-reward -inf), which no return can hold: "
            "use objective.reward=value, or give the reward a positive floor"
        )
