"""Exact test of what each member prefers when it cannot fit the target: one normal for two modes."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from gfn.objectives import Divergence
from tests.oracles import ALPHAS, MEMBERS, f64, gradient

# mean of the best unit normal for a target with a large mode at −2 and a small one at 2.5
BEST_MEAN = {
    "alpha=-1": -0.000077,
    "alpha=0": -0.637000,
    "alpha=.5": -1.938567,
    "alpha=.75": -1.975997,
    "alpha=1": -1.985475,
    "alpha=1.2": -1.988384,
    "alpha=2": -1.991417,
    "alpha=3": -1.992102,
    "js": -1.970004,
    "js.25": -1.978823,
    "js.9": -1.910767,
    "jeffreys": -1.495325,
    "cosh": -1.874895,
}
# and how far it then still is from the target
DISTANCE = {
    "alpha=-1": 107.77829,
    "alpha=0": 1.728997,
    "alpha=.5": 0.784928,
    "alpha=.75": 0.642899,
    "alpha=1": 0.595951,
    "alpha=1.2": 0.597801,
    "alpha=2": 0.917910,
    "alpha=3": 3.235695,
}
X = torch.linspace(-6, 6, 121, dtype=torch.float64)
MODES = [(-0.5 * ((X - mean) / 0.6).square()).softmax(0) for mean in (-2.0, 2.5)]
LOG_TARGET = (0.98 * (0.7 * MODES[0] + 0.3 * MODES[1]) + 0.02 / 121).log()


def log_model(mean: Tensor) -> Tensor:
    """Log-probabilities on the grid of a unit normal, ``[..., 121]``."""
    return (-0.5 * (X - mean.unsqueeze(-1)).square()).log_softmax(-1)


def distance(divergence: Divergence, mean: Tensor) -> Tensor:
    """D_f of the normal from the target."""
    return (LOG_TARGET.exp() * divergence.generator((log_model(mean) - LOG_TARGET).exp())).sum(-1)


def best_mean(divergence: Divergence) -> float:
    """Global minimiser of D_f, as the zero of the surrogate's gradient nearest to the best of a fine grid."""

    def surrogate_gradient(mean: float) -> float:
        fixed = log_model(torch.tensor(mean, dtype=torch.float64))
        weight = fixed.exp()
        return float(gradient(lambda m: (weight * divergence.loss(log_model(m)[0] - LOG_TARGET)).sum(), f64(mean)))

    means = torch.linspace(-4, 4, 401, dtype=torch.float64)
    coarse = float(means[distance(divergence, means).argmin()])
    return float(brentq(surrogate_gradient, coarse - 0.03, coarse + 0.03, xtol=1e-10))


@pytest.mark.parametrize("name", BEST_MEAN)
def test_which_mode_each_member_prefers(name: str) -> None:
    assert best_mean(MEMBERS[name].divergence) == pytest.approx(BEST_MEAN[name], abs=2e-6)


@pytest.mark.parametrize("name", DISTANCE)
def test_distance_left_at_the_best(name: str) -> None:
    divergence = MEMBERS[name].divergence
    assert float(distance(divergence, f64(best_mean(divergence)))) == pytest.approx(DISTANCE[name], rel=1e-6)


def test_lower_alpha_covers_more() -> None:
    means = [best_mean(MEMBERS[name].divergence) for name in sorted(ALPHAS, key=lambda name: ALPHAS[name])]
    assert all(low > high + 1e-5 for low, high in itertools.pairwise(means))


def test_forward_kl_matches_the_mean_of_the_target() -> None:
    target_mean = float((LOG_TARGET.exp() * X).sum())
    assert best_mean(MEMBERS["alpha=0"].divergence) == pytest.approx(target_mean, abs=1e-6)
