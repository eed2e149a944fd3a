"""Numerics of the f family: float32 extremes, small residuals, α beside 1, and the dilogarithm."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import Tensor

from gfn.objectives import (
    Alpha,
    Clipped,
    Divergence,
    FromGenerator,
    FromLoss,
    Huber,
    JensenShannon,
    LogCosh,
    PearsonChi2,
    ShiftedCosh,
    Tempered,
)
from gfn.schedules import Linear
from tests.oracles import MEMBERS, f64

ALL: dict[str, Divergence] = {
    **{name: member.divergence for name, member in MEMBERS.items()},
    "alpha=1+1e-5": Alpha(1 + 1e-5),
    "alpha=1-1e-3": Alpha(1 - 1e-3),
    "alpha=-30": Alpha(-30.0),
    "alpha=30": Alpha(30.0),
    "js.001": JensenShannon(0.001),
    "js.999": JensenShannon(0.999),
    "scheduled": Alpha(Linear(0.0, 3.0, 10)).at(7),
    "clipped": Clipped(Alpha(-1.0), 10.0),
    "clipped wide": Clipped(Alpha(3.0), 1e3),
    "tempered": Tempered(Alpha(-1.0), 0.005),
    "tempered sharply": Tempered(ShiftedCosh(), 20.0),
    "from generator": FromGenerator(lambda u: (u - 1) * u.log()),
    "from loss": FromLoss(lambda d: 2 * d.cosh() - 2),
}
SIZES = torch.tensor([1e-6, 1e-3, 0.5, 1.0, 20.0, 31.0, 79.0, 81.0, 88.0, 89.0, 100.0, 1e3, 1e4, 1e6])


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("name", ALL)
def test_float32_extremes(name: str, sign: float) -> None:
    divergence, delta = ALL[name], sign * SIZES
    loss, slope, curvature = divergence.loss(delta), divergence.slope(delta), divergence.curvature(delta)
    for value in (loss, slope, curvature):
        assert value.dtype == torch.float32
        assert value.isfinite().all()
    assert (slope.sign() == sign).all()
    assert (curvature >= 0).all()
    assert (loss > 0).all()
    assert (loss.diff() > 0).all()  # ever farther is never better: the slope keeps its sign
    assert slope.square().isfinite().all()  # a gradient norm does not overflow


@pytest.mark.parametrize("name", ALL)
def test_float32_agrees_with_float64(name: str) -> None:
    delta = torch.cat([-SIZES.flip(0), SIZES])
    for method in ("loss", "slope"):
        single, double = (getattr(ALL[name], method)(x) for x in (delta, delta.double()))
        torch.testing.assert_close(single.double(), double, atol=0, rtol=2e-4 if "30" in name or "20" in name else 3e-5)


@pytest.mark.parametrize("name", ALL)
def test_gradient_of_the_loss_is_the_slope_at_extremes(name: str) -> None:
    """No clamp may cut a gradient off or turn it round."""
    divergence = ALL[name]
    delta = torch.cat([-SIZES.flip(0), SIZES]).double().requires_grad_()
    (found,) = torch.autograd.grad(divergence.loss(delta).sum(), delta)
    torch.testing.assert_close(found, divergence.slope(delta.detach()), atol=1e-12, rtol=1e-6)


def test_saturation_starts_where_the_exponent_is_bounded() -> None:
    delta = f64(-40, -31, -29, 0, 29, 31, 40)
    assert Alpha(0.0).saturated(delta).tolist() == [True, True, *[False] * 5]
    assert Alpha(2.0).saturated(delta).tolist() == [*[False] * 5, True, True]
    assert not Alpha(1.0).saturated(delta).any()
    assert ShiftedCosh().saturated(delta).tolist() == [True, True, False, False, False, True, True]
    assert Tempered(PearsonChi2(), 0.5).saturated(2 * delta).tolist() == [*[False] * 5, True, True]
    assert MEMBERS["jeffreys"].divergence.saturated(delta).tolist() == [True, True, *[False] * 5]
    assert Huber(29.5).saturated(delta).tolist() == [True, True, False, False, False, True, True]
    for derived in (ALL["from generator"], ALL["from loss"]):
        assert derived.saturated(delta).tolist() == [True, True, False, False, False, True, True]
        assert torch.equal(derived.curvature(delta) == 0, derived.saturated(delta))
        assert torch.equal(derived.slope(f64(-40, 40)), derived.slope(f64(-31, 31)))


def alpha_loss_by_series(order: float, delta: Tensor) -> Tensor:
    """Σ_{k≥2} order^{k−2} Δ^k / k!, the loss of α = 1 + order, for |order·Δ| ≤ 1."""
    terms = [order ** (k - 2) * delta**k / float(math.factorial(k)) for k in range(2, 22)]
    return torch.stack(terms).sum(0)


@pytest.mark.parametrize("order", [0.1, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-9, -1e-9, -1e-5, -1e-3, -0.1])
def test_alpha_near_one(order: float) -> None:
    delta = torch.linspace(-8, 8, 33, dtype=torch.float64)
    order = (1 + order) - 1  # as far as a float64 α can say
    divergence = Alpha(1 + order)
    torch.testing.assert_close(divergence.loss(delta), alpha_loss_by_series(order, delta), atol=0, rtol=1e-7)
    torch.testing.assert_close(divergence.loss(delta.float()).double(), divergence.loss(delta), atol=0, rtol=1e-5)
    slope = gradient_by_series(order, delta)
    torch.testing.assert_close(divergence.slope(delta), slope, atol=0, rtol=1e-7)
    weight = torch.full_like(delta, 1 / len(delta))
    centre = float(divergence.centre(delta, weight))
    assert abs(float((weight * gradient_by_series(order, delta - centre)).sum())) < 3e-7


def gradient_by_series(order: float, delta: Tensor) -> Tensor:
    """The slope of α = 1 + order, as a power series."""
    return torch.stack([order ** (k - 1) * delta**k / float(math.factorial(k)) for k in range(1, 22)]).sum(0)


@pytest.mark.parametrize("middle", [0.0, 1.0])
def test_generator_is_continuous_in_alpha(middle: float) -> None:
    u = f64(0.01, 0.3, 0.99, 1.0, 2.0, 30.0)
    exact = Alpha(middle).generator(u)
    for shift in (1e-9, -1e-9, 1e-7, -1e-7, 1e-5, -1e-5):
        torch.testing.assert_close(Alpha(middle + shift).generator(u), exact, atol=2e-6, rtol=20 * abs(shift))


def slope_of_jensen_shannon(weight: float, t: float) -> float:
    return float(-np.logaddexp(math.log(weight), math.log1p(-weight) - t) / (1 - weight))


@pytest.mark.parametrize("delta", [-1e4, -300.0, -31.0, -7.0, -1.01, -0.5, 0.7, 1.01, 6.0, 40.0, 500.0, 1e4])
@pytest.mark.parametrize("weight", [0.001, 0.25, 0.5, 0.9, 0.999])
def test_jensen_shannon_loss_is_the_integral_of_its_slope(weight: float, delta: float) -> None:
    bend = math.copysign(min(abs(delta), 60.0), delta)
    near, _ = quad(lambda t: slope_of_jensen_shannon(weight, t), 0, bend, epsabs=1e-13, epsrel=1e-12, limit=200)
    far, _ = quad(lambda t: slope_of_jensen_shannon(weight, t), bend, delta, epsabs=1e-13, epsrel=1e-12)
    found = float(JensenShannon(weight).loss(f64(delta)))
    assert found == pytest.approx(near + far, rel=1e-10)


@pytest.mark.parametrize("size", [1e-3, 1e-5, 1e-8])
@pytest.mark.parametrize(
    ("divergence", "third"),  # L(Δ) = ½Δ² + third·Δ³/6 + …
    [
        (JensenShannon(0.25), -0.25),
        (JensenShannon(0.5), -0.5),
        (JensenShannon(0.9), -0.9),
        (LogCosh(), 0.0),
        (ShiftedCosh(), 0.0),
        (Alpha(0.0), -1.0),
        (Alpha(3.0), 2.0),
    ],
)
def test_small_residuals_keep_their_digits(divergence: Divergence, third: float, size: float) -> None:
    delta = f64(-size, size)
    expected = 0.5 * delta.square() + third * delta**3 / 6
    torch.testing.assert_close(divergence.loss(delta), expected, atol=0, rtol=1e-12 + size**2)
    torch.testing.assert_close(
        divergence.slope(delta), delta + third * delta.square() / 2, atol=0, rtol=1e-12 + size**2
    )
