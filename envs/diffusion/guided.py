"""P_F of images that knows in which direction the reward grows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from envs.diffusion.environment import Diffusion, Points
from envs.diffusion.transformer import ImagePolicy
from gfn.distributions import Gaussian
from gfn.policies import Policy

LARGEST = 1.0  # standard deviations of a step


class Guided(Policy[Points]):
    """The steps of another policy, moved by a weight times their variance times ∇ log R of the image it expects.

    That is classifier guidance (Dhariwal and Nichol 2021, arXiv:2105.05233), here only a start: weights of every
    time are learned, with all of the policy, and what is sampled after training does not depend on them.

    Args:
        env: whose reward it is.
        policy: the policy.
        guidance: the weight at first.
    """

    def __init__(self, env: Diffusion, policy: ImagePolicy, guidance: float = 1.0):
        super().__init__()
        self.policy, self.score = policy, env.score
        self.weight = nn.Parameter(torch.full((env.max_steps,), float(guidance)))

    def distribution(self, states: Points) -> Gaussian:
        clean = self.policy.clean(states)
        plain = self.policy.towards(states, clean)
        uphill = self.score(replace(states, x=clean.detach())).to(clean.dtype)
        push = (plain.std * uphill).clamp(-LARGEST, LARGEST)
        return Gaussian(plain.mean + self.weight[states.time].unsqueeze(1) * plain.std * push, plain.std)
