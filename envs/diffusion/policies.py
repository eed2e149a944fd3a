"""P_F with a learned drift, and P_B by a process that runs back to the origin."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from envs.diffusion.environment import Diffusion, Points
from envs.diffusion.processes import Process
from gfn.distributions import Gaussian
from gfn.policies import Policy

FREQUENCIES = 16
WIDEST = 3.0  # natural log of how far a learned standard deviation may be from the process's


class Reversed(Policy[Points]):
    """P_B: the process itself, backward; nothing is learned, and the step back to the origin is certain.

    Args:
        process: from T to the process, such as :class:`envs.diffusion.processes.Bridge`.
    """

    def __init__(self, env: Diffusion, process: Callable[[int], Process]):
        super().__init__()
        steps = process(env.max_steps)
        self.shrink: Tensor
        self.back: Tensor
        self.register_buffer("shrink", steps.shrink.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("back", steps.back.to(torch.get_default_dtype()), persistent=False)

    def distribution(self, states: Points) -> Gaussian:
        at = states.time - 1
        mean = states.x * (1 - self.shrink[at]).unsqueeze(1)
        return Gaussian(mean, self.back[at].unsqueeze(1).expand_as(mean))


class TimeEmbedding(nn.Module):
    """Sines and cosines of t/T, float ``[N, 2 * FREQUENCIES]``."""

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps
        self.frequency: Tensor
        self.register_buffer("frequency", math.pi * 2 ** torch.linspace(-1, 5, FREQUENCIES), persistent=False)

    def forward(self, time: Tensor) -> Tensor:
        angle = (time / self.steps).to(self.frequency.dtype).unsqueeze(1) * self.frequency
        return torch.cat([angle.sin(), angle.cos()], 1)


class Drift(Policy[Points]):
    """P_F: x_{t+1} ~ N(carry x_t + out (u + v ⊙ clip(out ∇log R(x_t))), (out e^w)²) with u, v, w from a network.

    ``carry`` and ``out`` are those of the process, which is what P_F is before it has learned anything. The
    second term is that of path integral samplers (Zhang and Chen 2022, arXiv:2111.15141).

    Args:
        process: from T to the process.
        width, depth: of the network of places, times and labels.
        learned_variance: learn w, of every coordinate; otherwise it is 0.
        langevin: have the term in ∇log R, with v a function of time and label.
        langevin_clip: largest absolute value of out ∇log R.
    """

    def __init__(
        self,
        env: Diffusion,
        process: Callable[[int], Process],
        width: int = 64,
        depth: int = 2,
        learned_variance: bool = False,
        langevin: bool = False,
        langevin_clip: float = 10.0,
    ):
        super().__init__()
        if width < 1 or depth < 1 or langevin_clip <= 0:
            raise ValueError(
                "Drift: width and depth must be at least 1 and langevin_clip positive, "
                f"got {width=} {depth=} {langevin_clip=}"
            )
        steps = process(env.max_steps)
        self.carry: Tensor
        self.out: Tensor
        self.register_buffer("carry", steps.carry.to(torch.get_default_dtype()), persistent=False)
        self.register_buffer("out", steps.out.to(torch.get_default_dtype()), persistent=False)
        self.score, self.clip = env.score if langevin else None, langevin_clip
        self.learned_variance, self.reach = learned_variance, env.target.reach
        self.embedding = TimeEmbedding(env.max_steps)
        self.label = nn.Embedding(env.n_labels, 2 * FREQUENCIES)
        inputs = env.dim + 2 * FREQUENCIES
        self.network = perceptron([inputs, *[width] * depth, env.dim * (2 if learned_variance else 1)])
        self.gate = perceptron([2 * FREQUENCIES, width, env.dim]) if langevin else None

    def distribution(self, states: Points) -> Gaussian:
        out, carry = self.out[states.time].unsqueeze(1), self.carry[states.time].unsqueeze(1)
        condition = self.embedding(states.time) + self.label(states.label)
        answer = self.network(torch.cat([3 / self.reach * states.x, condition], 1))
        shift, *rest = answer.chunk(2, 1) if self.learned_variance else (answer,)
        if self.gate is not None and self.score is not None:
            pull = (out * self.score(states)).clamp(-self.clip, self.clip).nan_to_num(0.0)
            shift = shift + self.gate(condition) * pull
        std = out.expand_as(shift)
        for widening in rest:
            std = std * (WIDEST * (widening / WIDEST).tanh()).exp()
        return Gaussian((carry - 1) * states.x + out * shift, std)


def perceptron(sizes: list[int]) -> nn.Sequential:
    """Layers with GELU between them, the last one zero at first."""
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.GELU()]
    last = nn.Linear(sizes[-2], sizes[-1])
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers[:-2], last)
