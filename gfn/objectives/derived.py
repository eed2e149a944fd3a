"""Divergences made from others, from a generator f, or from a loss."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gfn.objectives.divergence import EXPONENT_LIMIT, Divergence
from gfn.objectives.quadrature import integral
from gfn.schedules import Number, Schedule, value_at

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Clipped(Divergence):
    """``divergence`` with its slope held constant for |Δ| > ``threshold``.

    Clipping the coefficient is choosing another f: f̃'(u) = f'(clip(u, e^−T, e^T)) is non-decreasing,
    so the on-policy gradient is exactly that of D_f̃, and the minimiser stays.

    Raises:
        ValueError: unless ``threshold`` > 0.
    """

    divergence: Divergence
    threshold: float = 10.0

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise ValueError(f"Clipped: threshold must be positive, got {self.threshold}")

    def _clip(self, delta: Tensor) -> Tensor:
        return delta.clamp(-self.threshold, self.threshold)

    def loss(self, delta: Tensor) -> Tensor:
        inner = self._clip(delta)
        return self.divergence.loss(inner) + self.divergence.slope(inner) * (delta - inner)

    def slope(self, delta: Tensor) -> Tensor:
        return self.divergence.slope(self._clip(delta))

    def curvature(self, delta: Tensor) -> Tensor:
        return self.divergence.curvature(delta).masked_fill(delta.abs() > self.threshold, 0.0)

    def generator(self, u: Tensor) -> Tensor:
        log_inner = self._clip(u.log())
        inner = log_inner.exp()
        return self.divergence.generator(inner) + self.divergence.slope(log_inner) * (u - inner)

    def saturated(self, delta: Tensor) -> Tensor:
        return (delta.abs() > self.threshold) | self.divergence.saturated(delta)

    def at(self, step: int) -> Clipped:
        return Clipped(self.divergence.at(step), self.threshold)

    def fitted(self, excess: Tensor, group: Tensor) -> Clipped:
        return Clipped(self.divergence.fitted(excess, group), self.threshold)

    def settings(self) -> dict[str, float]:
        return self.divergence.settings()


@dataclass(frozen=True)
class Tempered(Divergence):
    """L̃(Δ) = L(βΔ)/β (Fawkes & Hartford, arXiv:2605.15417): the slope is L'(βΔ), with no 1/β anywhere.

    For the α family it equals β times the loss of α_β = 1 + β(α − 1). The curvature at zero is β.
    """

    divergence: Divergence
    beta: Number = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.beta, Schedule) and not (self.beta > 0 and math.isfinite(self.beta)):
            raise ValueError(f"Tempered: beta must be a positive number, got {self.beta}")

    @property
    def _beta(self) -> float:
        if isinstance(self.beta, Schedule):
            raise TypeError("Tempered: beta is a schedule; ask for the divergence of a step with .at(step) first")
        return float(self.beta)

    def loss(self, delta: Tensor) -> Tensor:
        return self.divergence.loss(self._beta * delta) / self._beta

    def slope(self, delta: Tensor) -> Tensor:
        return self.divergence.slope(self._beta * delta)

    def curvature(self, delta: Tensor) -> Tensor:
        return self._beta * self.divergence.curvature(self._beta * delta)

    def generator(self, u: Tensor) -> Tensor:
        return _generator_of(self.slope, u)

    def saturated(self, delta: Tensor) -> Tensor:
        return self.divergence.saturated(self._beta * delta)

    def at(self, step: int) -> Tempered:
        return Tempered(self.divergence.at(step), value_at(self.beta, step))

    def fitted(self, excess: Tensor, group: Tensor) -> Tempered:
        return Tempered(self.divergence.fitted(self._beta * excess, group), self.beta)

    def settings(self) -> dict[str, float]:
        return {**self.divergence.settings(), "beta": self._beta}

    def centre(self, delta: Tensor, weight: Tensor) -> Tensor:
        return self.divergence.centre(self._beta * delta, weight) / self._beta


class _Derived(Divergence):
    """A member known through an unnormalised slope; it is checked and normalised at construction."""

    _scale: float

    @abstractmethod
    def _slope(self, delta: Tensor) -> Tensor:
        """Slope before normalisation, float64, differentiable by autograd."""

    @abstractmethod
    def _given(self, delta: Tensor) -> Tensor:
        """The user's function at Δ."""

    def _accept(self) -> None:
        """Normalise to slope'(0) = 1; refuse a slope that is not smooth at zero or falls anywhere."""
        name = type(self).__name__
        step = torch.tensor([-1e-4, 0.0, 1e-4], dtype=torch.float64)
        value, rise = self._slope(step), _derivative(self._slope, step)
        scale = float(rise[1])
        jump = abs(float(value[2] - value[0]) - 2e-4 * scale)
        bend = float((rise - rise[1]).abs().max())
        if not math.isfinite(scale) or scale <= 0 or jump > 1e-6 * scale or bend > 1e-2 * scale:
            raise ValueError(
                f"{name}: the function must be twice differentiable at its minimum with a positive second derivative "
                f"there; found {scale:.4g} at it, {float(rise[0]):.4g} just before and {float(rise[2]):.4g} just after "
                "(use TotalVariation or Huber for the members with kinks)"
            )
        grid = torch.linspace(-EXPONENT_LIMIT, EXPONENT_LIMIT, 2001, dtype=torch.float64)
        slopes = self._slope(grid)
        finite = slopes.isfinite() & self._given(grid).isfinite()
        if not bool(finite.all()):
            raise ValueError(
                f"{name}: the function or its derivative is not finite at Δ = {_nearest_zero(grid[~finite]):.3g}, "
                "u = e^Δ; f must live on (0, ∞), a loss on all numbers"
            )
        falling = slopes.diff() < -1e-9 * (1 + slopes[1:].abs())
        if bool(falling.any()):
            at = _nearest_zero(grid[1:][falling])
            raise ValueError(
                f"{name}: the function is not convex: its derivative falls near Δ = {at:.3g} (u = {math.exp(at):.3g})"
            )
        self._scale = scale

    def slope(self, delta: Tensor) -> Tensor:
        inner = delta.double().clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
        return (self._slope(inner) / self._scale).to(delta.dtype)

    def curvature(self, delta: Tensor) -> Tensor:
        inner = delta.double().clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
        rise = _derivative(self._slope, inner) / self._scale
        return rise.masked_fill(self.saturated(delta), 0.0).to(delta.dtype)

    def loss(self, delta: Tensor) -> Tensor:
        x = delta.double()
        inner = x.clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
        value = integral(self.slope, inner) + self.slope(inner) * (x - inner)
        return value.to(delta.dtype)

    def saturated(self, delta: Tensor) -> Tensor:
        return delta.abs() > EXPONENT_LIMIT


