"""Members of the f-divergence family beyond the α family; all with f''(1) = 1 but the last."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gfn.objectives.divergence import (
    EXPONENT_LIMIT,
    Divergence,
    bounded_exp,
    bounded_expm1,
    bounded_expm1_minus,
)
from gfn.objectives.quadrature import integral


@dataclass(frozen=True)
class JensenShannon(Divergence):
    """Skewed Jensen–Shannon w KL(p‖m) + (1−w) KL(q‖m), m = wp + (1−w)q, over its f''(1) = w(1−w).

    From reverse KL (weight → 0) through Jensen–Shannon (½) to forward KL (→ 1), with a slope that is
    at most linear: the covering member that cannot blow up.

    Raises:
        ValueError: unless 0 < ``weight`` < 1.
    """

    weight: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.weight < 1:
            raise ValueError(f"JensenShannon: weight must lie strictly between 0 and 1, got {self.weight}")

    def loss(self, delta: Tensor) -> Tensor:
        w = self.weight
        log_r = math.log(w) - math.log1p(-w)
        at_zero = _dilogarithm(torch.tensor(log_r, dtype=torch.float64))
        x = delta.double()
        # ½Δ² + Li₂(−re^Δ) cancels to a linear function for Δ → ∞: there the dilogarithm's own −½log² is added by hand.
        straight, bent = -x * math.log(w) - 0.5 * log_r**2, 0.5 * x.square() - x * math.log1p(-w)
        square = torch.where(x + log_r > 0, straight, bent)
        far = (square + _dilogarithm(x + log_r, without_square=True) - at_zero) / (1 - w)
        near = integral(self.slope, x.clamp(-1, 1), panels=1)  # where the terms above would cancel
        return torch.where(x.abs() < 1, near, far).to(delta.dtype)

    def slope(self, delta: Tensor) -> Tensor:
        # −log(w + (1−w)e^{−Δ})/(1−w), exact near zero; where Δ ≪ 0 it is linear to all digits
        inner = delta.clamp(min=-2 * EXPONENT_LIMIT)
        return (delta - inner - ((1 - self.weight) * (-inner).expm1()).log1p()) / (1 - self.weight)

    def curvature(self, delta: Tensor) -> Tensor:
        return 1 / (1 + self.weight * bounded_expm1(delta))

    def generator(self, u: Tensor) -> Tensor:
        w = self.weight
        mixture = w * u + 1 - w
        return (w * torch.xlogy(u, u) - torch.xlogy(mixture, mixture)) / (w * (1 - w))


def _dilogarithm(log_x: Tensor, without_square: bool = False) -> Tensor:
    """Li₂(−x) for x > 0 given log x (float64); optionally without the −½ log²x that it has for x > 1."""
    small = -log_x.abs()  # Li₂(−x) = −Li₂(−1/x) − π²/6 − ½ log²x
    x = small.exp()
    y = (x / (1 + x)).unsqueeze(-1)
    k = torch.arange(1, 71, dtype=torch.float64, device=log_x.device)
    series = -(y**k / k**2).sum(-1) - 0.5 * x.log1p().square()
    square = 0.0 if without_square else 0.5 * log_x.square()
    return torch.where(log_x > 0, -series - math.pi**2 / 6 - square, series)


@dataclass(frozen=True)
class Jeffreys(Divergence):
    """Half of KL(p_θ‖p*) + KL(p*‖p_θ)."""

    def loss(self, delta: Tensor) -> Tensor:
        return 0.25 * delta.square() + 0.5 * bounded_expm1_minus(-delta)

    def slope(self, delta: Tensor) -> Tensor:
        return 0.5 * (delta - bounded_expm1(-delta))

    def curvature(self, delta: Tensor) -> Tensor:
        return 0.5 * (1 + bounded_exp(-delta))

    def generator(self, u: Tensor) -> Tensor:
        return 0.5 * (u - 1) * u.log()

    def saturated(self, delta: Tensor) -> Tensor:
        return -delta > EXPONENT_LIMIT


@dataclass(frozen=True)
class ShiftedCosh(Divergence):
    """Half of KL(p*‖p_θ) + ½χ²(p_θ‖p*): L(Δ) = cosh Δ − 1."""

    def loss(self, delta: Tensor) -> Tensor:
        return 0.5 * (bounded_expm1_minus(delta) + bounded_expm1_minus(-delta))

    def slope(self, delta: Tensor) -> Tensor:
        return 0.5 * (bounded_expm1(delta) - bounded_expm1(-delta))

    def curvature(self, delta: Tensor) -> Tensor:
        return 0.5 * (bounded_exp(delta) + bounded_exp(-delta))

    def generator(self, u: Tensor) -> Tensor:
        return 0.25 * (u.square() - 1) - 0.5 * u.log()

    def saturated(self, delta: Tensor) -> Tensor:
        return delta.abs() > EXPONENT_LIMIT


@dataclass(frozen=True)
class LogCosh(Divergence):
    """4 KL(p*‖m) with m the even mixture: L(Δ) = 4 log cosh(Δ/2), slope 2 tanh(Δ/2)."""

    def loss(self, delta: Tensor) -> Tensor:
        near = 0.5 * (delta / 2).clamp(-1, 1).sinh().square().log1p()  # without cancellation
        size = delta.abs()
        return 4 * torch.where(size < 2, near, size / 2 + (-size).exp().log1p() - math.log(2))

    def slope(self, delta: Tensor) -> Tensor:
        return 2 * (delta / 2).tanh()

    def curvature(self, delta: Tensor) -> Tensor:
        return 1 - (delta / 2).tanh().square()

    def generator(self, u: Tensor) -> Tensor:
        return 2 * (u - 1 - 2 * ((1 + u) / 2).log())


@dataclass(frozen=True)
class Huber(Divergence):
    """Huber's loss: reverse KL with its slope held at ±``k``.

    Raises:
        ValueError: unless ``k`` > 0.
    """

    k: float = 1.0

    def __post_init__(self) -> None:
        if not self.k > 0:
            raise ValueError(f"Huber: k must be positive, got {self.k}")

    def loss(self, delta: Tensor) -> Tensor:
        inner = delta.clamp(-self.k, self.k)
        return inner * (delta - 0.5 * inner)

    def slope(self, delta: Tensor) -> Tensor:
        return delta.clamp(-self.k, self.k)

    def curvature(self, delta: Tensor) -> Tensor:
        return (delta.abs() <= self.k).to(delta.dtype)

    def generator(self, u: Tensor) -> Tensor:
        log_inner = u.log().clamp(-self.k, self.k)
        inner = log_inner.exp()
        return inner * log_inner - inner + 1 + log_inner * (u - inner)

    def saturated(self, delta: Tensor) -> Tensor:
        return delta.abs() > self.k


@dataclass(frozen=True)
class TotalVariation(Divergence):
    """½ Σ|p_θ − p*|: L(Δ) = ½|Δ|.

    The one member without f''(1) = 1: f has a kink at 1, so gradients do not fade near the solution
    (lower the learning rate), and the curvature is zero.
    """

    def loss(self, delta: Tensor) -> Tensor:
        return 0.5 * delta.abs()

    def slope(self, delta: Tensor) -> Tensor:
        return 0.5 * delta.sign()

    def curvature(self, delta: Tensor) -> Tensor:
        return torch.zeros_like(delta)

    def generator(self, u: Tensor) -> Tensor:
        return 0.5 * (u - 1).abs()

    def centre(self, delta: Tensor, weight: Tensor) -> Tensor:
        """The weighted median; between the two middle values where either would do."""
        ordered, order = delta.sort(-1)
        below = weight.gather(-1, order).cumsum(-1)
        low, high = (reached.int().argmax(-1, keepdim=True) for reached in (below >= 0.5 - 1e-12, below > 0.5 + 1e-12))
        return (ordered.gather(-1, low) + ordered.gather(-1, high)).squeeze(-1) / 2
