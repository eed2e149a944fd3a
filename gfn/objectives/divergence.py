"""f-divergences as losses of the log-ratio Δ = log p_θ − log p* (model minus target).

Every member is normalised to f''(1) = 1, so every loss is ½Δ² near zero. With samples of the model
and the sampling distribution not differentiated, E[∇L(Δ)] = ∇D_f(p_θ‖p*), where
L(Δ) = ∫₀^Δ (f'(eᵗ) − f'(1)) dt (Hu et al. 2025, arXiv:2410.02596; Fawkes & Hartford,
arXiv:2605.15417). Off-policy, L ≥ 0 with equality only at Δ = 0 keeps the minimiser.

Exponentials stop growing at exp(EXPONENT_LIMIT): beyond it the slope is constant and the loss
linear, which is again a member of the family (any non-decreasing change of the slope that keeps its
zero is), so the sign of a gradient is right for every finite Δ and nothing overflows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gfn.objectives.groups import tabulated
from gfn.schedules import Number, Schedule, value_at

EXPONENT_LIMIT = 30.0  # e³⁰ ≈ 1e13, whose square (in Adam, in a gradient norm) is still far from float32's maximum
ALPHA_TOLERANCE = 1e-8  # |α − 1| below which α is taken as 1: the difference is below float64's cancellation error

SERIES_RADIUS = 0.03  # |x| below which e^x − 1 − x is summed as a series: six terms leave an error of 1e-16


class Divergence(ABC):
    """A convex f with f(1) = 0, seen as a loss of Δ. All methods are elementwise and keep the shape."""

    @abstractmethod
    def loss(self, delta: Tensor) -> Tensor:
        """L(Δ) ≥ 0."""

    @abstractmethod
    def slope(self, delta: Tensor) -> Tensor:
        """L'(Δ) = f'(e^Δ) − f'(1), the coefficient of ∇ log p_θ; non-decreasing, zero at zero."""

    @abstractmethod
    def curvature(self, delta: Tensor) -> Tensor:
        """L''(Δ) = e^Δ f''(e^Δ) ≥ 0."""

    @abstractmethod
    def generator(self, u: Tensor) -> Tensor:
        """f(u), u > 0, with f(1) = f'(1) = 0."""

    def saturated(self, delta: Tensor) -> Tensor:
        """Where the slope is held constant by a limit or a clip, bool."""
        return torch.zeros_like(delta, dtype=torch.bool)

    def at(self, step: int) -> Divergence:
        """The divergence in force at a training step, schedules resolved."""
        return self

    def fitted(self, excess: Tensor, group: Tensor) -> Divergence:
        """The divergence in force for a batch: Δ up to log Z, ``[B]``, in groups ``[B]``; most look at neither."""
        return self

    def settings(self) -> dict[str, float]:
        """Parameters in force, for the log."""
        return {}

    def centre(self, delta: Tensor, weight: Tensor) -> Tensor:
        """argmin over c of Σ_i weight_i L(Δ_i − c), the generalised mean behind DevGrad.

        Args:
            delta: finite, ``[..., K]``.
            weight: non-negative, summing to one over the last dimension, ``[..., K]``.

        Returns:
            ``[...]``, by bisection of Σ weight L'(Δ − c), which falls in c (f-TB, DevGrad).
        """
        live = weight > 0
        low = delta.masked_fill(~live, math.inf).amin(-1, keepdim=True)
        high = delta.masked_fill(~live, -math.inf).amax(-1, keepdim=True)
        for _ in range(80):
            middle = (low + high) / 2
            above = (weight * self.slope(delta - middle)).sum(-1, keepdim=True) > 0
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        return ((low + high) / 2).squeeze(-1)


def bounded_exp(x: Tensor) -> Tensor:
    """e^x, constant beyond EXPONENT_LIMIT."""
    return x.clamp(max=EXPONENT_LIMIT).exp()


def bounded_expm1(x: Tensor) -> Tensor:
    """e^x − 1, constant beyond EXPONENT_LIMIT."""
    return x.clamp(max=EXPONENT_LIMIT).expm1()


def bounded_expm1_minus(x: Tensor) -> Tensor:
    """e^x − 1 − x, continued linearly beyond EXPONENT_LIMIT and without cancellation near zero."""
    bounded = x.clamp(max=EXPONENT_LIMIT)
    slope = bounded.expm1()
    far = slope - bounded + slope * (x - bounded)
    near = x.clamp(-SERIES_RADIUS, SERIES_RADIUS)
    series = torch.ones_like(x)
    for k in range(8, 2, -1):
        series = 1 + near / k * series
    return torch.where(x.abs() < SERIES_RADIUS, 0.5 * near.square() * series, far)


