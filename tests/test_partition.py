"""Exact tests of DevGrad: the batch estimate of log Z, weighted, in groups, and leave-one-out."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from gfn.objectives import (
    Alpha,
    Clipped,
    DevGrad,
    Divergence,
    FromGenerator,
    JensenShannon,
    LearnedLogZ,
    MeanLogReward,
    PearsonChi2,
    ReverseKL,
    Tempered,
    trajectory_balance,
)
from gfn.objectives.objective import coefficient_loss
from tests.oracles import (
    ALPHAS,
    DELTA,
    LOG_P,
    LOG_R,
    LOG_Z,
    MEMBERS,
    P,
    Q,
    cosine,
    divergence_gradient,
    f64,
    gradient,
    scores,
)

BATCH = f64(-3.0, -0.5, 0.2, 1.7, 4.0)
# c*, loss, and the coefficients ∂loss/∂Δ
CENTRES = {
    "alpha=-1": (-2.19950468, 1.33975234, -0.39579415, 0.09665937, 0.09917621, 0.09995899, 0.09999959),
    "alpha=0": (-1.51530252, 1.99530252, -0.68272600, 0.12754144, 0.16401814, 0.19197136, 0.19919506),
    "alpha=.5": (-0.73851549, 2.43703098, -0.83918205, 0.04496840, 0.14981346, 0.28182025, 0.36257994),
    "alpha=.75": (-0.17455692, 2.61822767, -0.82128204, -0.06780974, 0.07151102, 0.29931733, 0.51826343),
    "alpha=1": (0.48, 2.7028, -0.696, -0.196, -0.056, 0.244, 0.704),
    "alpha=1.2": (1.01466205, 2.67331027, -0.55198672, -0.26135098, -0.15035139, 0.14690566, 0.81678343),
    "alpha=2": (2.51688676, 2.03688676, -0.19919633, -0.19020932, -0.18028400, -0.11163901, 0.68132866),
    "alpha=3": (3.20059101, 1.36029551, -0.09999959, -0.09993895, -0.09975242, -0.09502717, 0.39471813),
    "js": (-0.67995582, 0.53316348, -0.17206325, 0.00859354, 0.03461581, 0.06046285, 0.06839105),
    "js.25": (-0.24427396, 0.42608298, -0.12445051, -0.00988305, 0.01566933, 0.05145641, 0.06720782),
    "jeffreys": (-0.72470762, 5.83787546, -2.20121121, 0.08519158, 0.30561205, 0.66724073, 1.14316686),
    "cosh": (0.50079212, 13.01788491, -6.62230405, -0.47056955, -0.12213937, 0.60321103, 6.61180193),
    "huber": (0.35, 1.4445, -0.2, -0.17, -0.03, 0.2, 0.2),
    "logcosh": (0.44535627, 0.98946147, -0.18763694, -0.08807213, -0.02441328, 0.11124107, 0.18888128),
    "tv": (0.2, 0.92, -0.1, -0.1, 0.0, 0.1, 0.1),
}
LEAVE_ONE_OUT = {(2, 0.0): 2.885336, (2, 0.5): 1.553896, (2, 2.0): 1.0, (3, 0.0): 2.130297, (3, 0.5): 1.390392}
LEAVE_ONE_OUT[3, 2.0] = 0.580124
IN_BATCH = {(2, 0.0): 0.902137, (2, 0.5): 0.972113, (2, 2.0): 0.914841, (3, 0.0): 0.949318, (3, 0.5): 0.986994}
IN_BATCH[3, 2.0] = 0.960075


def apply(
    divergence: Divergence, delta: Tensor, group: Tensor | None = None, leave_one_out: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """DevGrad's −log Ẑ of each trajectory, the mean loss, and the coefficients, by the objective's own path."""
    x = delta.clone().requires_grad_()
    batch = scores(x, group)
    log_z = DevGrad(leave_one_out)(batch, divergence)
    residual, weight = trajectory_balance(batch, log_z)
    loss = coefficient_loss(divergence, residual, weight / len(delta))
    (coefficient,) = torch.autograd.grad(loss, x)
    return -log_z.detach(), loss.detach(), coefficient


@pytest.mark.parametrize("name", CENTRES)
def test_batch_estimate_values(name: str) -> None:
    member, (centre, loss, *coefficient) = MEMBERS[name], CENTRES[name]
    found_centre, found_loss, found_coefficient = apply(member.divergence, BATCH)
    torch.testing.assert_close(found_centre, torch.full_like(BATCH, centre), atol=1e-6, rtol=0)
    assert float(found_loss) / member.norm == pytest.approx(loss, abs=1e-6)
    torch.testing.assert_close(found_coefficient / member.norm, f64(*coefficient), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MEMBERS)
def test_batch_estimate_properties(name: str) -> None:
    divergence = MEMBERS[name].divergence
    centre, loss, coefficient = apply(divergence, BATCH)
    assert float(coefficient.sum()) == pytest.approx(0, abs=1e-10)
    best = minimize_scalar(
        lambda c: float(divergence.loss(BATCH - c).mean()), bounds=(-3, 4), method="bounded", options={"xatol": 1e-9}
    )
    assert float(centre[0]) == pytest.approx(best.x, abs=1e-6)
    assert float(loss) == pytest.approx(best.fun, abs=1e-8)
    shifted_centre, shifted_loss, shifted_coefficient = apply(divergence, BATCH + 37.5)
    torch.testing.assert_close(shifted_centre, centre + 37.5, atol=1e-9, rtol=0)
    torch.testing.assert_close(shifted_loss, loss, atol=1e-9, rtol=0)
    torch.testing.assert_close(shifted_coefficient, coefficient, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", ALPHAS)
def test_constant_estimate_has_the_gradient_of_the_minimum(name: str) -> None:
    """Differentiating through the closed form changes nothing, the estimate being a minimiser."""
    a = ALPHAS[name] - 1

    def closed_form(d: Tensor) -> Tensor:
        centre = d.mean() if a == 0 else ((a * d).logsumexp(0) - math.log(len(d))) / a
        return MEMBERS[name].divergence.loss(d - centre).mean()

    through = gradient(closed_form, BATCH)
    torch.testing.assert_close(apply(MEMBERS[name].divergence, BATCH)[2], through, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["jeffreys", "js.9", "alpha=0", "alpha=3"])
def test_bisection_agrees_with_the_closed_form(name: str) -> None:
    divergence, weight = MEMBERS[name].divergence, f64(0.1, 0.2, 0.3, 0.25, 0.15)
    centre = Divergence.centre(divergence, BATCH, weight)
    torch.testing.assert_close(divergence.centre(BATCH, weight), centre, atol=1e-12, rtol=0)
    assert float((weight * divergence.slope(BATCH - centre)).sum()) == pytest.approx(0, abs=1e-12)
    tempered = Tempered(divergence, 0.3)
    expected = Divergence.centre(tempered, BATCH, weight)
    torch.testing.assert_close(tempered.centre(BATCH, weight), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("alpha", "centre", "loss"),
    [
        (0.0, -0.96787144, 1.65287144),
        (0.5, -0.19711751, 1.76423501),
        (1.0, 0.685, 1.8076375),
        (2.0, 2.30766368, 1.62266368),
    ],
)
def test_weighted_centre(alpha: float, centre: float, loss: float) -> None:
    weight = f64(0.1, 0.2, 0.3, 0.25, 0.15)
    found = Alpha(alpha).centre(BATCH, weight)
    assert float(found) == pytest.approx(centre, abs=1e-6)
    assert float((weight * Alpha(alpha).loss(BATCH - found)).sum()) == pytest.approx(loss, abs=1e-6)
    padded = torch.cat([f64(77.0), BATCH, f64(-77.0)]), torch.cat([f64(0.0), weight, f64(0.0)])
    for divergence in (Alpha(alpha), Clipped(Alpha(alpha), 3.0), MEMBERS["tv"].divergence):
        torch.testing.assert_close(divergence.centre(*padded), divergence.centre(BATCH, weight), atol=1e-12, rtol=0)


def test_estimate_moves_with_the_curvature() -> None:
    """∂c*/∂Δ_i = L''_i / Σ L''."""
    divergence, row = JensenShannon(0.5), f64(0.51948265, 0.25966732, 0.16727247, 0.04833203, 0.00524553)
    weight = torch.full_like(BATCH, 0.2)
    curvature = divergence.curvature(BATCH - divergence.centre(BATCH, weight))
    torch.testing.assert_close(curvature / curvature.sum(), row, atol=1e-6, rtol=0)
    step = 1e-5 * torch.eye(5, dtype=torch.float64)
    rise = (divergence.centre(BATCH + step, weight) - divergence.centre(BATCH - step, weight)) / 2e-5
    torch.testing.assert_close(rise, row, atol=1e-6, rtol=0)


def test_extremes_in_float32() -> None:
    delta = torch.tensor([-1e4, -100, 0, 3, 100, 1e4])
    for member in MEMBERS.values():
        for leave_one_out in (False, True):
            log_z, loss, coefficient = apply(member.divergence, delta, leave_one_out=leave_one_out)
            assert log_z.isfinite().all()
            assert loss.isfinite()
            assert coefficient.isfinite().all()
    sixth = torch.full((5,), 1 / 6)
    expected = torch.cat([-sixth, torch.tensor([5 / 6])])
    torch.testing.assert_close(apply(PearsonChi2(), delta)[2], expected)
    torch.testing.assert_close(apply(Alpha(0.0), delta)[2], -expected.flip(0))


@pytest.mark.parametrize(("alpha", "loss"), [(0.0, 0.3246388488), (2.0, 0.3246388488), (0.5, 0.3508715515)])
def test_pairs_cannot_tell_covering_from_seeking(alpha: float, loss: float) -> None:
    pair = f64(1.3, -0.4)
    assert float(apply(Alpha(alpha), pair)[1]) == pytest.approx(loss, abs=1e-9)
    assert float(apply(Alpha(2 - alpha), pair)[1]) == pytest.approx(loss, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "log_z"),
    [
        ("alpha=-1", 2.79259865),
        ("alpha=0", 2.35566309),
        ("alpha=.5", 2.04363856),
        ("alpha=.75", 1.88137393),
        ("alpha=1", 1.72802061),
        ("alpha=1.2", 1.61699032),
        ("alpha=2", 1.29602187),
        ("alpha=3", 1.08742777),
    ],
)
def test_population_estimate_is_log_z_minus_renyi(name: str, log_z: float) -> None:
    """And its gradient is that of D_α over 1 + α(α − 1)D_α."""
    divergence, alpha = MEMBERS[name].divergence, ALPHAS[name]
    estimate = -divergence.centre(LOG_P - LOG_R, P)
    assert float(estimate) == pytest.approx(log_z, abs=1e-6)
    renyi = (P * DELTA).sum() if alpha == 1 else (P.pow(alpha) * Q.pow(1 - alpha)).sum().log() / (alpha - 1)
    torch.testing.assert_close(estimate, LOG_Z - renyi, atol=1e-12, rtol=0)
    slope = P * divergence.slope(LOG_P - LOG_R + estimate)
    found = slope - P * slope.sum()  # times ∇ log p
    value = (Q * divergence.generator(P / Q)).sum()
    expected = divergence_gradient(divergence) / (1 + alpha * (alpha - 1) * value)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def expected_gradient(alpha: float, n: int, leave_one_out: bool) -> Tensor:
    """Expected gradient of DevGrad over every batch of n of the six outcomes."""
    batch = torch.tensor(list(itertools.product(range(6), repeat=n)))
    group = torch.arange(len(batch)).repeat_interleave(n)
    coefficient = apply(Alpha(alpha), DELTA[batch].flatten(), group, leave_one_out)[2] * len(batch)
    score = torch.eye(6, dtype=torch.float64) - P  # ∇ log p of each outcome
    return torch.einsum("b,bn,bnk->k", P[batch].prod(1), coefficient.view(-1, n), score[batch])


@pytest.mark.parametrize(("n", "alpha"), LEAVE_ONE_OUT)
def test_leave_one_out_has_no_bias_in_direction(n: int, alpha: float) -> None:
    found, truth = expected_gradient(alpha, n, leave_one_out=True), divergence_gradient(Alpha(alpha))
    scale = LEAVE_ONE_OUT[n, alpha]
    assert float(found @ truth / (truth @ truth)) == pytest.approx(scale, abs=1e-6)
    torch.testing.assert_close(found / (found @ truth / (truth @ truth)), truth, atol=1e-10, rtol=0)


@pytest.mark.parametrize(("n", "alpha"), IN_BATCH)
def test_in_batch_estimate_is_biased_in_small_groups(n: int, alpha: float) -> None:
    found = expected_gradient(alpha, n, leave_one_out=False)
    assert cosine(found, divergence_gradient(Alpha(alpha))) == pytest.approx(IN_BATCH[n, alpha], abs=1e-6)


def test_leave_one_out_is_in_batch_scaled_for_trajectory_balance() -> None:
    in_batch, leave_one_out = (apply(Alpha(1.0), BATCH, leave_one_out=flag)[2] for flag in (False, True))
    torch.testing.assert_close(in_batch, 0.8 * leave_one_out)


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("name", MEMBERS)
def test_unequal_groups_equal_group_by_group(name: str, leave_one_out: bool) -> None:
    divergence = MEMBERS[name].divergence
    group = torch.tensor([7, 2, 2, 7, 0, 2, 0, 7, 2, 7, 7])
    delta = 2 * torch.randn(len(group), dtype=torch.float64)
    log_z, loss, coefficient = apply(divergence, delta, group, leave_one_out)
    total = 0.0
    for g in group.unique():
        rows = group == g
        alone = apply(divergence, delta[rows], None, leave_one_out)
        torch.testing.assert_close(log_z[rows], alone[0], atol=1e-12, rtol=0)
        torch.testing.assert_close(len(group) * coefficient[rows], rows.sum() * alone[2], atol=1e-12, rtol=0)
        total += float(rows.sum() * alone[1])
        if not leave_one_out:
            assert float(coefficient[rows].sum()) == pytest.approx(0, abs=1e-10)
    assert float(loss) == pytest.approx(total / len(group), abs=1e-12)


def test_groups_of_one_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 trajectories in each, got 1"):
        DevGrad().check_group_size(1, Alpha(1.0))
    with pytest.raises(ValueError, match="at least 2 trajectories in each, got 1"):
        DevGrad()(scores(BATCH, torch.tensor([0, 0, 1, 2, 2])), Alpha(1.0))


@pytest.mark.parametrize("name", MEMBERS)
def test_small_groups_are_warned_of_for_lopsided_members(name: str) -> None:
    divergence, even = MEMBERS[name].divergence, name in ("alpha=1", "cosh", "huber", "logcosh", "tv")
    for size in (2, 3):
        if even:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                DevGrad().check_group_size(size, divergence)
        else:
            with pytest.warns(UserWarning, match=f"groups of {size}: below 4"):
                DevGrad().check_group_size(size, divergence)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DevGrad().check_group_size(4, divergence)
        DevGrad().check_group_size(2, FromGenerator(lambda u: u * (0.1 * u).log()))  # even up to rounding
        LearnedLogZ().check_group_size(1, divergence)


def test_mean_log_reward_gives_the_form_of_kimi() -> None:
    """Coefficients of ∇log P_F, times −1: (log R − mean of its group) − (log P_F − log P_B), in each group."""
    group = torch.tensor([0, 1, 0, 1, 0])
    log_pf, log_pb = f64(-1.0, -2.0, -3.0, -0.5, -1.5), f64(-1.5, -1.0, -2.0, -2.5, -0.5)
    log_reward = f64(0.0, 1.0, 2.0, 5.0, 4.0)
    given = replace(scores(log_pf - log_reward, group, log_reward), log_pb=log_pb.unsqueeze(1))
    log_z = MeanLogReward()(given, ReverseKL())
    assert log_z.tolist() == [2.0, 3.0, 2.0, 3.0, 2.0]
    residual, _ = trajectory_balance(given, log_z)
    wanted = (log_reward - f64(2.0, 3.0, 2.0, 3.0, 2.0)) - (log_pf - log_pb)
    assert torch.allclose(-ReverseKL().slope(residual), wanted, atol=1e-12)
    with pytest.raises(ValueError, match="MeanLogReward compares trajectories of one group and needs at least 2"):
        MeanLogReward()(replace(given, group=torch.arange(5)), ReverseKL())