class FromGenerator(_Derived):
    """The divergence of any convex f on (0, ∞), given as an elementwise torch function.

    f is shifted and scaled so that f(1) = f'(1) = 0 and f''(1) = 1, which changes the divergence by
    a factor only. Derivatives come from autograd, the loss from Gauss–Legendre quadrature; the slope
    is held constant for |Δ| > EXPONENT_LIMIT.

    Raises:
        ValueError: if f is not convex, or not twice differentiable at 1.
    """

    def __init__(self, f: Function):
        self.f = f
        one = torch.ones((), dtype=torch.float64)
        self._at_one = float(f(one))
        self._slope_at_one = float(_derivative(f, one))
        self._accept()

    def _given(self, delta: Tensor) -> Tensor:
        return self.f(delta.exp())

    def _slope(self, delta: Tensor) -> Tensor:
        return _derivative(self.f, delta.exp()) - self._slope_at_one

    def generator(self, u: Tensor) -> Tensor:
        return (self.f(u) - self._at_one - self._slope_at_one * (u - 1)) / self._scale


class FromLoss(_Derived):
    """The divergence whose loss of Δ is a given convex function ℓ with its minimum at zero.

    f(u) = ∫₁ᵘ ℓ'(log w) dw (Hu et al. 2025, arXiv:2410.02596); ℓ is scaled to ℓ''(0) = 1 and
    continued linearly for |Δ| > EXPONENT_LIMIT.

    Raises:
        ValueError: if ℓ is not convex, not twice differentiable at 0, or not smallest there.
    """

    def __init__(self, function: Function):
        self.function = function
        at_zero = float(_derivative(function, torch.zeros((), dtype=torch.float64)))
        if abs(at_zero) > 1e-9:
            raise ValueError(f"FromLoss: the loss must be smallest at Δ = 0; its derivative there is {at_zero:.4g}")
        self._accept()

    def _given(self, delta: Tensor) -> Tensor:
        return self.function(delta)

    def _slope(self, delta: Tensor) -> Tensor:
        return _derivative(self.function, delta)

    def generator(self, u: Tensor) -> Tensor:
        return _generator_of(self.slope, u)


def _nearest_zero(x: Tensor) -> float:
    return float(x[x.abs().argmin()])


def _derivative(function: Function, x: Tensor) -> Tensor:
    """Elementwise derivative by autograd; differentiable again if ``x`` is."""
    outer = x.requires_grad
    with torch.enable_grad():
        inner = x if outer else x.detach().requires_grad_()
        value = function(inner).sum()
        if not value.requires_grad:
            return torch.zeros_like(x)
        (gradient,) = torch.autograd.grad(value, inner, create_graph=True, materialize_grads=True)
    return gradient if outer else gradient.detach()


def _generator_of(slope: Function, u: Tensor) -> Tensor:
    """f(u) = ∫₁ᵘ slope(log w) dw = ∫₀^{log u} slope(t) eᵗ dt."""
    return integral(lambda t: slope(t) * t.exp(), u.double().log()).to(u.dtype)
