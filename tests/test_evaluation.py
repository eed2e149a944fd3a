"""Evaluation: right to the last digit, and without a trace."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from envs.hypergrid import Classic, GridStates, Hypergrid, UserReward
from gfn import exact
from gfn.evaluation import Evaluator
from gfn.objectives import Alpha, DevGrad, ExactLogZ, LearnedLogZ, Objective
from gfn.policies import MLPBackward, MLPPolicy, Policy, Tabular, Uniform, UniformBackward
from gfn.schedules import Piecewise
from tests.trainers import Unlisted, differences, small_trainer, snapshot


def objective_of(env: Hypergrid, policy: Policy[GridStates], **parts: Any) -> Objective[GridStates]:
    parts = {"divergence": Alpha(1.0), "partition": LearnedLogZ(1.0)} | parts
    return Objective(policy, UniformBackward(env), **parts)


def optimal_policy(env: Hypergrid) -> Tabular[GridStates]:
    graph = exact.state_graph(env)
    logits = torch.full((graph.n, env.n_actions), -math.inf, dtype=torch.float64)
    logits[graph.source, graph.action] = exact.optimal_log_pf(graph, UniformBackward(env))
    return Tabular(env, env.forward_mask, logits)


def test_exact_metrics_by_hand() -> None:
    """2 × 2 points with rewards 1, 2, 3, 4; every allowed action equally likely."""
    env = Hypergrid(2, 2, UserReward(lambda coords: 1.0 + 2 * coords[:, 0] + coords[:, 1], mode_threshold=3.0))
    # from (0,0) each of 3 actions; from (0,1) and (1,0) each of 2; from (1,1) stop. Points 00, 01, 10, 11:
    p = numpy.array([1 / 3, 1 / 6, 1 / 6, 1 / 3])
    q = numpy.array([0.1, 0.2, 0.3, 0.4])
    m = (p + q) / 2
    result = Evaluator(env, objective_of(env, Uniform(env.forward_mask)))(0)
    expected = {
        "tv": 7 / 30,
        "l1_sum": 7 / 15,
        "kl_target_model": (q * numpy.log(q / p)).sum(),
        "kl_model_target": (p * numpy.log(p / q)).sum(),
        "jsd_nats": ((p * numpy.log(p / m)).sum() + (q * numpy.log(q / m)).sum()) / 2,
        "correlation": numpy.corrcoef(numpy.log(p), numpy.log(q))[0, 1],
        "log_z": 1.0,
        "log_z_exact": math.log(10),
        "log_z_error": 1 - math.log(10),
        "mode_states_kept": 2,  # 10 has more than its quarter of 0.3, 11 of 0.4
        "regions_kept": 2,
    }
    assert {name: result[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_the_solution_has_no_error() -> None:
    env = Hypergrid(8, 2, Classic())
    objective = objective_of(env, optimal_policy(env), partition=DevGrad(), divergence=Alpha(0.5))
    result = Evaluator(env, objective, n_samples=32)(0)
    zero = ("tv", "l1_sum", "jsd_nats", "kl_target_model", "kl_model_target", "log_z_error")
    assert {name: result[name] for name in zero} == pytest.approx(dict.fromkeys(zero, 0.0), abs=1e-7)  # P_B is float32
    bounds = ("elbo", "eubo", "log_z", "log_z_importance", "log_z_exact")
    assert {name: result[name] for name in bounds} == pytest.approx(dict.fromkeys(bounds, 3.1091), abs=5e-5)
    assert result["importance_ess"] == pytest.approx(1.0)
    assert result["correlation"] == pytest.approx(1.0)
    assert (result["regions_kept"], result["mode_states_kept"]) == (4, 4)


@pytest.mark.parametrize(("lost", "kept"), [((), 4), ((6,), 2), ((1, 6), 0)])
def test_modes_kept_are_those_that_have_their_share(lost: tuple[int, ...], kept: int) -> None:
    """The solution, but hardly ever stopping where the first coordinate is one of ``lost``."""
    env = Hypergrid(8, 2, Classic())
    policy = optimal_policy(env)
    states = env.enumerate()
    for coordinate in lost:
        policy.logits.data[(states.coords[:, 0] == coordinate) & ~states.stopped, env.ndim] -= 10
    result = Evaluator(env, objective_of(env, policy))(0)
    assert (result["regions_kept"], result["mode_states_kept"]) == (kept, kept)


def random_objective(partition: Any = None, divergence: Any = None) -> tuple[Hypergrid, Objective[GridStates]]:
    env = Hypergrid(3, 2, UserReward(lambda coords: 1.0 + coords.sum(-1)))
    torch.manual_seed(3)
    policy = MLPPolicy(env, 16, 1)
    nn.init.normal_(policy.head.weight, std=0.7)
    backward = MLPBackward(env, policy)
    return env, Objective(policy, backward, divergence or Alpha(1.0), partition or LearnedLogZ(0.0))


def test_sampled_metrics_agree_with_expectations_over_all_trajectories() -> None:
    env, objective = random_objective()
    graph = exact.state_graph(env)
    every = exact.all_trajectories(graph)
    with torch.no_grad():
        scores = objective.scores(every)
    log_weight, log_p = -scores.excess, scores.log_pf.double().sum(1)
    target = (scores.log_pb.double().sum(1) + scores.log_reward - graph.log_z).exp()
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-6)
    assert float(target.sum()) == pytest.approx(1.0, abs=1e-6)

    def moments(p: Tensor, value: Tensor) -> tuple[float, float]:
        mean = (p * value).sum()
        return float(mean), float((p * (value - mean).square()).sum().sqrt())

    n = 20_000
    result = Evaluator(env, objective, n_samples=n)(0)
    for name, p, value in (
        ("elbo", log_p.exp(), log_weight),
        ("eubo", target, log_weight),
        ("log_reward_mean", log_p.exp(), scores.log_reward),
        ("length_mean", log_p.exp(), every.lengths.double()),
    ):
        mean, deviation = moments(p, value)
        assert deviation > 0.1, f"{name} must vary for its sampling to be seen"
        assert abs(result[name] - mean) < 4 * deviation / n**0.5, name
    log_z = float(graph.log_z)
    assert result["elbo"] < log_z - 0.1 < log_z + 0.1 < result["eubo"]
    ess = 1 / float((log_p.exp() * (2 * (log_weight - log_z)).exp()).sum())
    assert ess < 0.9
    assert abs(result["log_z_importance"] - log_z) < 4 * ((1 / ess - 1) / n) ** 0.5
    assert result["importance_ess"] == pytest.approx(ess, rel=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_around_log_z(seed: int) -> None:
    """ELBO ≤ log Z ≤ EUBO for policies near the solution too, where both are close."""
    env = Hypergrid(4, 2, Classic())
    policy = optimal_policy(env)
    generator = torch.Generator().manual_seed(seed)
    policy.logits.data += 0.3 * torch.randn(policy.logits.shape, generator=generator, dtype=torch.float64)
    result = Evaluator(env, objective_of(env, policy), n_samples=10_000)(0)
    assert 0.005 < result["log_z_exact"] - result["elbo"] < 0.3
    assert 0.005 < result["eubo"] - result["log_z_exact"] < 0.3


@pytest.mark.parametrize(
    ("partition", "divergence", "known"),
    [(LearnedLogZ(1.25), Alpha(1.0), 1.25), (DevGrad(), Alpha(0.0), None), (DevGrad(), Alpha(1.0), None)],
)
def test_log_z_is_that_of_the_partition(partition: Any, divergence: Any, known: float | None) -> None:
    env, objective = random_objective(partition, divergence)
    result = Evaluator(env, objective, n_samples=64)(0)
    if known is None:  # DevGrad of the batch: the importance estimate for α = 0, the ELBO for α = 1
        known = result["log_z_importance" if divergence.alpha == 0 else "elbo"]
    assert result["log_z"] == pytest.approx(known, abs=1e-9)
    assert result["log_z_error"] == pytest.approx(known - result["log_z_exact"], abs=1e-9)


def test_log_z_is_that_of_the_divergence_in_force() -> None:
    env, objective = random_objective(DevGrad(), Alpha(Piecewise([5], [0.0, 1.0])))
    evaluator = Evaluator(env, objective, n_samples=64)
    for step, name, other in ((4, "log_z_importance", "elbo"), (5, "elbo", "log_z_importance")):
        result = evaluator(step)
        assert result["log_z"] == pytest.approx(result[name], abs=1e-9)
        assert abs(result["log_z"] - result[other]) > 0.01


def test_evaluation_is_a_function_of_parameters_and_step() -> None:
    trainer = small_trainer(steps=3, evaluate_every=100)
    evaluator = trainer.evaluator
    assert evaluator is not None
    trainer.run()
    first = evaluator(7)
    torch.rand(5)
    trainer.sampler(0)
    Evaluator(evaluator.env, trainer.objective)(1)
    assert evaluator(7) == first
    assert evaluator(8) != first, "another step has other samples"
    other = Evaluator(evaluator.env, trainer.objective, n_samples=8, seed=1)
    assert other(7)["elbo"] != first["elbo"]
    assert other(7)["tv"] == first["tv"]
    trainer.steps = 4
    trainer.run()
    assert evaluator(7)["tv"] != first["tv"]


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("partition", [LearnedLogZ, DevGrad])
def test_evaluation_leaves_no_trace(partition: type[Any], after: int) -> None:
    """Generators, parameters, optimizer, discoveries, log Z that waits for its first batch: all as before."""
    trainer = small_trainer(steps=after, partition=partition())
    trainer.run()
    before, gradients = snapshot(trainer), [p.grad for p in trainer.objective.parameters()]
    assert trainer.evaluator is not None
    result = trainer.evaluator(after)
    assert not differences(snapshot(trainer), before)
    assert all(p.grad is g for p, g in zip(trainer.objective.parameters(), gradients, strict=True))
    assert all(p.requires_grad for p in trainer.objective.parameters())
    assert all(isinstance(value, float) for value in result.values())


def test_evaluating_first_does_not_change_training() -> None:
    """Log Z is initialised from the first training batch, whether or not somebody looked before."""
    plain, looked = (small_trainer(steps=2, partition=LearnedLogZ("data")) for _ in range(2))
    assert looked.evaluator is not None
    looked.evaluator(0)
    assert not bool(looked.objective.partition.initialised)
    plain.run()
    looked.run()
    assert not differences(snapshot(looked), snapshot(plain))


class Dropping(MLPPolicy[GridStates]):
    """A policy that drops features in training."""

    def __init__(self, env: Any, width: int, depth: int):
        super().__init__(env, width, depth)
        self.trunk.layers.append(nn.Dropout(0.5))


def test_every_part_keeps_its_mode() -> None:
    """Evaluation happens in evaluation mode and puts each part back, also those that differ from the whole."""
    trainer = small_trainer(policy=Dropping, evaluate_every=2)
    objective, evaluator = trainer.objective, trainer.evaluator
    assert evaluator is not None
    objective.backward_policy.head.eval()
    before = {name: module.training for name, module in objective.named_modules()}
    assert len(set(before.values())) == 2
    state = torch.get_rng_state()
    assert evaluator(0) == evaluator(0), "dropout is off"
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in objective.named_modules()} == before
    objective.eval()
    evaluator(0)
    assert not any(module.training for module in objective.modules())


def test_modes_are_put_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = small_trainer()
    assert trainer.evaluator is not None
    monkeypatch.setattr(trainer.evaluator, "graph", "not a graph")
    with pytest.raises(AttributeError):
        trainer.evaluator(0)
    assert all(module.training for module in trainer.objective.modules())


SAMPLED = {"elbo", "log_z_importance", "importance_ess", "log_reward_mean", "log_reward_top", "length_mean", "log_z"}
SAMPLED |= {"log_z_alpha_0", "log_z_alpha_0.5", "log_z_alpha_1", "log_z_alpha_2", "kl_estimate", "entropy"}


@pytest.mark.parametrize("kind", [Hypergrid, Unlisted])
def test_evaluation_without_enumeration(kind: Any) -> None:
    env = kind(8, 2)
    objective = objective_of(env, Uniform(env.forward_mask))
    sampled = Evaluator(env, objective, exact=kind is Unlisted)(5)
    assert sampled.pop("reach_fraction") == 1.0, "no walk back is lost on a grid"
    assert set(sampled) == SAMPLED
    full = Evaluator(Hypergrid(8, 2), objective)(5)
    assert set(full) > SAMPLED
    assert {name: full[name] for name in SAMPLED} == sampled


def test_grids_too_large_to_list_say_how_to_evaluate_them() -> None:
    env = Hypergrid(20, 6, Classic(r0=1e-3))
    objective = objective_of(env, Uniform(env.forward_mask))
    with pytest.raises(ValueError, match=r"evaluator\.exact=false"):
        Evaluator(env, objective)
    assert set(Evaluator(env, objective, exact=False, n_samples=4)(0)) == {*SAMPLED, "reach_fraction"}


@pytest.mark.parametrize("wrong", [{"every": 0}, {"n_samples": 1}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    env = Hypergrid(4, 2)
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        Evaluator(env, objective_of(env, Uniform(env.forward_mask)), **wrong)


def test_exact_log_z_has_no_error() -> None:
    env, objective = random_objective(ExactLogZ(Hypergrid(3, 2, UserReward(lambda coords: 1.0 + coords.sum(-1)))))
    assert Evaluator(env, objective)(0)["log_z_error"] == pytest.approx(0.0, abs=1e-12)
