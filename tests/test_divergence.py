"""Exact tests of the f family on six outcomes: values, gradients, signs, and what each member prefers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gfn.objectives import (
    Alpha,
    Divergence,
    ForwardKL,
    Hellinger,
    JensenShannon,
    NeymanChi2,
    PearsonChi2,
    ReverseKL,
    Tempered,
)
from tests.oracles import (
    DELTA,
    LOG_P,
    LOG_Q,
    MEMBERS,
    SMOOTH,
    THETA,
    P,
    Q,
    cosine,
    divergence_gradient,
    f64,
    gradient,
)

# D_f, the surrogate E_p L, and ∇_θ D_f
ON_POLICY = {
    "alpha=-1": (0.69808439, 0.66286344, -0.01835018, -0.14650256, 0.30993367, -0.62535089, 0.08446678, 0.39580317),
    "alpha=0": (0.57409141, 0.62764249, -0.09873158, -0.08033869, 0.21512894, -0.30717805, 0.05862948, 0.21248991),
    "alpha=.5": (0.57780521, 0.67747976, -0.13281805, -0.06750206, 0.22643843, -0.24594196, 0.06171167, 0.15811198),
    "alpha=.75": (0.59633277, 0.72157165, -0.15276492, -0.06471747, 0.24880064, -0.23090585, 0.06780608, 0.13178152),
    "alpha=1": (0.62764249, 0.78110186, -0.17662700, -0.06425218, 0.28567624, -0.22510708, 0.07785586, 0.10245416),
    "alpha=1.2": (0.66335480, 0.84191634, -0.19981514, -0.06563152, 0.32850147, -0.22711199, 0.08952709, 0.07453009),
    "alpha=2": (0.94266780, 1.25769312, -0.36076882, -0.09152090, 0.70353312, -0.30729539, 0.19173514, -0.13568315),
    "alpha=3": (1.93916645, 2.59492843, -0.97449290, -0.22252770, 2.40864945, -0.73982043, 0.65643355, -1.12824197),
    "js": (0.13927226, 0.16333058, -0.03217927, -0.01581610, 0.05161153, -0.05707274, 0.01406578, 0.03939080),
    "js.25": (0.10817571, 0.13081830, -0.02739953, -0.01152744, 0.04251034, -0.04095711, 0.01158542, 0.02578832),
    "js.9": (0.05075970, 0.05635927, -0.00953135, -0.00672093, 0.01870113, -0.02524155, 0.00509665, 0.01769605),
    "jeffreys": (1.20173390, 1.40874435, -0.27535858, -0.14459087, 0.50080518, -0.53228513, 0.13648533, 0.31494406),
    "cosh": (1.51675922, 1.88533560, -0.45950041, -0.17185958, 0.91866206, -0.61447344, 0.25036462, 0.07680676),
    "huber": (0.55332518, 0.68999928, -0.14490417, -0.05068293, 0.14994184, -0.16827325, 0.04086392, 0.17305460),
    "logcosh": (0.28842405, 0.35897749, -0.07913619, -0.02809360, 0.11401455, -0.09739176, 0.03107259, 0.05953442),
    "tv": (0.48624832, 0.58375984, -0.10936621, -0.02440290, 0.08190603, -0.08102048, 0.02232200, 0.11056157),
}
# L(−5), L(−1), L(1), L(5), L'(−1), L'(1)
POINTWISE = {
    "alpha=-1": (5503.8664487, 1.09726402, 0.28383382, 2.25001135, -3.19452805, 0.43233236),
    "alpha=0": (142.4131591, 0.71828183, 0.36787944, 4.00673795, -1.71828183, 0.63212056),
    "alpha=.5": (34.72997584, 0.59488508, 0.42612264, 6.32833999, -1.29744254, 0.78693868),
    "alpha=.75": (19.84548732, 0.54440667, 0.46081253, 8.58407675, -1.13610167, 0.88479687),
    "alpha=1": (12.5, 0.5, 0.5, 12.5, -1, 1),
    "alpha=1.2": (9.19698603, 0.46826883, 0.53506895, 17.95704571, -0.90634623, 1.10701379),
    "alpha=2": (4.00673795, 0.36787944, 0.71828183, 142.4131591, -0.63212056, 1.71828183),
    "alpha=3": (2.25001135, 0.28383382, 1.09726402, 5503.8664487, -0.43233236, 3.19452805),
    "js": (4.92500225, 0.14533593, 0.10466407, 1.32499775, -0.31005725, 0.18994275),
    "js.25": (2.84209451, 0.10057303, 0.08505246, 1.25305225, -0.20699723, 0.16065650),
    "jeffreys": (154.9131591, 1.21828183, 0.86787944, 16.50673795, -2.71828183, 1.63212056),
    "cosh": (146.41989705, 1.08616127, 1.08616127, 146.41989705, -2.35040239, 2.35040239),
    "logcosh": (3.62713634, 0.24022901, 0.24022901, 3.62713634, -0.46211716, 0.46211716),
}
GRID = torch.linspace(-12, 12, 481, dtype=torch.float64)


def surrogate_gradient(divergence: Divergence, weight: Tensor = P, shift: float = 0.0) -> Tensor:
    """∇_θ Σ weight·L(log p_θ − log q + shift), the weights held constant."""
    return gradient(lambda t: (weight * divergence.loss(t.log_softmax(0) - LOG_Q + shift)).sum(), THETA)


@pytest.mark.parametrize("name", MEMBERS)
def test_on_policy_gradient_is_that_of_the_divergence(name: str) -> None:
    member, (_, _, *row) = MEMBERS[name], ON_POLICY[name]
    exact, surrogate = divergence_gradient(member.divergence), surrogate_gradient(member.divergence)
    coefficient = gradient(lambda t: (P * member.divergence.slope(DELTA) * t.log_softmax(0)).sum(), THETA)
    torch.testing.assert_close(surrogate, exact, atol=1e-10, rtol=0)
    torch.testing.assert_close(coefficient, exact, atol=1e-10, rtol=0)
    torch.testing.assert_close(exact / member.norm, f64(*row), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MEMBERS)
def test_values_of_divergence_and_surrogate(name: str) -> None:
    member, (value, surrogate, *_) = MEMBERS[name], ON_POLICY[name]
    assert float((Q * member.divergence.generator(P / Q)).sum()) / member.norm == pytest.approx(value, abs=1e-6)
    assert float((P * member.divergence.loss(DELTA)).sum()) / member.norm == pytest.approx(surrogate, abs=1e-6)


@pytest.mark.parametrize("name", MEMBERS)
def test_gradient_through_the_sampling_distribution_differs(name: str) -> None:
    divergence = MEMBERS[name].divergence
    attached = gradient(lambda t: (t.softmax(0) * divergence.loss(t.log_softmax(0) - LOG_Q)).sum(), THETA)
    assert (attached - divergence_gradient(divergence)).abs().max() > 1e-2


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_values(name: str) -> None:
    member, row = MEMBERS[name], f64(*POINTWISE[name])
    values = torch.cat([member.divergence.loss(f64(-5, -1, 1, 5)), member.divergence.slope(f64(-1, 1))])
    torch.testing.assert_close(values / member.norm, row, atol=1e-6, rtol=1e-9)


@pytest.mark.parametrize("weight", [0.01, 0.25, 0.5, 0.9, 0.99])
def test_jensen_shannon_is_the_mixture_formula(weight: float) -> None:
    mixture = weight * P + (1 - weight) * Q
    direct = weight * (P * (P / mixture).log()).sum() + (1 - weight) * (Q * (Q / mixture).log()).sum()
    value = (Q * JensenShannon(weight).generator(P / Q)).sum()
    torch.testing.assert_close(value * weight * (1 - weight), direct, atol=1e-12, rtol=1e-12)


def test_members_that_are_sums_of_others() -> None:
    rows = {name: divergence_gradient(member.divergence) for name, member in MEMBERS.items()}
    torch.testing.assert_close(2 * rows["jeffreys"], rows["alpha=1"] + rows["alpha=0"], atol=1e-12, rtol=0)
    torch.testing.assert_close(2 * rows["cosh"], rows["alpha=0"] + rows["alpha=2"], atol=1e-12, rtol=0)
    even = (Q * (2 * Q / (P + Q)).log()).sum()  # KL(q‖m), m the even mixture
    torch.testing.assert_close((Q * MEMBERS["logcosh"].divergence.generator(P / Q)).sum(), 4 * even)
    reverse_kl = (Q * Alpha(1.0).generator(P / Q)).sum()
    torch.testing.assert_close((P * Alpha(0.0).loss(DELTA)).sum(), reverse_kl)


@pytest.mark.parametrize(
    ("member", "direct"),
    [
        (ForwardKL(), (Q * (LOG_Q - LOG_P)).sum()),
        (ReverseKL(), (P * (LOG_P - LOG_Q)).sum()),
        (Hellinger(), 2 * (P.sqrt() - Q.sqrt()).square().sum()),
        (PearsonChi2(), 0.5 * ((P - Q).square() / Q).sum()),
        (NeymanChi2(), 0.5 * ((P - Q).square() / P).sum()),
    ],
)
def test_names_are_of_the_divergences_they_say(member: Divergence, direct: Tensor) -> None:
    torch.testing.assert_close((Q * member.generator(P / Q)).sum(), direct, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", MEMBERS)
def test_zero_is_the_minimum(name: str) -> None:
    divergence, zero = MEMBERS[name].divergence, f64(0.0)
    assert divergence.loss(zero) == divergence.slope(zero) == 0
    assert divergence.generator(f64(1.0)) == pytest.approx(0, abs=1e-12)
    assert divergence.curvature(zero) == pytest.approx(0 if name == "tv" else 1, abs=1e-12)
    away = GRID[GRID != 0]
    assert (divergence.loss(away) > 0).all()
    assert (divergence.slope(away).sign() == away.sign()).all()
    assert (divergence.slope(GRID).diff() >= 0).all()


@pytest.mark.parametrize("name", MEMBERS)
def test_slope_and_curvature_are_derivatives(name: str) -> None:
    divergence, at = MEMBERS[name].divergence, GRID[GRID.abs() != 1]
    torch.testing.assert_close(gradient(lambda d: divergence.loss(d).sum(), at), divergence.slope(at))
    rise = gradient(lambda d: divergence.slope(d).sum(), at)
    torch.testing.assert_close(rise, divergence.curvature(at), atol=1e-12, rtol=1e-8)


@pytest.mark.parametrize("name", SMOOTH)
def test_generator_is_recovered_from_the_slope(name: str) -> None:
    """f(u) − f(1) − f'(1)(u − 1) is the integral of L'(log w) over w from 1 to u."""
    divergence = SMOOTH[name]
    nodes, weights = (torch.from_numpy(x) for x in np.polynomial.legendre.leggauss(60))
    for u in (0.05, 0.4, 0.97, 1.3, 4.0, 9.0):
        points = 1 + (u - 1) * (nodes + 1) / 2
        integral = (weights * divergence.slope(points.log())).sum() * (u - 1) / 2
        torch.testing.assert_close(divergence.generator(f64(u))[0], integral, atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.3, 0.5, 1.0, 1.2, 2.0, 3.5])
def test_alpha_mirrors_two_minus_alpha(alpha: float) -> None:
    torch.testing.assert_close(Alpha(alpha).loss(-GRID), Alpha(2 - alpha).loss(GRID), atol=0, rtol=1e-10)


@pytest.mark.parametrize("beta", [0.005, 0.3, 1.0, 2.5])
@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_tempering_is_another_alpha(alpha: float, beta: float) -> None:
    tempered, other = Tempered(Alpha(alpha), beta), Alpha(1 + beta * (alpha - 1))
    for name in ("loss", "slope", "curvature"):
        ours, theirs = getattr(tempered, name)(GRID / 2), getattr(other, name)(GRID / 2)
        torch.testing.assert_close(ours, beta * theirs, atol=0, rtol=1e-10)
    u = f64(0.1, 0.9, 1.0, 1.5, 7.0)
    torch.testing.assert_close(tempered.generator(u), beta * other.generator(u), atol=1e-10, rtol=1e-9)


def linex(t: Tensor) -> Tensor:
    """eᵗ − t − 1."""
    return t.exp() - t - 1


def test_sign_pin() -> None:
    """Linex of target minus model is forward KL; of model minus target, Pearson χ²."""
    mirrored = gradient(lambda t: (P * linex(-(t.log_softmax(0) - LOG_Q))).sum(), THETA)
    straight = gradient(lambda t: (P * linex(t.log_softmax(0) - LOG_Q)).sum(), THETA)
    torch.testing.assert_close(mirrored, f64(*ON_POLICY["alpha=0"][2:]), atol=1e-6, rtol=0)
    torch.testing.assert_close(straight, f64(*ON_POLICY["alpha=2"][2:]), atol=1e-6, rtol=0)
    torch.testing.assert_close(ForwardKL().loss(GRID), linex(-GRID))
    torch.testing.assert_close(PearsonChi2().loss(GRID), linex(GRID))


@pytest.mark.parametrize(("alpha", "ratio"), [(0.0, 0.49658530), (0.5, 0.70468809), (1.0, 1.0), (2.0, 2.01375271)])
def test_wrong_normaliser_only_rescales_alpha(alpha: float, ratio: float) -> None:
    right, wrong = divergence_gradient(Alpha(alpha)), surrogate_gradient(Alpha(alpha), shift=0.7)
    torch.testing.assert_close(wrong, math.exp((alpha - 1) * 0.7) * right, atol=1e-10, rtol=0)
    assert float(wrong.norm() / right.norm()) == pytest.approx(ratio, abs=1e-6)


@pytest.mark.parametrize(("name", "angle"), [("js", 0.99856682), ("jeffreys", 0.99770376), ("cosh", 0.98241633)])
def test_wrong_normaliser_turns_the_others(name: str, angle: float) -> None:
    divergence = MEMBERS[name].divergence
    turned = surrogate_gradient(divergence, shift=0.7)
    assert cosine(turned, divergence_gradient(divergence)) == pytest.approx(angle, abs=1e-6)


@pytest.mark.parametrize("s", [0.3, 0.5, 1.0, -0.5])
@pytest.mark.parametrize("alpha", [0.0, 0.5, 2.0, 3.0])
def test_off_policy_mixture_identity(alpha: float, s: float) -> None:
    """Samples of μ ∝ p^{1−s} q^s mix the gradients of D_{α−s} and D_{1−s}."""
    unnormalised = ((1 - s) * LOG_P + s * LOG_Q).exp()
    found = surrogate_gradient(Alpha(alpha), unnormalised / unnormalised.sum())
    parts = (alpha - 1 - s) * divergence_gradient(Alpha(alpha - s)) + s * divergence_gradient(Alpha(1 - s))
    torch.testing.assert_close(found, parts / (unnormalised.sum() * (alpha - 1)), atol=1e-10, rtol=0)


def test_pearson_on_target_samples_is_maximum_likelihood() -> None:
    likelihood = gradient(lambda t: -(Q * t.log_softmax(0)).sum(), THETA)
    torch.testing.assert_close(surrogate_gradient(PearsonChi2(), Q), likelihood, atol=1e-12, rtol=0)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_gradient_on_the_backward_side(alpha: float) -> None:
    """With samples of the target, its own parameters follow ∇D_{2−α}(q‖p)."""
    found = gradient(lambda t: (Q * Alpha(alpha).loss(LOG_P - t.log_softmax(0))).sum(), LOG_Q)
    mirrored = gradient(lambda t: (P * Alpha(2 - alpha).generator(t.softmax(0) / P)).sum(), LOG_Q)
    torch.testing.assert_close(found, mirrored, atol=1e-10, rtol=0)


def test_forward_kl_trains_the_backward_side_by_likelihood() -> None:
    found = gradient(lambda t: (P * ForwardKL().loss(LOG_P - t.log_softmax(0))).sum(), LOG_Q)
    likelihood = gradient(lambda t: -(P * t.log_softmax(0)).sum(), LOG_Q)
    torch.testing.assert_close(found, likelihood, atol=1e-10, rtol=0)
