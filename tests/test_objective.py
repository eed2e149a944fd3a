"""Exact tests of the objective on graphs whose trajectories can all be listed: values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Hypergrid
from gfn import exact
from gfn.objectives import (
    Alpha,
    DevGrad,
    Divergence,
    ExactLogZ,
    JensenShannon,
    LearnedLogZ,
    Objective,
    Scores,
    trajectory_balance,
)
from gfn.policies import Tabular, UniformBackward
from gfn.schedules import Linear
from tests.oracles import MEMBERS, f64
from tests.test_exact import as_table
from tests.two_paths import TwoPaths, table_backward, table_forward

# D over trajectories, D over ends, gradient of the logits at the start, first logit's of each single element
DIVERGENCES: dict[str, tuple[Divergence, float, tuple[float, ...]]] = {
    "alpha=0": (
        Alpha(0.0),
        1,
        (0.33436193, 0.05811587, 0.17348387, -0.36875485, 0.19527098, -0.01345352, 0.01259806, -0.00253735),
    ),
    "alpha=.5": (
        Alpha(0.5),
        1,
        (0.31592588, 0.06193189, 0.11961792, -0.31106691, 0.19144899, -0.01718980, 0.00755171, -0.00406032),
    ),
    "alpha=1": (
        Alpha(1.0),
        1,
        (0.30927864, 0.06666998, 0.07255797, -0.27897630, 0.20641833, -0.02198267, 0.00452763, -0.00649876),
    ),
    "alpha=2": (
        Alpha(2.0),
        1,
        (0.32961028, 0.07975962, -0.02951874, -0.27418813, 0.30370687, -0.03604340, 0.00162845, -0.01665877),
    ),
    "js": (
        JensenShannon(0.5),
        4,
        (0.07757611, 0.01537026, 0.02911543, -0.07479583, 0.04568040, -0.00416952, 0.00166507, -0.00091228),
    ),
}
P_FORWARD = f64(0.30460529, 0.16717093, 0.14164426, 0.07033846, 0.09140964, 0.22483142)
TARGET = f64(0.20604786, 0.09224449, 0.37544368, 0.20529389, 0.03750381, 0.08346627)
ORDER = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def on_policy(scores: Scores, log_z: Tensor) -> tuple[Tensor, Tensor]:
    """Trajectory balance where every trajectory counts by its own probability, as if sampled from P_F."""
    residual, ones = trajectory_balance(scores, log_z)
    return residual, ones * len(ones) * scores.log_pf.detach().sum(1).exp()


def log_prob(policy: Tabular[Any], t: Any, backward: bool = False) -> Tensor:
    """Log-probability of whole trajectories, ``[B]``."""
    return t.pad(policy.log_prob_backward(t) if backward else policy.log_prob(t)).sum(1)


def target_of(model: Objective[Any], t: Any, log_z: Tensor) -> Tensor:
    """R(x) P_B(τ|x) / Z of whole trajectories."""
    return (t.log_reward - log_z + log_prob(model.backward_policy, t, backward=True)).exp()


def divergence_of(model: Objective[Any], t: Any, log_z: Tensor) -> Tensor:
    """D_f of the forward trajectories from the target ones, by its definition."""
    target = target_of(model, t, log_z)
    return (target * model.divergence.generator(log_prob(model.policy, t).exp() / target)).sum()


@pytest.fixture
def two_paths() -> tuple[TwoPaths, Any, Any]:
    env = TwoPaths()
    graph = exact.state_graph(env)
    return env, graph, exact.all_trajectories(graph)


def table_objective(env: TwoPaths, divergence: Divergence) -> Objective[Tensor]:
    return Objective(table_forward(env), table_backward(env), divergence, ExactLogZ(env), on_policy)


def in_order(t: Any) -> Tensor:
    """Positions of the six trajectories in the order of the tables."""
    pairs = [tuple(pair) for pair in t.actions.view(-1, 2).tolist()]
    return torch.tensor([pairs.index(pair) for pair in ORDER])


def test_two_paths_probabilities(two_paths: tuple[TwoPaths, Any, Any]) -> None:
    env, graph, t = two_paths
    model, order = table_objective(env, Alpha(1.0)), in_order(t)
    assert float(graph.log_z) == pytest.approx(1.5421588492, abs=1e-9)
    torch.testing.assert_close(log_prob(model.policy, t).exp()[order], P_FORWARD, atol=1e-8, rtol=0)
    torch.testing.assert_close(target_of(model, t, graph.log_z)[order], TARGET, atol=1e-8, rtol=0)
    ends = exact.log_terminal(graph, model.policy).exp()
    torch.testing.assert_close(ends, f64(0.44624955, 0.25858056, 0.29516988), atol=1e-8, rtol=0)
    torch.testing.assert_close(graph.log_target.exp(), f64(0.58149154, 0.12974830, 0.28876015), atol=1e-8, rtol=0)
    residual = log_prob(model.policy, t) - target_of(model, t, graph.log_z).log()
    scores = model.scores(t)
    found, _ = trajectory_balance(scores, model.partition(scores, model.divergence))
    torch.testing.assert_close(found, residual, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_two_paths_divergences(two_paths: tuple[TwoPaths, Any, Any], name: str) -> None:
    env, graph, t = two_paths
    divergence, norm, (over_trajectories, over_ends, *_) = DIVERGENCES[name]
    model = table_objective(env, divergence)
    found = float(divergence_of(model, t, graph.log_z).detach()) / norm
    assert found == pytest.approx(over_trajectories, abs=1e-6)
    p, q = exact.log_terminal(graph, model.policy).exp(), graph.log_target.exp()
    ends = float((q * divergence.generator(p / q)).sum()) / norm
    assert ends == pytest.approx(over_ends, abs=1e-6)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_two_paths_forward_gradient(two_paths: tuple[TwoPaths, Any, Any], name: str) -> None:
    env, graph, t = two_paths
    divergence, norm, (_, _, *row) = DIVERGENCES[name]
    model = table_objective(env, divergence)
    (found,) = torch.autograd.grad(model(t)[0], model.policy.logits)
    (truth,) = torch.autograd.grad(divergence_of(model, t, graph.log_z), model.policy.logits)
    torch.testing.assert_close(found, truth, atol=1e-10, rtol=0)
    start, single = found[0] / norm, found[1:4] / norm
    torch.testing.assert_close(start, f64(*row[:3]), atol=1e-6, rtol=0)
    first, second = f64(*row[3:]), -f64(*row[3:])
    torch.testing.assert_close(single[[0, 1, 2], [1, 0, 0]], first, atol=1e-6, rtol=0)
    torch.testing.assert_close(single[[0, 1, 2], [2, 2, 1]], second, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("alpha", "row"),
    [(0.0, (0.14647958, -0.01666679, -0.13951242)), (1.0, (0.12580550, -0.02916770, -0.18016795))],
)
def test_two_paths_backward_gradient(
    two_paths: tuple[TwoPaths, Any, Any], alpha: float, row: tuple[float, ...]
) -> None:
    """At α = 0 it is that of maximum likelihood of the backward policy, and at α = 1 it is not."""
    env, _, t = two_paths
    model = table_objective(env, Alpha(alpha))
    (found,) = torch.autograd.grad(model(t)[0], model.backward_policy.logits)
    torch.testing.assert_close(found[[4, 5, 6], [0, 0, 1]], f64(*row), atol=1e-6, rtol=0)
    torch.testing.assert_close(found[[4, 5, 6], [1, 2, 2]], -f64(*row), atol=1e-6, rtol=0)
    probability = log_prob(model.policy, t).detach().exp()
    negative_likelihood = -(probability * log_prob(model.backward_policy, t, backward=True)).sum()
    (likelihood,) = torch.autograd.grad(negative_likelihood, model.backward_policy.logits)
    assert bool(torch.allclose(found, likelihood, atol=1e-10)) == (alpha == 0)


@pytest.mark.parametrize(
    ("alpha", "log_z"), [(0.0, 1.54215885), (0.5, 1.37760860), (1.0, 1.23288021), (2.0, 1.03581090)]
)
def test_learned_log_z_rests_where_renyi_says(two_paths: tuple[TwoPaths, Any, Any], alpha: float, log_z: float) -> None:
    env, _, t = two_paths
    model = table_objective(env, Alpha(alpha))
    probability = log_prob(model.policy, t).detach().exp()
    rest = -model.divergence.centre(model.scores(t).excess.detach(), probability)
    assert float(rest) == pytest.approx(log_z, abs=1e-6)
    for shift, sign in ((0.0, 0), (0.1, 1), (-0.1, -1)):
        model.partition = LearnedLogZ(init=float(rest) + shift)
        (slope,) = torch.autograd.grad(model(t)[0], model.partition.value)
        assert slope.round(decimals=10).sign() == sign


def random_objective(env: Any, divergence: Divergence, learned_backward: bool = True) -> Objective[Any]:
    """Random tabular policies in float64."""

    def table(mask: Callable[[Any], Tensor], learned: bool) -> Tabular[Any]:
        logits = torch.randn(len(env.enumerate()), env.n_actions, dtype=torch.float64)
        return Tabular(env, mask, logits, learned)

    forward, backward = table(env.forward_mask, True), table(env.backward_mask, learned_backward)
    return Objective(forward, backward, divergence, ExactLogZ(env), on_policy)


@pytest.mark.parametrize("name", MEMBERS)
def test_gradient_of_the_objective_is_that_of_the_divergence(name: str) -> None:
    env = Hypergrid(3)
    graph = exact.state_graph(env)
    t = exact.all_trajectories(graph)
    model = random_objective(env, MEMBERS[name].divergence)
    loss, report = model(t)
    (found,) = torch.autograd.grad(loss, model.policy.logits)
    (truth,) = torch.autograd.grad(divergence_of(model, t, graph.log_z), model.policy.logits)
    torch.testing.assert_close(found, truth, atol=1e-10, rtol=0)
    assert truth.abs().max() > 1e-3
    p, residual = log_prob(model.policy, t), log_prob(model.policy, t) - target_of(model, t, graph.log_z).log()
    value = exact.expected_loss(model.divergence.loss, residual, p)
    torch.testing.assert_close(loss, value, atol=1e-12, rtol=1e-12)
    (again,) = torch.autograd.grad(value, model.policy.logits)
    torch.testing.assert_close(again, truth, atol=1e-10, rtol=0)
    assert float(report["loss"]) == float(loss.detach())


@pytest.mark.parametrize("name", MEMBERS)
def test_devgrad_gradient_sums_to_nothing_over_log_z(name: str) -> None:
    """Adding a constant to every reward changes neither loss nor gradient of a batch estimate."""
    env, brighter = TwoPaths(), TwoPaths(f64(1.0, -0.5, 0.3) + 4)
    gradients, losses = [], []
    for place in (env, brighter):
        model = Objective(table_forward(place), table_backward(place), MEMBERS[name].divergence, DevGrad())
        loss, _ = model(exact.all_trajectories(exact.state_graph(place)))
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, model.policy.logits)[0])
    torch.testing.assert_close(losses[0], losses[1], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-12, rtol=1e-12)


def test_report_of_a_batch() -> None:
    env = Hypergrid(3)
    t = exact.all_trajectories(exact.state_graph(env))
    model = random_objective(env, Alpha(0.5))
    loss, report = model(t)
    assert float(report["loss"]) == float(loss.detach())
    assert float(report["length"]) == pytest.approx(len(t.actions) / len(t))
    assert float(report["log_reward"]) == pytest.approx(float(env.log_reward(t.final).mean()))
    assert float(report["log_z"]) == pytest.approx(float(exact.log_partition(env)))
    assert report["zero_reward"] == 0
    assert not any(torch.as_tensor(value).requires_grad for value in report.values())


def test_schedule_follows_the_step() -> None:
    env = TwoPaths()
    t = exact.all_trajectories(exact.state_graph(env))
    annealed = table_objective(env, Alpha(Linear(0.0, 2.0, 10)))
    for step, alpha in ((0, 0.0), (5, 1.0), (10, 2.0), (99, 2.0)):
        expected, _ = table_objective(env, Alpha(alpha))(t)
        torch.testing.assert_close(annealed(t, step)[0], expected, atol=0, rtol=0)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_reward_exponent_is_in_force_in_training(power: float) -> None:
    """The loss is zero at the policy of the rewards to the power in force, and not at another one."""
    env = Hypergrid(3, 2)
    graph = exact.state_graph(env)
    tempered = replace(graph, log_reward=power * graph.log_reward)
    backward = UniformBackward(env).double()
    policy = as_table(env, graph, exact.optimal_log_pf(tempered, backward)).double()
    t = exact.all_trajectories(graph)

    def loss(exponent: float) -> float:
        log_z = LearnedLogZ(float(tempered.log_z)).double()
        return float(Objective(policy, backward, Alpha(0.5), log_z, reward_exponent=exponent)(t)[0].detach())

    assert loss(power) < 1e-10
    assert loss(0.75 * power) > 1e-3
