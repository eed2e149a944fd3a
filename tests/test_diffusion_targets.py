"""Densities of diffusion samplers: log Z, exact draws, modes; and the distances that are reported."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from envs.diffusion.environment import Diffusion, exact_samples
from envs.diffusion.metrics import covered, wasserstein
from envs.diffusion.targets import (
    ConditionalGaussian,
    Function,
    Funnel,
    ManyWell,
    Mixture,
    gaussians25,
    gaussians40,
    log_normal,
)
from gfn.trajectories import Trajectories

SMALL = [gaussians25(), gaussians40(), ManyWell(2), ConditionalGaussian(3)]


def on_grid(target, label: int, reach: float, points: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Points of the plane, log R there, and the area of a cell."""
    axis = torch.linspace(-reach, reach, points, dtype=torch.float64)
    x = torch.cartesian_prod(axis, axis)
    return x, target.log_density(x, torch.full((len(x),), label)), float(axis[1] - axis[0]) ** 2


@pytest.mark.parametrize("target", SMALL)
def test_log_z_and_exact_draws_are_those_of_the_density(target) -> None:
    n = 10000
    for label in range(target.n_labels):
        x, log_r, area = on_grid(target, label, 1.2 * target.reach, 201)
        assert float(log_r.logsumexp(0)) + math.log(area) == pytest.approx(float(target.log_z[label]), abs=1e-3)
        weight = (log_r - target.log_z[label]).exp() * area
        drawn = target.sample(torch.full((n,), label), torch.Generator().manual_seed(0))
        for moment in (lambda y: y[:, 0], lambda y: y[:, 1], lambda y: y[:, 0].square(), lambda y: y.prod(1)):
            values, wanted = moment(drawn), float((weight * moment(x)).sum())
            assert abs(float(values.mean()) - wanted) < 4 * float(values.std()) / math.sqrt(n)


def test_funnel_is_a_normal_for_each_place_of_its_neck() -> None:
    target = Funnel(4)
    x = target.sample(torch.zeros(20000, dtype=torch.long), torch.Generator().manual_seed(0))
    straight = torch.cat([x[:, :1] / 3, x[:, 1:] * (-x[:, :1] / 2).exp()], 1)
    assert torch.allclose(straight.T.cov(), torch.eye(4, dtype=torch.float64), atol=0.04)
    change = math.log(3) + 1.5 * x[:, 0]  # log of the Jacobian
    wanted = log_normal(straight, 0.0, torch.ones((), dtype=torch.float64)).sum(1) - change
    assert torch.allclose(target.log_density(x, torch.zeros(20000)), wanted)


def test_published_constants() -> None:
    assert float(ManyWell(32).log_z) == pytest.approx(164.69567532, abs=1e-6)  # as printed by FAB's code
    mixture = gaussians40()
    assert (mixture.mode_count, mixture.dim) == (40, 2)
    assert float(mixture.std) == pytest.approx(math.log1p(math.e))
    assert float(mixture.means.abs().max()) < 40
    assert mixture.means[0].tolist() == pytest.approx([-0.2995, 21.4577], abs=1e-3)
    assert gaussians25().means.unique().tolist() == [-10, -5, 0, 5, 10]


def test_modes() -> None:
    zero = torch.zeros(4, dtype=torch.long)
    places = torch.tensor([[-10.0, -10.0], [10.0, 9.5], [0.0, 2.5], [100.0, 0.0]])
    assert gaussians25().mode(places, zero).tolist() == [0, 24, -1, -1]
    wells = torch.tensor([[1.7, 0, -1.7, 0], [-1.7, 0, 1.7, 0], [1.7, 9, 1.7, 9], [-1.7, 9, -1.7, 0]])
    assert ManyWell(4).mode(wells, zero).tolist() == [1, 2, 3, 0]
    env = Diffusion(ConditionalGaussian(3), 2)
    assert env.mode_counts == {"modes": 3}
    assert env.modes(exact_samples(env, 6))["modes"].tolist() == [0, 1, 2, 0, 1, 2]
    assert env.modes(env.ends(torch.zeros(1, 2)))["modes"].tolist() == [-1]
    assert Diffusion(Funnel(), 2).mode_counts == {}


def test_modes_covered_are_those_with_a_quarter_of_their_share() -> None:
    mode = torch.tensor([0] * 80 + [1] * 5 + [2] * 4 + [-1] * 11)
    assert covered(mode, 5) == 2  # 100 samples, of which 20 are due to each, so that five will do
    assert covered(mode, 10000) == 3


def test_wasserstein_distance_is_that_of_the_best_assignment() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(6, 3, generator=generator) for _ in range(2))
    costs = [(first - second[list(order)]).square().sum(1).mean() for order in itertools.permutations(range(6))]
    assert wasserstein(first, second) == pytest.approx(float(min(costs).sqrt()), rel=1e-6)
    assert wasserstein(first, first.flip(0)) == 0.0
    assert wasserstein(first, first + torch.tensor([3.0, 0.0, 4.0])) == pytest.approx(5.0, rel=1e-6)


def test_summary_of_exact_samples_is_that_of_exact_samples() -> None:
    env = Diffusion(gaussians25(), 2)
    final = exact_samples(env, 600)
    nothing = torch.zeros(600)
    t = Trajectories(final, nothing, nothing.long(), nothing, nothing.long(), nothing, nothing.long())
    found = env.summary(t)
    assert found.keys() == {"modes_covered", "w2", "w2_exact"}
    assert found["modes_covered"] == 25
    assert found["w2"] == pytest.approx(found["w2_exact"], rel=0.3)


def test_density_of_ones_own_has_what_it_is_given() -> None:
    def log_density(x: torch.Tensor) -> torch.Tensor:
        return -0.5 * x.square().sum(1)

    known = Diffusion(Function(log_density, 2, log_z=math.log(2 * math.pi)), 2)
    unknown = Diffusion(Function(log_density, 2), 2)
    assert float(known.log_partition(known.reset(1))) == pytest.approx(math.log(2 * math.pi))
    assert unknown.log_partition(unknown.reset(1)) is None
    assert unknown.exact_terminal(unknown.reset(1)) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Mixture(torch.zeros(0, 2), 1.0), "needs means"),
        (lambda: Mixture(torch.zeros(3, 2), 0.0), "std > 0"),
        (lambda: Funnel(1), "at least 2, got 1"),
        (lambda: ConditionalGaussian(0), "at least 1, got 0"),
    ],
)
def test_impossible_targets_are_refused(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()
