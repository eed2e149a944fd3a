"""Unnormalised densities to sample from, with what is known exactly about them.

All analytic ones compute in float64, whatever they are given.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from envs.diffusion.painting import paint_points


class Target(ABC):
    """R(x | label) over x in ℝ^D, for each of a number of labels.

    Attributes:
        dim: D.
        n_labels: how many conditions there are.
        mode_count: number of modes of one label; None where modes are not defined.
        log_z: exact log Z of each label, float64 ``[n_labels]``; None where it is not known.
        sampled: whether :meth:`sample` draws exactly.
        reach: a length within which the mass lies, for pictures.
        shape: height and width, if the points are images; None if they are not.
    """

    dim: int
    shape: tuple[int, int] | None = None
    n_labels: int = 1
    mode_count: int | None = None
    log_z: Tensor | None = None
    sampled: bool = False
    reach: float = 1.0

    @abstractmethod
    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        """log R of points ``[N, D]`` given labels, long ``[N]``; ``[N]``, differentiable in x."""

    def sample(self, label: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Exact draws from R/Z, one for each label ``[N]``; float64 ``[N, D]``."""
        raise TypeError(f"{type(self).__name__} has no exact sampler")

    def mode(self, x: Tensor, label: Tensor) -> Tensor:
        """The mode each point ``[N, D]`` belongs to, below ``mode_count``; −1 for none, long ``[N]``."""
        return torch.full_like(label, -1)

    def summary(self, x: Tensor, label: Tensor) -> Mapping[str, float]:
        """Figures of its own about samples ``[N, D]``."""
        return {}

    def paint(self, figure: Any, x: Tensor, exact: Tensor | None) -> None:
        """Fill a figure of matplotlib with samples ``[N, D]``, and with exact ones if there are any."""
        paint_points(figure, x, exact, self.reach)

    def to(self, device: torch.device | str) -> Self:
        """A copy whose tensors and networks live on ``device``."""
        moved = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
            elif isinstance(value, nn.Module):
                setattr(moved, name, copy.deepcopy(value).to(device))
        return moved


def log_normal(x: Tensor, mean: Tensor | float, std: Tensor) -> Tensor:
    """Log-density of a normal, number by number."""
    return -0.5 * ((x - mean) / std).square() - std.log() - 0.5 * math.log(2 * math.pi)


