"""P_F of images: a diffusion transformer that predicts the clean image (Peebles and Xie 2022, arXiv:2212.09748)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from envs.diffusion.environment import Diffusion, Points
from envs.diffusion.policies import FREQUENCIES, TimeEmbedding
from envs.diffusion.processes import Process
from gfn.distributions import Gaussian
from gfn.policies import Policy
from gfn.trajectories import Trajectories


class Block(nn.Module):
    """Attention and a perceptron on tokens ``[N, L, W]``, scaled, shifted and gated by a condition ``[N, W]``."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        scale, shift, gate, scale2, shift2, gate2 = self.modulation(condition).unsqueeze(1).chunk(6, 2)
        tokens = tokens + gate * self._attend(self.norm(tokens) * (1 + scale) + shift)
        return tokens + gate2 * self.perceptron(self.norm(tokens) * (1 + scale2) + shift2)

    def _attend(self, tokens: Tensor) -> Tensor:
        q, k, v = self.qkv(tokens).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.mix(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class DiffusionTransformer(nn.Module):
    """From images ``[N, H, W]``, times and labels to images of the same size.

    Raises:
        ValueError: unless patches tile the images and heads share the width evenly.
    """

    def __init__(self, shape: tuple[int, int], steps: int, labels: int, patch: int, width: int, depth: int, heads: int):
        super().__init__()
        if patch < 1 or any(side % patch for side in shape) or width < 1 or heads < 1 or width % heads or depth < 1:
            raise ValueError(
                f"DiffusionTransformer: policy.patch must divide both sides of images of {shape[0]} × {shape[1]} "
                f"pixels and policy.heads policy.width, with depth at least 1; got {patch=} {width=} {heads=} {depth=}"
            )
        self.shape, self.patch = shape, patch
        self.inward, self.outward = nn.Linear(patch**2, width), nn.Linear(width, patch**2)
        nn.init.zeros_(self.outward.weight)
        nn.init.zeros_(self.outward.bias)
        self.place = nn.Parameter(0.02 * torch.randn((shape[0] // patch) * (shape[1] // patch), width))
        self.time = TimeEmbedding(steps)
        self.condition = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(labels, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm, self.activation = nn.LayerNorm(width), nn.SiLU()

    def forward(self, images: Tensor, time: Tensor, label: Tensor) -> Tensor:
        height, width = (side // self.patch for side in self.shape)
        tiles = images.unflatten(1, (height, self.patch)).unflatten(3, (width, self.patch)).transpose(2, 3)
        tokens = self.inward(tiles.flatten(3).flatten(1, 2)) + self.place
        condition = self.activation(self.condition(self.time(time)) + self.label(label))
        for block in self.blocks:
            tokens = block(tokens, condition)
        tiles = self.outward(self.norm(tokens)).unflatten(1, (height, width)).unflatten(3, (self.patch, self.patch))
        return tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)


class ImagePolicy(Policy[Points]):
    """P_F: the step of the process towards the clean image that a network sees in the noisy one.

    The network predicts v, so that x̂ = scale x − spread v (Salimans and Ho 2022, arXiv:2202.00512). The variance
    of a step is that of the process between its ends, and what it does not know about the clean image: the mean
    squared error of x̂ at that time, measured in training (Bao et al. 2022, arXiv:2201.06503).

    Args:
        env: whose target has images of a ``shape``.
        process: from T to the process.
        patch: side of the squares that are tokens.
        width, depth, heads: of the transformer.

    Raises:
        ValueError: if the target is not made of images, or the network does not fit them.
    """

    def __init__(
        self,
        env: Diffusion,
        process: Callable[[int], Process],
        patch: int = 2,
        width: int = 64,
        depth: int = 2,
        heads: int = 4,
    ):
        super().__init__()
        shape = env.target.shape
        if shape is None:
            raise ValueError(
                f"ImagePolicy draws images, and {type(env.target).__name__} has none: use policy=diffusion"
            )
        self.network = DiffusionTransformer(shape, env.max_steps, env.n_labels, patch, width, depth, heads)
        steps = process(env.max_steps)
        scale, spread = (moment[:-1].clone() for moment in steps.from_end())
        spread[0] = 1  # the origin tells nothing: as if it were noise
        gain, pull, rest = steps.between()
        self.constants: Tensor
        rows = torch.stack([scale, spread, gain, pull, rest]).to(torch.get_default_dtype())
        self.register_buffer("constants", rows, persistent=False)
        self.error: Tensor
        self.register_buffer("error", torch.ones(env.max_steps))

    def clean(self, states: Points) -> Tensor:
        """x̂: the clean image that is expected, ``[N, D]``."""
        scale, spread = self.constants[:2, states.time].unsqueeze(2)
        seen = self.network(states.x.unflatten(1, self.network.shape), states.time, states.label).flatten(1)
        return scale * states.x - spread * seen

    def distribution(self, states: Points) -> Gaussian:
        return self.towards(states, self.clean(states))

    def towards(self, states: Points, clean: Tensor) -> Gaussian:
        """The step from each state if ``clean``, ``[N, D]``, is expected at the end."""
        gain, pull, rest = self.constants[2:, states.time].unsqueeze(2)
        mean = (gain - 1) * states.x + pull * clean
        std = (rest.square() + pull.square() * self.error[states.time].unsqueeze(1)).sqrt()
        return Gaussian(mean, std.expand_as(mean))

    def squared_error(self, t: Trajectories[Points]) -> Tensor:
        """Mean squared error of x̂ before every step, over pixels, ``[N]``."""
        return (self.clean(t.sources) - t.final.x[t.row]).square().mean(1)

    def loss_weight(self, time: Tensor) -> Tensor:
        """What turns squared errors of x̂ into those of v, ``[N]``."""
        return 1 / self.constants[1, time].square()

    @torch.no_grad()
    def observe(self, time: Tensor, error: Tensor, decay: float) -> None:
        """Take squared errors at times, long and float ``[N]``, into the running means."""
        count = torch.bincount(time, minlength=len(self.error))
        mean = torch.zeros_like(self.error).index_add(0, time, error.detach().to(self.error.dtype)) / count.clamp(min=1)
        self.error.lerp_(torch.where(count > 0, mean, self.error), 1 - decay)
