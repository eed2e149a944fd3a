"""Members made from others, from a generator or from a loss: equality with the built-in ones, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gfn.objectives import (
    Alpha,
    Clipped,
    Divergence,
    FromGenerator,
    FromLoss,
    Huber,
    JensenShannon,
    PearsonChi2,
    ReverseKL,
    ShiftedCosh,
    Tempered,
)
from gfn.schedules import Linear
from tests.oracles import LOG_Q, MEMBERS, SMOOTH, THETA, P, divergence_gradient, f64, gradient

DELTA = torch.linspace(-9, 9, 91, dtype=torch.float64)
U = f64(1e-3, 0.2, 0.9, 1.0, 1.1, 3.0, 40.0)


def alpha_generator(alpha: float) -> Callable[[Tensor], Tensor]:
    """The α family as it is commonly written."""
    return lambda u: (u**alpha - alpha * u + alpha - 1) / (alpha * (alpha - 1))


def skewed(w: float) -> Callable[[Tensor], Tensor]:
    """Skewed Jensen–Shannon, not normalised."""
    return lambda u: w * u * u.log() - (w * u + 1 - w) * (w * u + 1 - w).log()


def huber(u: Tensor) -> Tensor:
    """Reverse KL with its derivative held at ±1."""
    middle = u * u.log() - u + 1
    above, below = u - math.e + 1, 1 - 1 / math.e - u
    return torch.where(u > math.e, above, torch.where(u < 1 / math.e, below, middle))


GENERATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "alpha=-1": alpha_generator(-1.0),
    "alpha=0": lambda u: u - 1 - u.log(),
    "alpha=.5": alpha_generator(0.5),
    "alpha=.75": alpha_generator(0.75),
    "alpha=1": lambda u: u * u.log() - u + 1,
    "alpha=1.2": alpha_generator(1.2),
    "alpha=2": alpha_generator(2.0),
    "alpha=3": alpha_generator(3.0),
    "js": lambda u: 0.5 * (u * u.log() - (1 + u) * ((1 + u) / 2).log()),
    "js.25": skewed(0.25),
    "js.9": skewed(0.9),
    "jeffreys": lambda u: (u - 1) * u.log(),
    "cosh": lambda u: 0.5 * (u.square() - 1) - u.log(),
    "logcosh": lambda u: u - 1 - 2 * ((1 + u) / 2).log(),
}
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "alpha=0": lambda d: (-d).exp() - 1 + d,
    "alpha=.5": lambda d: 4 * (-d / 2).exp() - 4 + 2 * d,
    "alpha=1": lambda d: d.square(),
    "alpha=2": lambda d: d.exp() - 1 - d,
    "jeffreys": lambda d: 0.5 * d.square() + d + (-d).exp() - 1,
    "cosh": lambda d: 2 * d.cosh() - 2,
    "logcosh": lambda d: (d / 2).cosh().log(),
}


def assert_same_member(found: Divergence, expected: Divergence, rtol: float = 1e-8) -> None:
    for name in ("loss", "slope", "curvature"):
        ours, theirs = getattr(found, name)(DELTA), getattr(expected, name)(DELTA)
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=rtol, msg=lambda text, name=name: f"{name}: {text}")
    torch.testing.assert_close(found.generator(U), expected.generator(U), atol=1e-9, rtol=rtol)


@pytest.mark.parametrize("name", GENERATORS)
def test_from_generator_is_the_built_in_member(name: str) -> None:
    f = GENERATORS[name]
    assert_same_member(FromGenerator(f), SMOOTH[name])
    assert_same_member(FromGenerator(lambda u: 3 * f(u) - 2 * u + 5), SMOOTH[name])


@pytest.mark.parametrize("name", LOSSES)
def test_from_loss_is_the_built_in_member(name: str) -> None:
    loss = LOSSES[name]
    assert_same_member(FromLoss(loss), SMOOTH[name])
    assert_same_member(FromLoss(lambda d: 7 * loss(d) + 1), SMOOTH[name])


@pytest.mark.parametrize("name", SMOOTH)
def test_from_loss_round_trip(name: str) -> None:
    assert_same_member(FromLoss(SMOOTH[name].loss), SMOOTH[name])


def test_from_generator_with_kinks_away_from_one() -> None:
    found, expected = FromGenerator(huber), Huber(1.0)
    torch.testing.assert_close(found.slope(DELTA), expected.slope(DELTA), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.loss(DELTA), expected.loss(DELTA), atol=2e-3, rtol=0)  # quadrature across a kink


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (lambda u: (u - 1).abs(), "twice differentiable.*TotalVariation"),
        (lambda u: (u - 1).square() + (u - 1).abs(), "twice differentiable.*TotalVariation"),
        (lambda u: torch.where(u < 1, 1.0, 2.0) * (u - 1).square(), "twice differentiable"),
        (lambda u: (3 + (u - 1).sign()) * (u - 1).square(), "found 6 at it, 4 just before and 8"),
        (lambda u: (u - 1) ** 4, "twice differentiable"),
        (lambda u: (u - 1).abs() ** 1.5, "twice differentiable"),
        (lambda u: u.log(), "positive second derivative"),
        (lambda u: 2 * u + 1, "positive second derivative"),
        (lambda u: u.log().square(), r"not convex: its derivative falls near Δ = 1\."),
        (lambda u: (u - 1).square() - 0.2 * (u - 1) ** 3, "not convex: its derivative falls near Δ = 1.0"),
        (lambda u: -(u - 0.5).log(), r"not finite at Δ = -0\.[67].*\(0, ∞\)"),
    ],
)
def test_generators_refused(f: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"FromGenerator.*{message}"):
        FromGenerator(f)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda d: (d - 1).square(), "smallest at Δ = 0; its derivative there is -2"),
        (lambda d: d.exp(), "smallest at Δ = 0; its derivative there is 1"),
        (lambda d: d.abs(), "twice differentiable.*TotalVariation"),
        (lambda d: d**4, "twice differentiable"),
        (lambda d: -d.square(), "positive second derivative"),
        (lambda d: 1 - (-d.square() / 2).exp(), "not convex: its derivative falls near Δ = -"),
    ],
)
def test_losses_refused(loss: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=f"FromLoss.*{message}"):
        FromLoss(loss)


@pytest.mark.parametrize("threshold", [0.4, 1.3, 50.0])
@pytest.mark.parametrize("name", MEMBERS)
def test_clipped_is_a_member_of_the_family(name: str, threshold: float) -> None:
    """Its gradient on-policy is that of its own f, which differs from the clipped member's where the clip bites."""
    clipped = Clipped(MEMBERS[name].divergence, threshold)
    surrogate = gradient(lambda t: (P * clipped.loss(t.log_softmax(0) - LOG_Q)).sum(), THETA)
    torch.testing.assert_close(surrogate, divergence_gradient(clipped), atol=1e-12, rtol=0)
    differs = bool((surrogate - divergence_gradient(MEMBERS[name].divergence)).abs().max() > 1e-3)
    assert differs == (threshold < 1.7 and name != "tv" and (name != "huber" or threshold < 1))