def standard_normal(n: int, dim: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Float64 ``[n, dim]`` on the device of ``like``."""
    return torch.randn(n, dim, dtype=torch.float64, device=like.device, generator=generator)


class Mixture(Target):
    """Gaussians of one standard deviation around K points, equally likely; log Z = 0.

    The modes are the components; a point is in the nearest, if it is within three standard deviations times √D of it.

    Args:
        means: float ``[K, D]``.
        std: of every coordinate.
    """

    sampled = True

    def __init__(self, means: Tensor, std: float):
        if means.ndim != 2 or len(means) == 0 or std <= 0:
            raise ValueError(f"Mixture: needs means [K, D] and std > 0, got {tuple(means.shape)} and {std}")
        self.means, self.std = means.double(), torch.tensor(std, dtype=torch.float64)
        self.mode_count, self.dim = self.means.shape
        self.log_z = torch.zeros(1, dtype=torch.float64)
        self.reach = float(self.means.abs().max()) + 3 * std

    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        each = log_normal(x.double().unsqueeze(1), self.means, self.std).sum(-1)
        return each.logsumexp(1) - math.log(len(self.means))

    def sample(self, label: Tensor, generator: torch.Generator | None = None) -> Tensor:
        which = torch.randint(len(self.means), (len(label),), device=label.device, generator=generator)
        return self.means[which] + self.std * standard_normal(len(label), self.dim, label, generator)

    def mode(self, x: Tensor, label: Tensor) -> Tensor:
        distance, nearest = torch.cdist(x.double(), self.means).min(1)
        return nearest.masked_fill(distance > 3 * self.std * math.sqrt(self.dim), -1)


def gaussians25() -> Mixture:
    """25 Gaussians of variance 0.3 on the grid {−10, −5, 0, 5, 10}², as in Sendera et al. 2024 (arXiv:2402.05098)."""
    axis = torch.arange(-10.0, 11.0, 5.0)
    return Mixture(torch.cartesian_prod(axis, axis), math.sqrt(0.3))


def gaussians40() -> Mixture:
    """40 Gaussians in [−40, 40]², of Midgley et al. 2023 (arXiv:2208.01893).

    Standard deviation log(1 + e); the means are those that torch draws in float32 with the seed 0, as their code does.
    """
    uniform = torch.rand(40, 2, dtype=torch.float32, generator=torch.Generator().manual_seed(0))
    return Mixture((uniform - 0.5) * 80, float(softplus(torch.ones((), dtype=torch.float64))))


class Funnel(Target):
    """x₀ ~ N(0, 9), the others N(0, exp(x₀)) given it (Neal 2003, doi:10.1214/aos/1056562461); log Z = 0."""

    sampled = True
    reach = 9.0

    def __init__(self, dim: int = 10):
        if dim < 2:
            raise ValueError(f"Funnel: dim must be at least 2, got {dim}")
        self.dim = dim
        self.log_z = torch.zeros(1, dtype=torch.float64)

    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        neck, rest = x.double()[:, :1], x.double()[:, 1:]
        first = log_normal(neck, 0.0, torch.tensor(3.0, dtype=torch.float64))
        others = -0.5 * (rest.square() * (-neck).exp() + neck + math.log(2 * math.pi))
        return first.sum(1) + others.sum(1)

    def sample(self, label: Tensor, generator: torch.Generator | None = None) -> Tensor:
        noise = standard_normal(len(label), self.dim, label, generator)
        neck = 3 * noise[:, :1]
        return torch.cat([neck, (neck / 2).exp() * noise[:, 1:]], 1)


class ManyWell(Target):
    """Pairs with log R = −x₁⁴ + 6x₁² + x₁/2 − x₂²/2, D/2 of them, each with two wells (Midgley et al. 2023).

    log Z is that of one pair by quadrature, D/2 times; draws invert the distribution function on the same grid. The
    modes are the 2^(D/2) choices of wells.
    """

    sampled = True
    reach = 3.5

    def __init__(self, dim: int = 32):
        if dim < 2 or dim % 2 or dim > 64:
            raise ValueError(f"ManyWell: dim must be an even number from 2 to 64, got {dim}")
        self.dim = dim
        self.mode_count = 2 ** (dim // 2)
        self.grid = torch.linspace(-5, 5, 40001, dtype=torch.float64)  # the density is below e^-400 at its ends
        density = self._log_well(self.grid).exp()
        mass = torch.cumulative_trapezoid(density, self.grid)
        self.cdf = torch.cat([mass.new_zeros(1), mass / mass[-1]])
        self.log_z = (dim // 2) * (mass[-1:].log() + 0.5 * math.log(2 * math.pi))

    @staticmethod
    def _log_well(x: Tensor) -> Tensor:
        return -x.square().square() + 6 * x.square() + 0.5 * x

    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        x = x.double()
        return self._log_well(x[:, 0::2]).sum(1) - 0.5 * x[:, 1::2].square().sum(1)

    def sample(self, label: Tensor, generator: torch.Generator | None = None) -> Tensor:
        shape = (len(label), self.dim // 2)
        u = torch.rand(shape, dtype=torch.float64, device=label.device, generator=generator)
        above = torch.searchsorted(self.cdf, u).clamp(1, len(self.cdf) - 1)
        low, high = self.cdf[above - 1], self.cdf[above]
        share = (u - low) / (high - low).clamp(min=1e-300)
        wells = self.grid[above - 1] + share * (self.grid[above] - self.grid[above - 1])
        return torch.stack([wells, standard_normal(*shape, label, generator)], 2).flatten(1)

    def mode(self, x: Tensor, label: Tensor) -> Tensor:
        power = 2 ** torch.arange(self.dim // 2, device=x.device)
        return ((x[:, 0::2] > 0) * power).sum(1)


class ConditionalGaussian(Target):
    """A Gaussian in the plane for each label c of C: turned by 2πc/C, three from the origin, with log Z = c.

    Its axes have standard deviations ½, along the radius, and 1.
    """

    sampled = True
    mode_count = 1
    reach = 6.0
    dim = 2

    def __init__(self, n_labels: int = 4):
        if n_labels < 1:
            raise ValueError(f"ConditionalGaussian: n_labels must be at least 1, got {n_labels}")
        self.n_labels = n_labels
        angle = 2 * math.pi * torch.arange(n_labels, dtype=torch.float64) / n_labels
        out = torch.stack([angle.cos(), angle.sin()], 1)
        self.axes = torch.stack([out, torch.stack([-angle.sin(), angle.cos()], 1)], 2)  # columns: outward, across
        self.mean, self.std = 3 * out, torch.tensor([0.5, 1.0], dtype=torch.float64)
        self.log_z = torch.arange(n_labels, dtype=torch.float64)

    def _turned(self, x: Tensor, label: Tensor) -> Tensor:
        """Places along the axes, from the mean, ``[N, 2]``."""
        return torch.einsum("nd,nde->ne", x.double() - self.mean[label], self.axes[label])

    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        return log_normal(self._turned(x, label), 0.0, self.std).sum(1) + label

    def sample(self, label: Tensor, generator: torch.Generator | None = None) -> Tensor:
        along = self.std * standard_normal(len(label), 2, label, generator)
        return self.mean[label] + torch.einsum("ne,nde->nd", along, self.axes[label])

    def mode(self, x: Tensor, label: Tensor) -> Tensor:
        return ((self._turned(x, label) / self.std).norm(dim=1) < 3).long() - 1


class Function(Target):
    """A density of your own.

    Args:
        function: from points ``[N, D]`` to log R ``[N]``, differentiable if the Langevin term is used.
        dim: D.
        log_z: its exact log Z, if that is known.
        reach: a length within which the mass lies, for pictures.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], dim: int, log_z: float | None = None, reach: float = 10.0):
        self.function, self.dim, self.reach = function, dim, reach
        self.log_z = None if log_z is None else torch.tensor([log_z], dtype=torch.float64)

    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        return self.function(x)
