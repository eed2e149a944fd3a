"""Metrics against values computed by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from scipy.stats import spearmanr

from gfn.metrics import (
    diversity,
    effective_sample_size,
    evidence_bound,
    jsd,
    kl,
    l1_sum,
    log_z_estimate,
    log_z_ladder,
    modes_kept,
    pearson,
    spearman,
    top_k_mean,
    total_variation,
)


def logs(*probabilities: float) -> torch.Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


P, Q = logs(0.5, 0.25, 0.25, 0.0), logs(0.25, 0.25, 0.0, 0.5)
FULL = logs(0.25, 0.25, 0.25, 0.25)


def test_total_variation_is_half_the_sum_of_differences() -> None:
    assert l1_sum(P, Q) == pytest.approx(1.0)
    assert total_variation(P, Q) == pytest.approx(0.5)
    assert total_variation(P, P) == 0
    assert total_variation(logs(1, 0), logs(0, 1)) == 1


def test_kl_weighs_by_its_first_argument() -> None:
    assert kl(P, FULL) == pytest.approx(0.5 * math.log(2))
    assert kl(FULL, FULL) == 0
    assert kl(FULL, P) == math.inf
    assert kl(P, Q) == math.inf
    assert kl(logs(0.75, 0.25), logs(0.5, 0.5)) == pytest.approx(0.75 * math.log(1.5) - 0.25 * math.log(2))


def test_jsd_is_symmetric_and_bounded_by_log_two() -> None:
    # The mixture is (3/8, 1/4, 1/8, 1/4).
    wanted = 0.5 * (0.5 * math.log(4 / 3) + 0.25 * math.log(2)) + 0.5 * (0.25 * math.log(2 / 3) + 0.5 * math.log(2))
    assert jsd(P, Q) == pytest.approx(wanted)
    assert jsd(Q, P) == pytest.approx(wanted)
    assert jsd(logs(1, 0), logs(0, 1)) == pytest.approx(math.log(2))
    assert jsd(P, P) == 0


def test_distances_are_computed_in_float64() -> None:
    one, other = torch.full((10**6,), -math.log(10**6)), torch.full((10**6,), -math.log(10**6) + 1e-6)
    assert l1_sum(one, other) == pytest.approx(float((other.double().exp() - one.double().exp()).abs().sum()))
    assert l1_sum(one, other) > 0


def test_correlation() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert pearson(x, 2 * x + 1) == pytest.approx(1)
    assert pearson(x, -x) == pytest.approx(-1)
    assert pearson(x, torch.tensor([1.0, -1.0, -1.0, 1.0])) == pytest.approx(0, abs=1e-12)
    assert pearson(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 1.0])) == pytest.approx(0.5)


def test_correlation_leaves_out_what_is_not_finite() -> None:
    x = torch.tensor([1.0, -math.inf, 2.0, 9.0, 3.0])
    y = torch.tensor([1.0, 5.0, 3.0, math.nan, 2.0])
    assert pearson(x, y) == pytest.approx(0.5)


@pytest.mark.parametrize("x", [torch.full((3,), 0.1, dtype=torch.float64), torch.full((3,), -math.inf)])
def test_a_constant_correlates_with_nothing(x: torch.Tensor) -> None:
    y = torch.tensor([1.0, 2.0, 4.0])
    assert math.isnan(pearson(x, y))
    assert math.isnan(pearson(y, x))


def test_effective_sample_size_is_the_share_of_samples_that_count() -> None:
    assert effective_sample_size(torch.full((7,), -1234.5)) == pytest.approx(1)
    assert effective_sample_size(logs(1, 0, 0, 0)) == pytest.approx(0.25)
    assert effective_sample_size(logs(3, 1) + 1000) == pytest.approx(16 / 10 / 2)


def test_evidence_bounds_and_estimates_of_log_z() -> None:
    weight = logs(1, 3, 8) + 700
    assert evidence_bound(weight) == pytest.approx(700 + math.log(24) / 3)
    assert log_z_estimate(weight) == pytest.approx(700 + math.log(4))
    assert evidence_bound(weight) < log_z_estimate(weight)


def test_modes_are_kept_by_their_share_of_the_mass() -> None:
    label = torch.tensor([5, 5, 9, -1, 2])
    target = logs(0.2, 0.2, 0.2, 0.2, 0.2)
    # Mode 5 holds .1 of .4, mode 9 .04 of .2, and mode 2 more than its share.
    model = logs(0.1, 0.0, 0.04, 0.06, 0.8)
    assert modes_kept(label, model, target, share=0.24) == 2
    assert modes_kept(label, model, target, share=0.26) == 1
    assert modes_kept(label, model, target, share=0.19) == 3


@pytest.mark.parametrize(("mass", "kept"), [(0.12, 1), (0.13, 2)])
def test_a_quarter_of_its_mass_keeps_a_mode(mass: float, kept: int) -> None:
    assert modes_kept(torch.tensor([0, 1]), logs(mass, 1 - mass), logs(0.5, 0.5)) == kept


def test_modes_without_target_mass_are_not_kept() -> None:
    label = torch.tensor([0, 1])
    assert modes_kept(label, logs(0.5, 0.5), logs(1.0, 0.0)) == 1
    assert modes_kept(torch.tensor([-1, -1]), logs(0.5, 0.5), logs(0.5, 0.5)) == 0


@pytest.mark.parametrize("seed", range(3))
def test_spearman_shares_the_ranks_of_equal_values(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(6, (40,), generator=generator).double()
    y = x + torch.randint(5, (40,), generator=generator)
    assert spearman(x, y) == pytest.approx(spearmanr(x.numpy(), y.numpy()).statistic, abs=1e-12)
    assert spearman(x, y) != pytest.approx(pearson(x, y), abs=1e-3)
    assert spearman(x, (3 * y).exp()) == pytest.approx(spearman(x, y), abs=1e-12), "only order counts"


def test_spearman_by_hand() -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5/√(4.5 · 5)."""
    x, y = torch.tensor([0.0, 1.0, 1.0, 9.0]), torch.tensor([-math.inf, 0.0, 2.0, 3.0])
    assert spearman(x, y) == pytest.approx(4.5 / 22.5**0.5)
    assert spearman(x, -y) == pytest.approx(-4.5 / 22.5**0.5)
    longer = torch.cat([x, torch.tensor([math.nan])]), torch.cat([y, torch.tensor([5.0])])
    assert spearman(*longer) == spearman(x, y)
    assert math.isnan(spearman(torch.ones(4), y))


