"""At the exact solution every residual is zero, off-policy too; with reward zero and with a prior as P_B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Hypergrid, UserReward
from gfn import exact
from gfn.evaluation import Evaluator
from gfn.flows import MLPFlow
from gfn.objectives import (
    Alpha,
    Clipped,
    ConditionalLogZ,
    DevGrad,
    Divergence,
    ExactLogZ,
    JensenShannon,
    LearnedLogZ,
    Objective,
    Partition,
    PearsonChi2,
    ReverseKL,
    Scores,
    ShiftedCosh,
    Tempered,
    trajectory_balance,
)
from gfn.policies import MLPBackward, MLPPolicy, Policy, Prior, Tabular, Uniform, UniformBackward
from gfn.sampling import rollout
from tests.oracles import MEMBERS
from tests.two_paths import TwoPaths

GRAPHS: dict[str, Callable[[], Any]] = {
    "2x2": lambda: Hypergrid(2),
    "3x3": lambda: Hypergrid(3),
    "2x2x2": lambda: Hypergrid(2, 3, UserReward(lambda coords: 1.0 + (coords * torch.tensor([1, 2, 5])).sum(1))),
    "two paths": TwoPaths,
}
PARTITIONS: dict[str, Callable[[Any, float], Partition]] = {
    "learned": lambda env, log_z: LearnedLogZ(init=log_z),
    "learned from data": lambda env, log_z: LearnedLogZ(),
    "devgrad": lambda env, log_z: DevGrad(),
    "leave one out": lambda env, log_z: DevGrad(leave_one_out=True),
    "exact": lambda env, log_z: ExactLogZ(env),
}


def random_table(env: Any, mask: Callable[[Any], Tensor]) -> Tabular[Any]:
    """A policy with normal logits, float64."""
    return Tabular(env, mask, torch.randn(len(env.enumerate()), env.n_actions, dtype=torch.float64))


def as_table(env: Any, graph: Any, log_pf: Tensor) -> Tabular[Any]:
    """The policy with given log-probabilities of every edge."""
    logits = torch.zeros(graph.n, env.n_actions, dtype=torch.float64)
    return Tabular(env, env.forward_mask, logits.index_put((graph.source, graph.action), log_pf))


def off_policy(env: Any, n: int = 20) -> Any:
    """Trajectories of the uniform policy."""
    return rollout(env, Uniform(env.forward_mask), env.reset(n))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_residuals_vanish_at_the_solution(name: str, learned: bool, partition: str) -> None:
    env = GRAPHS[name]()
    graph = exact.state_graph(env)
    backward = random_table(env, env.backward_mask) if learned else UniformBackward(env)
    policy, t = as_table(env, graph, exact.optimal_log_pf(graph, backward)), off_policy(env)
    for member in MEMBERS.values():
        model = Objective(policy, backward, member.divergence, PARTITIONS[partition](env, float(graph.log_z)))
        scores = model.scores(t)
        log_z = model.partition(scores, member.divergence)
        residual, _ = trajectory_balance(scores, log_z)
        assert residual.abs().max() <= 1e-12
        torch.testing.assert_close(log_z, graph.log_z.expand(len(t)), atol=1e-12, rtol=0)
        assert float(model(t)[0].detach()) <= 1e-11
    loss, _ = Objective(policy, backward, PearsonChi2(), PARTITIONS[partition](env, float(graph.log_z)))(t)
    (gradient,) = torch.autograd.grad(loss, policy.logits)
    assert gradient.abs().max() <= 1e-12


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", GRAPHS)
def test_residuals_do_not_vanish_elsewhere(name: str) -> None:
    env = GRAPHS[name]()
    for partition in PARTITIONS.values():
        model = Objective(random_table(env, env.forward_mask), UniformBackward(env), Alpha(0.5), partition(env, 1.0))
        assert float(model(off_policy(env))[0].detach()) > 1e-3


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", GRAPHS)
def test_prior_makes_the_posterior_the_solution(name: str) -> None:
    """Relative trajectory balance: with a prior π as P_B, P_F(τ) ∝ π(τ) R(x) solves it."""
    env = GRAPHS[name]()
    graph = exact.state_graph(env)
    prior = random_table(env, env.forward_mask)
    log_prior = exact.edge_log_pf(graph, prior)
    value = exact.log_flows(graph, log_prior)  # log of the reward to expect under the prior
    policy = as_table(env, graph, value[graph.target] + log_prior - value[graph.source])
    log_z = value[graph.initial][0]
    model = Objective(policy, Prior(prior), JensenShannon(0.5), LearnedLogZ(init=float(log_z)))
    t = off_policy(env)
    scores = model.scores(t)
    residual, _ = trajectory_balance(scores, model.partition(scores, model.divergence))
    assert residual.abs().max() <= 1e-12
    posterior = exact.log_terminal(graph, prior) + graph.log_reward - log_z
    torch.testing.assert_close(exact.log_terminal(graph, policy), posterior, atol=1e-12, rtol=0)
    torch.testing.assert_close(posterior.exp().sum(), torch.ones(()), atol=1e-12, rtol=0)
    found = Evaluator(env, model, n_samples=64)(0)
    assert found["tv"] <= 1e-12
    assert found["log_z_exact"] == pytest.approx(float(log_z), abs=1e-12)
    assert found["log_z_importance"] == pytest.approx(float(log_z), abs=1e-9)
    plain = Evaluator(env, Objective(policy, UniformBackward(env), JensenShannon(0.5), LearnedLogZ(0.0)))(0)
    assert plain["tv"] > 1e-3, "without the prior the target is another one"


def hollow_grid() -> Hypergrid:
    """A 3×3 grid whose last row has reward zero."""
    return Hypergrid(3, reward=UserReward(lambda coords: (1.0 + coords[:, 1]) * (coords[:, 0] < 2)))


def on_policy(scores: Scores, log_z: Tensor) -> tuple[Tensor, Tensor]:
    residual, ones = trajectory_balance(scores, log_z)
    return residual, ones * len(ones) * scores.log_pf.detach().sum(1).exp()


BOUNDED: dict[str, tuple[Divergence, float]] = {  # and f'(∞)
    "alpha=-1": (Alpha(-1.0), 0.5),
    "alpha=0": (Alpha(0.0), 1.0),
    "alpha=.5": (Alpha(0.5), 2.0),
    "js": (JensenShannon(0.5), 2 * 0.6931471805599453),
    "logcosh": (MEMBERS["logcosh"].divergence, 2.0),
    "huber": (MEMBERS["huber"].divergence, 1.0),
    "tv": (MEMBERS["tv"].divergence, 0.5),
    "clipped": (Clipped(ReverseKL(), 3.0), 3.0),
    "clipped pearson": (Clipped(PearsonChi2(), 2.0), 6.38905609893065),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_zero_rewards_count_with_the_bound_of_the_slope(name: str) -> None:
    """D_f of a target with zeros is Σ q f(p/q) where q > 0, plus f'(∞) times the mass where q = 0."""
    env, (divergence, bound) = hollow_grid(), BOUNDED[name]
    t = exact.all_trajectories(exact.state_graph(env))
    policy, backward = random_table(env, env.forward_mask), random_table(env, env.backward_mask)
    loss, report = Objective(policy, backward, divergence, ExactLogZ(env), on_policy)(t)
    (found,) = torch.autograd.grad(loss, policy.logits)
    p = t.pad(policy.log_prob(t)).sum(1).exp()
    q = (t.log_reward - exact.log_partition(env) + t.pad(backward.log_prob_backward(t)).sum(1)).exp().detach()
    zero = q == 0
    value = (q[~zero] * divergence.generator(p[~zero] / q[~zero])).sum() + bound * p[zero].sum()
    (truth,) = torch.autograd.grad(value, policy.logits)
    torch.testing.assert_close(found, truth, atol=1e-10, rtol=0)
    positive = (p[~zero] * divergence.loss((p[~zero] / q[~zero]).log())).sum()
    torch.testing.assert_close(loss, positive, atol=1e-10, rtol=0)
    assert float(report["zero_reward"]) == pytest.approx(float(zero.double().mean()))
    assert 0 < float(report["zero_reward"]) < 1


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("name", BOUNDED)
def test_zero_rewards_with_every_partition(name: str, partition: str) -> None:
    env = hollow_grid()
    policy = MLPPolicy(env, width=8, depth=1)
    model = Objective(policy, UniformBackward(env), BOUNDED[name][0], PARTITIONS[partition](env, 2.0))
    loss, report = model(off_policy(env))
    loss.backward()
    assert loss.isfinite()
    assert all(torch.as_tensor(value).isfinite() for key, value in report.items() if key != "log_reward")
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.parameters())