@dataclass(frozen=True)
class Alpha(Divergence):
    """The α family: 0 forward KL (mode-covering), ½ Hellinger, 1 reverse KL (trajectory balance), 2 Pearson χ².

    f(u) = (u^α − αu + α − 1) / (α(α − 1)); L'(Δ) = (e^{(α−1)Δ} − 1)/(α − 1). The only family for
    which a wrong log Z rescales the on-policy gradient and does not turn it.

    Args:
        alpha: the dial.
        min_ess: if positive, each batch takes the α nearest to ``alpha``, on the way to 1, whose weights
            e^{(α−1)Δ} keep an effective sample size of at least this fraction of their group (mean over
            groups): tempering by as much as the batch needs. The gradient is then not that of one fixed
            divergence, and the minimiser stays (f-TB; α = 1 has equal weights).

    Raises:
        ValueError: if ``alpha`` is not finite, or ``min_ess`` lies outside [0, 1].
    """

    alpha: Number = 1.0
    min_ess: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_ess <= 1:
            raise ValueError(f"Alpha: min_ess must lie in [0, 1], got {self.min_ess}")
        if not isinstance(self.alpha, Schedule) and not math.isfinite(self.alpha):
            raise ValueError(f"Alpha: alpha must be a finite number, got {self.alpha}")

    @property
    def _alpha(self) -> float:
        if isinstance(self.alpha, Schedule):
            raise TypeError("Alpha: alpha is a schedule; ask for the divergence of a step with .at(step) first")
        return float(self.alpha)

    @property
    def _order(self) -> float:
        """α − 1, exactly zero where it is too small to divide by."""
        order = self._alpha - 1
        return 0.0 if abs(order) < ALPHA_TOLERANCE else order

    def loss(self, delta: Tensor) -> Tensor:
        a = self._order
        return 0.5 * delta.square() if a == 0 else bounded_expm1_minus(a * delta) / a**2

    def slope(self, delta: Tensor) -> Tensor:
        a = self._order
        return delta if a == 0 else bounded_expm1(a * delta) / a

    def curvature(self, delta: Tensor) -> Tensor:
        return bounded_exp(self._order * delta)

    def generator(self, u: Tensor) -> Tensor:
        alpha = self._order + 1
        if alpha == 1:
            return torch.xlogy(u, u) - u + 1
        if abs(alpha) < ALPHA_TOLERANCE:
            return u - 1 - u.log()
        return (u**alpha - alpha * u + alpha - 1) / (alpha * (alpha - 1))

    def saturated(self, delta: Tensor) -> Tensor:
        return self._order * delta > EXPONENT_LIMIT

    def at(self, step: int) -> Alpha:
        return Alpha(value_at(self.alpha, step), self.min_ess)

    def fitted(self, excess: Tensor, group: Tensor) -> Alpha:
        if self.min_ess == 0 or self._order == 0:
            return self
        table = tabulated(excess.double(), group, math.nan)
        size = (~table.isnan()).sum(-1)

        def ess(order: float) -> float:
            log_weight = (order * table).nan_to_num(-math.inf, math.inf, -math.inf)
            log_ess = 2 * log_weight.logsumexp(-1) - (2 * log_weight).logsumexp(-1)
            return float((log_ess.exp() / size).mean())

        if ess(self._order) >= self.min_ess:
            return self
        low, high = 0.0, 1.0  # shares of the way from 1 to alpha; the effective sample size falls along it
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if ess(middle * self._order) >= self.min_ess else (low, middle)
        return Alpha(1 + low * self._order)

    def settings(self) -> dict[str, float]:
        return {"alpha": self._alpha}

    def centre(self, delta: Tensor, weight: Tensor) -> Tensor:
        a = self._order
        if a == 0:
            return (weight * delta.masked_fill(weight == 0, 0.0)).sum(-1)
        return (a * delta + weight.log()).logsumexp(-1) / a


ForwardKL = partial(Alpha, 0.0)  # KL(p*‖p_θ): covers every mode
Hellinger = partial(Alpha, 0.5)  # 2 Σ(√p_θ − √p*)²
ReverseKL = partial(Alpha, 1.0)  # KL(p_θ‖p*): trajectory balance
PearsonChi2 = partial(Alpha, 2.0)  # ½ χ²(p_θ‖p*): seeks modes
NeymanChi2 = partial(Alpha, -1.0)  # ½ χ²(p*‖p_θ)