def test_top_k() -> None:
    values = torch.tensor([3.0, -1.0, 5.0, 4.0])
    assert [top_k_mean(values, k) for k in (1, 2, 4, 9)] == [5.0, 4.5, 2.75, 2.75]


def test_diversity_is_the_mean_over_pairs() -> None:
    states = torch.tensor([[0, 0], [0, 1], [1, 1]])
    assert diversity(states, lambda a, b: (a != b).sum(1)) == pytest.approx((1 + 2 + 1) / 3)
    assert diversity(states[[0, 0]], lambda a, b: (a != b).sum(1)) == 0


def test_log_z_ladder_by_hand() -> None:
    """Weights 1 and e²: log of mean weights, of their means of roots and inverses, and the mean logarithm."""
    ladder = log_z_ladder(torch.tensor([0.0, 2.0]))
    mean = math.log((1 + math.exp(2)) / 2)
    half = 2 * math.log((1 + math.exp(1)) / 2)
    inverse = -math.log((1 + math.exp(-2)) / 2)
    assert ladder == pytest.approx([mean, half, 1.0, inverse], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_log_z_ladder_goes_down_from_the_importance_estimate_through_the_elbo(seed: int) -> None:
    log_weight = 2 * torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 7
    ladder = log_z_ladder(log_weight, (-1.0, 0.0, 0.3, 1.0, 1.5, 3.0))
    assert all(higher > lower + 1e-3 for higher, lower in pairwise(ladder))
    assert ladder[1] == pytest.approx(log_z_estimate(log_weight), abs=1e-9)
    assert ladder[3] == pytest.approx(evidence_bound(log_weight), abs=1e-9)
    assert log_z_ladder(torch.full((5,), 1.7)) == pytest.approx([1.7] * 4, abs=1e-6)


def test_the_ladder_estimates_the_divergence_from_the_target() -> None:
    """log Ẑ_0 − log Ẑ_1 → KL(p‖q) for samples of p with weights Z q/p."""
    p, q = logs(0.5, 0.3, 0.2), logs(0.2, 0.3, 0.5)
    drawn = torch.multinomial(p.exp(), 40_000, replacement=True, generator=torch.Generator().manual_seed(0))
    ladder = log_z_ladder((3.0 + q - p)[drawn])
    assert ladder[0] == pytest.approx(3.0, abs=0.03)
    assert ladder[0] - ladder[2] == pytest.approx(kl(p, q), abs=0.03)
    assert kl(p, q) > 0.2