@pytest.mark.parametrize("name", SMOOTH)
def test_clipped_slope_is_held_beyond_the_threshold(name: str) -> None:
    member, clipped = SMOOTH[name], Clipped(SMOOTH[name], 2.0)
    torch.testing.assert_close(clipped.slope(DELTA), member.slope(DELTA.clamp(-2, 2)), atol=0, rtol=0)
    assert torch.equal(clipped.saturated(DELTA), DELTA.abs() > 2)
    assert (clipped.curvature(DELTA) == 0).equal(DELTA.abs() > 2)
    torch.testing.assert_close(gradient(lambda d: clipped.loss(d).sum(), DELTA), clipped.slope(DELTA))
    inside = DELTA[DELTA.abs() <= 2]
    torch.testing.assert_close(clipped.loss(inside), member.loss(inside), atol=0, rtol=0)


def test_clipped_reverse_kl_is_huber() -> None:
    assert_same_member(Clipped(ReverseKL(), 0.7), Huber(0.7))
    assert_same_member(Clipped(ReverseKL(), 1e3), ReverseKL())


@pytest.mark.parametrize(
    ("divergence", "tolerance"),
    [
        (Tempered(JensenShannon(0.9), 0.3), 1e-10),
        (Tempered(ShiftedCosh(), 1.7), 1e-10),
        (Tempered(Clipped(ShiftedCosh(), 1.5), 2.0), 1e-3),  # its generator comes from quadrature across a kink
    ],
)
def test_tempered_is_a_member_of_the_family(divergence: Divergence, tolerance: float) -> None:
    surrogate = gradient(lambda t: (P * divergence.loss(t.log_softmax(0) - LOG_Q)).sum(), THETA)
    torch.testing.assert_close(surrogate, divergence_gradient(divergence), atol=tolerance, rtol=0)
    slope = gradient(lambda d: divergence.loss(d).sum(), DELTA)
    torch.testing.assert_close(slope, divergence.slope(DELTA))
    assert divergence.curvature(f64(0.0)) == pytest.approx(divergence.settings()["beta"])


def test_schedules_are_resolved_all_the_way_down() -> None:
    ramp = Linear(0.0, 1.0, 10)
    scheduled = Clipped(Tempered(Alpha(ramp), Linear(1.0, 3.0, 10)), 4.0)
    assert scheduled.at(5) == Clipped(Tempered(Alpha(0.5), 2.0), 4.0)
    assert scheduled.at(99).settings() == {"alpha": 1.0, "beta": 3.0}
    assert Huber(2.0).at(3) == Huber(2.0)
    for unresolved in (Alpha(ramp), Tempered(Alpha(0.0), ramp), scheduled):
        with pytest.raises(TypeError, match="schedule"):
            unresolved.loss(DELTA)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Alpha(math.nan), "Alpha: alpha must be a finite number, got nan"),
        (lambda: Alpha(math.inf), "Alpha: alpha"),
        (lambda: JensenShannon(0.0), "JensenShannon: weight.*between 0 and 1"),
        (lambda: JensenShannon(1.0), "JensenShannon: weight.*between 0 and 1"),
        (lambda: JensenShannon(math.nan), "JensenShannon: weight"),
        (lambda: Huber(0.0), "Huber: k must be positive"),
        (lambda: Huber(math.nan), "Huber: k must be positive"),
        (lambda: Clipped(PearsonChi2(), -1.0), "Clipped: threshold must be positive"),
        (lambda: Clipped(PearsonChi2(), math.nan), "Clipped: threshold must be positive"),
        (lambda: Tempered(PearsonChi2(), 0.0), "Tempered: beta must be a positive number"),
        (lambda: Tempered(PearsonChi2(), math.inf), "Tempered: beta must be a positive number"),
    ],
)
def test_parameters_out_of_range_are_refused(make: Callable[[], Divergence], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
