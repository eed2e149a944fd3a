"""Training of a diffusion prior on data by denoising."""

from __future__ import annotations

import torch
from torch import Tensor

from envs.diffusion.environment import Points
from envs.diffusion.transformer import ImagePolicy
from gfn.objectives.balance import LOG_OF_ZERO, Scores
from gfn.objectives.learner import Learner, Reported
from gfn.policies import Policy
from gfn.trajectories import Trajectories


class Denoising(Learner[Points]):
    """Squared error of v at every step of walks back from data (Ho et al. 2020, arXiv:2006.11239).

    In training the scores hold minus half of it in the place of log P_F, so that batches can be cut in parts; the
    policy's running errors, which its variances are made of, follow.

    Args:
        policy: P_F.
        backward: the process that adds noise.
        decay: of the running errors, for each batch.

    Raises:
        ValueError: if ``decay`` is not in [0, 1).
    """

    def __init__(self, policy: ImagePolicy, backward: Policy[Points], decay: float = 0.98):
        super().__init__(policy, backward)
        if not 0 <= decay < 1:
            raise ValueError(f"Denoising: decay must lie in [0, 1), got {decay}")
        self.images, self.decay = policy, decay

    def scores(self, t: Trajectories[Points]) -> Scores:
        if not self.training:
            return super().scores(t)
        time, error = t.column, self.images.squared_error(t)
        self.images.observe(time, error, self.decay)
        nothing = t.pad(torch.zeros_like(error))
        return Scores(
            log_pf=t.pad(-0.5 * self.images.loss_weight(time) * error),
            log_pb=nothing,
            mask=t.mask,
            log_reward=t.log_reward.clamp(min=LOG_OF_ZERO),
            group=t.group,
            initial=t.initial,
            log_behaviour=nothing,
            weight=t.lengths.new_ones(len(t), dtype=torch.float64),
        )

    def loss(self, scores: Scores, step: int) -> tuple[Tensor, Reported]:
        loss = -scores.log_pf.double().sum(1).mean() / scores.mask.shape[1]
        return loss, {"loss": loss.detach(), "log_reward": scores.log_reward.mean()}