@pytest.mark.parametrize(
    "divergence",
    [
        Alpha(1.0),
        Alpha(1.2),
        Alpha(2.0),
        Alpha(3.0),
        MEMBERS["jeffreys"].divergence,
        ShiftedCosh(),
        Tempered(ReverseKL(), 0.005),
        Tempered(PearsonChi2(), 0.01),
    ],
)
def test_zero_rewards_are_refused_where_the_slope_has_no_bound(divergence: Divergence) -> None:
    env = hollow_grid()
    model = Objective(random_table(env, env.forward_mask), UniformBackward(env), divergence, LearnedLogZ())
    with pytest.raises(ValueError, match=r"of 20 trajectories have reward zero.*positive floor.*alpha below 1"):
        model(off_policy(env))


@pytest.mark.parametrize("partition", [LearnedLogZ, DevGrad, "conditional"])
@pytest.mark.parametrize("backward", ["tied", "own", "uniform", "prior"])
def test_every_trainable_parameter_once_and_reached(backward: str, partition: Any) -> None:
    env = Hypergrid(3)
    policy = MLPPolicy(env, width=8, depth=2)
    backwards: dict[str, Callable[[], Policy[Any]]] = {
        "tied": lambda: MLPBackward(env, policy),
        "own": lambda: MLPBackward(env, policy, tied=False),
        "uniform": lambda: UniformBackward(env),
        "prior": lambda: Prior(MLPPolicy(env, width=8, depth=2)),
    }
    part = ConditionalLogZ(MLPFlow(env, policy), lr=0.1) if partition == "conditional" else partition()
    model = Objective(policy, backwards[backward](), JensenShannon(0.3), part)
    groups = model.parameter_groups()
    listed = [id(p) for group in groups for p in group.parameters]
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert sorted(listed) == sorted(id(p) for p in trainable.values())
    assert len(set(listed)) == len(listed)
    assert any("backward_policy.head" in name for name in trainable) == (backward in ("tied", "own"))
    assert len(groups) == (1 if partition is DevGrad else 2)
    model(off_policy(env))[0].backward()
    assert [name for name, p in trainable.items() if p.grad is None or not bool((p.grad != 0).any())] == []
