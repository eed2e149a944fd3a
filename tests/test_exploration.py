"""Continuous actions, mixtures, and what exploration makes of a distribution."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import chisquare, kstest

from gfn.distributions import Certain, Gaussian, MaskedCategorical, Mixture
from gfn.exploration import EpsilonUniform, NoExploration, Noise, Tempered
from gfn.schedules import Linear

MEAN = torch.tensor([[0.0, 1.0], [2.0, -3.0]])
STD = torch.tensor([[1.0, 0.5], [2.0, 0.1]])


def probabilities(distribution, n: int = 3) -> list[float]:
    """Of actions 0 … n−1 in row 0."""
    return [float(distribution.log_prob(torch.full((1,), action))[0].exp()) for action in range(n)]


def skewed() -> MaskedCategorical:
    """Probabilities 0.2 and 0.8; a third action is forbidden."""
    return MaskedCategorical(torch.tensor([[0.2, 0.8, 9.0]]).log(), torch.tensor([[True, True, False]]))


def test_gaussian_densities_are_those_of_independent_normals() -> None:
    actions = torch.randn(2, 2)
    wanted = torch.distributions.Normal(MEAN, STD).log_prob(actions).sum(1)
    assert torch.allclose(Gaussian(MEAN, STD).log_prob(actions), wanted)


def test_gaussian_samples_follow_the_density() -> None:
    rows = torch.ones(2000, dtype=torch.long)
    draws = Gaussian(MEAN, STD)[rows].sample(torch.Generator().manual_seed(0))
    assert kstest(draws[:, 0], "norm", (2.0, 2.0)).pvalue > 1e-3
    assert kstest(draws[:, 1], "norm", (-3.0, 0.1)).pvalue > 1e-3
    assert draws.equal(Gaussian(MEAN, STD)[rows].sample(torch.Generator().manual_seed(0)))


def test_gaussian_rows_are_selected() -> None:
    picked = Gaussian(MEAN, STD)[torch.tensor([1, 0, 1])]
    assert picked.mean.tolist() == MEAN[[1, 0, 1]].tolist()
    assert picked.std.tolist() == STD[[1, 0, 1]].tolist()


def test_a_coordinate_without_deviation_is_certain() -> None:
    distribution = Gaussian(MEAN, torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
    draws = distribution.sample()
    assert draws[0].tolist() == [0.0, 1.0]
    assert draws[1, 1] == -3.0
    wanted = torch.distributions.Normal(2.0, 2.0).log_prob(draws[1, 0])
    assert distribution.log_prob(draws).tolist() == pytest.approx([0.0, float(wanted)])


def test_no_gradient_flows_through_gaussian_samples_but_through_densities() -> None:
    mean = torch.zeros(1, 2, requires_grad=True)
    distribution = Gaussian(mean, torch.ones(1, 2))
    assert not distribution.sample().requires_grad
    distribution.log_prob(torch.tensor([[1.0, -2.0]])).sum().backward()
    assert mean.grad is not None
    assert mean.grad.tolist() == [[1.0, -2.0]]


def test_tempered_gaussians_have_tempered_densities() -> None:
    actions, more = torch.randn(2, 2), torch.randn(2, 2)
    hot, cold = Gaussian(MEAN, STD).tempered(3.0), Gaussian(MEAN, STD)
    ratio = (cold.log_prob(actions) - cold.log_prob(more)) / 3
    assert torch.allclose(hot.log_prob(actions) - hot.log_prob(more), ratio, atol=1e-4)


def test_noise_adds_variance_except_where_an_action_is_certain() -> None:
    noisy = Gaussian(MEAN, torch.tensor([[3.0, 0.0], [0.0, 0.0]])).noisier(4.0)
    assert noisy.std.tolist() == [[5.0, 0.0], [0.0, 0.0]]
    assert noisy.mean is MEAN
    assert Gaussian(MEAN, torch.full((2, 2), 0.75)).noisier(1.0).std.unique().tolist() == [1.25]


def test_a_gaussian_has_no_uniform_counterpart() -> None:
    with pytest.raises(TypeError, match=r"explore with gfn\.exploration\.Noise"):
        Gaussian(MEAN, STD).uniform()


def test_mixtures_mix_probabilities() -> None:
    mixture = Mixture(skewed(), skewed().uniform(), 0.25)
    assert probabilities(mixture) == pytest.approx([0.275, 0.725, 0.0])
    draws = mixture[torch.zeros(4000, dtype=torch.long)].sample(torch.Generator().manual_seed(0))
    counts = torch.bincount(draws, minlength=3).tolist()
    assert counts[2] == 0
    assert chisquare(counts[:2], [1100, 2900]).pvalue > 1e-3


def test_mixtures_of_pairs_are_drawn_whole() -> None:
    one, two = torch.tensor([[0, 1]]).expand(4000, 2), torch.tensor([[2, 3]]).expand(4000, 2)
    draws = Mixture(Certain(one), Certain(two), 0.25).sample(torch.Generator().manual_seed(0))
    second = (draws == two).all(1)
    assert (second | (draws == one).all(1)).all()
    assert chisquare([int(second.sum()), int((~second).sum())], [1000, 3000]).pvalue > 1e-3


def test_mixtures_are_uniform_but_not_tempered() -> None:
    mixture = Mixture(skewed(), skewed(), 0.25)
    assert probabilities(mixture.uniform()) == pytest.approx([0.5, 0.5, 0.0])
    with pytest.raises(TypeError, match="temper its parts"):
        mixture.tempered(2.0)


@pytest.mark.parametrize("weight", [0.0, 1.0, -0.1, math.nan])
def test_the_weight_of_a_mixture_lies_between_zero_and_one(weight: float) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        Mixture(skewed(), skewed(), weight)


def test_without_exploration_the_policy_is_left_alone() -> None:
    distribution = skewed()
    assert NoExploration()(distribution, 7) is distribution
    assert NoExploration().settings(7) == {}


@pytest.mark.parametrize(
    ("epsilon", "wanted"), [(0.0, [0.2, 0.8, 0.0]), (0.5, [0.35, 0.65, 0.0]), (1.0, [0.5, 0.5, 0.0])]
)
def test_epsilon_mixes_in_the_uniform_distribution(epsilon: float, wanted: list[float]) -> None:
    assert probabilities(EpsilonUniform(epsilon)(skewed(), 0)) == pytest.approx(wanted)
    assert EpsilonUniform(epsilon).settings(0) == {"epsilon": epsilon}


def test_epsilon_may_follow_a_schedule() -> None:
    exploration = EpsilonUniform(Linear(1.0, 0.0, 10))
    assert probabilities(exploration(skewed(), 0)) == pytest.approx([0.5, 0.5, 0.0])
    assert probabilities(exploration(skewed(), 5)) == pytest.approx([0.35, 0.65, 0.0])
    assert probabilities(exploration(skewed(), 10)) == pytest.approx([0.2, 0.8, 0.0])
    assert exploration.settings(5) == {"epsilon": 0.5}


@pytest.mark.parametrize("epsilon", [-0.1, 1.1, math.nan])
def test_epsilon_is_a_probability(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon must lie in \[0, 1\]"):
        EpsilonUniform(epsilon)


def test_temperature_flattens() -> None:
    exploration = Tempered(Linear(1.0, 3.0, 10))
    assert probabilities(exploration(skewed(), 0)) == pytest.approx([0.2, 0.8, 0.0])
    assert probabilities(exploration(skewed(), 5)) == pytest.approx([1 / 3, 2 / 3, 0.0])
    assert exploration.settings(5) == {"temperature": 2.0}
    assert probabilities(Tempered(0.5)(skewed(), 0)) == pytest.approx([1 / 17, 16 / 17, 0.0])
    with pytest.raises(ValueError, match="temperature must be positive, got 0"):
        Tempered(0)


def test_noise_widens_gaussians_only() -> None:
    exploration = Noise(Linear(4.0, 0.0, 10))
    distribution = Gaussian(torch.zeros(1, 1), torch.full((1, 1), 3.0))
    assert exploration(distribution, 0).std.item() == 5.0
    assert exploration(distribution, 10).std.item() == 3.0
    assert exploration.settings(5) == {"noise_std": 2.0}
    with pytest.raises(
        TypeError, match="needs Gaussian actions, got MaskedCategorical; use EpsilonUniform or Tempered"
    ):
        exploration(skewed(), 0)
