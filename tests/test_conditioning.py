"""Conditions in the state: the contract, exact answers for each condition, evaluation, and learning all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from envs.bits import Insert
from envs.hypergrid import Classic, Cosine, Hypergrid, UserReward
from gfn import exact, metrics
from gfn.check import check_environment
from gfn.conditioning import Conditioned, Preferences, RewardExponents
from gfn.environment import Measured, as_enumerable, as_multimodal
from gfn.evaluation import Evaluator
from gfn.flows import ForwardLooking, ImpliedByStop, MLPFlow
from gfn.objectives import Alpha, ConditionalLogZ, DevGrad, ExactLogZ, LearnedLogZ, Objective, ReverseKL
from gfn.policies import MLPPolicy, Uniform, UniformBackward
from gfn.samplers import OnPolicy
from gfn.sampling import rollout
from gfn.states import cat, from_tensors, to_tensors
from gfn.training import Trainer
from gfn.trajectories import Trajectories
from tests.marks import mostly_slow
from tests.test_exact import Listed, as_table, random_table
from tests.trainers import Unlisted

EXPONENTS = (0.5, 1.0, 2.0)


def grid() -> Hypergrid:
    return Hypergrid(4, 2, UserReward(lambda coords: 1.0 + 2 * coords[:, 0] + coords[:, 1], mode_threshold=8.0))


def tempered() -> RewardExponents[Any]:
    return RewardExponents(grid(), EXPONENTS)


def preferring(combine: Any = "product") -> Preferences[Any]:
    return Preferences([Hypergrid(4), Hypergrid(4, 2, Cosine())], [[1, 0], [0.3, 0.7], [0, 2]], combine)


@pytest.mark.parametrize(
    "env",
    [tempered(), preferring(), preferring("sum"), RewardExponents(Insert(4, 2, ["0110"]), [1.0, 3.0])],
    ids=["exponents", "product", "sum", "bits"],
)
def test_contract(env: Any) -> None:
    assert {"enumerate", "modes", "generator"} <= set(check_environment(env))


def test_abilities_are_those_of_the_environment() -> None:
    hidden: Any = RewardExponents(Unlisted(4, 2), EXPONENTS)
    assert as_enumerable(hidden) is None
    plain: Any = RewardExponents(Listed([[1], [-1]]), EXPONENTS)
    assert as_enumerable(plain) is plain
    assert as_multimodal(plain) is None
    large: Any = RewardExponents(Insert(), EXPONENTS)
    assert as_multimodal(large) is large
    assert "enumerate" not in check_environment(hidden)
    moved = tempered().to("cpu")
    assert as_enumerable(moved) is moved
    assert moved.index.__self__ is moved
    assert dict(tempered().mode_counts) == {name: 3 * n for name, n in grid().mode_counts.items()}


def test_modes_that_nobody_has_counted_stay_uncounted() -> None:
    class Islands(Hypergrid):
        @property
        def mode_counts(self) -> Any:
            return {"islands": None, "regions": 4}

    assert dict(RewardExponents(Islands(4, 2), EXPONENTS).mode_counts) == {"islands": None, "regions": 12}


def test_states_behave_as_a_batch() -> None:
    env = tempered()
    states = env.enumerate()
    assert len(states) == 3 * 32 == len(env.enumerate())
    assert torch.equal(env.index(states), torch.arange(96))
    assert env.index(states[[40, 3]]).tolist() == [40, 3]
    assert env.index(cat([states[5:7], states[90:91]])).tolist() == [5, 6, 90]
    tensors = to_tensors(states)
    assert {name: x.shape[0] for name, x in tensors.items()} == {
        "inner.coords": 96,
        "inner.stopped": 96,
        "condition": 96,
    }
    back = from_tensors(tensors, states[:1])
    assert isinstance(back, Conditioned)
    assert torch.equal(env.index(back), env.index(states))
    t = rollout(env, Uniform(env.forward_mask), env.reset(5))
    again = Trajectories.from_tensors(t.tensors(), t.states[:1])
    assert torch.equal(env.index(again.final), env.index(t.final))


def test_conditions_are_drawn_evenly_and_stay() -> None:
    env = tempered()
    start = env.reset(3000, torch.Generator().manual_seed(0))
    share = torch.bincount(start.condition, minlength=3) / 3000
    assert (share - 1 / 3).abs().max() < 4 * (2 / 9 / 3000) ** 0.5
    t = rollout(env, Uniform(env.forward_mask), start[:50])
    assert torch.equal(t.initial.condition, start.condition[:50])
    assert torch.equal(t.final.condition, start.condition[:50])
    assert env.describe(start[:1])[0].endswith(f"| exponent {EXPONENTS[int(start.condition[0])]:g}")
    features = env.encode(env.enumerate())
    assert len(features.unique(dim=0)) == 3 * len(grid().encode(grid().enumerate()).unique(dim=0))


def test_exponents_and_preferences_by_hand() -> None:
    env, inner = tempered(), grid()
    final = env.enumerate()[env.is_terminal(env.enumerate())]
    exponent = torch.tensor(EXPONENTS, dtype=torch.float64)[final.condition]
    torch.testing.assert_close(env.log_reward(final), exponent * inner.log_reward(final.inner))
    corner = Hypergrid(4).enumerate()[16:17]
    a, b = (float(e.log_reward(corner)) for e in (Hypergrid(4), Hypergrid(4, 2, Cosine())))
    state = Conditioned(cat([corner] * 3), torch.arange(3))
    assert preferring().log_reward(state).tolist() == pytest.approx([a, 0.3 * a + 0.7 * b, 2 * b])
    expected = [a, math.log(0.3 * math.exp(a) + 0.7 * math.exp(b)), b + math.log(2)]
    assert preferring("sum").log_reward(state).tolist() == pytest.approx(expected)


def test_a_weight_of_zero_forgives_a_reward_of_zero() -> None:
    zero = Hypergrid(2, 1, UserReward(lambda coords: coords[:, 0].double()))
    env = Preferences([Hypergrid(2, 1), zero], [[1, 0], [1, 1]])
    state = Conditioned(cat([zero.enumerate()[2:3]] * 2), torch.arange(2))
    assert env.log_reward(state).tolist() == [float(Hypergrid(2, 1).log_reward(zero.enumerate()[2:3])), -math.inf]


@pytest.mark.parametrize("env", [tempered(), preferring("sum")], ids=["exponents", "sum"])
def test_forward_looking_flows_know_the_condition(env: Any) -> None:
    """The potential of an end is its reward; the same point has another one under each condition."""
    states = env.enumerate()
    ends = states[env.is_terminal(states)]
    torch.testing.assert_close(env.log_potential(ends), env.log_reward(ends))
    torch.testing.assert_close(env.log_potential(states[~env.is_terminal(states)]), env.log_reward(ends))
    assert len(env.log_potential(states[[31, 63, 95]]).unique()) == 3
    assert env.stop_action == 2
    policy = MLPPolicy(env, 8, 1)
    correction = MLPFlow(env, policy)
    torch.testing.assert_close(
        ForwardLooking(env, correction)(states), correction(states) + env.log_potential(states), atol=1e-6, rtol=0
    )
    assert ImpliedByStop(env, policy)(states[:3]).shape == (3,)
    plain: Any = RewardExponents(Listed([[1], [-1]]), EXPONENTS)
    with pytest.raises(ValueError, match="log_potential"):
        ForwardLooking(plain, MLPFlow(env, policy))


def test_distances_are_those_of_the_environment() -> None:
    env: Any = RewardExponents(Insert(4, 2, ["0110"]), [1.0, 3.0])
    a, b = (Conditioned(torch.tensor(words), torch.tensor([c])) for c, words in enumerate(([[0, 3]], [[1, 3]])))
    assert env.distance(a, b).tolist() == [1]
    assert not isinstance(tempered(), Measured)


@pytest.mark.parametrize("wrong", [[], [1.0, 0.0], [-1.0], [math.inf]])
def test_impossible_exponents_are_refused(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        RewardExponents(grid(), wrong)


@pytest.mark.parametrize("wrong", [[], [[1.0]], [[1.0, -1.0]], [[0.0, 0.0]]])
def test_impossible_weights_are_refused(wrong: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="2 numbers that are not negative"):
        Preferences([grid(), grid()], wrong)
    with pytest.raises(ValueError, match="product or sum"):
        preferring("mean")


def test_each_condition_is_a_graph_of_its_own() -> None:
    env = tempered()
    graph = exact.state_graph(env)
    assert graph.n_conditions == 3
    assert torch.equal(graph.condition, graph.states.condition)
    policy, backward = random_table(env, env.forward_mask), random_table(env, env.backward_mask)
    log_p = exact.log_terminal(graph, policy)
    flow = exact.log_flows(graph, exact.edge_log_pb(graph, backward))
    best = exact.log_terminal(graph, as_table(env, graph, exact.optimal_log_pf(graph, backward)))
    torch.testing.assert_close(best, graph.log_target, atol=1e-12, rtol=0)
    torch.testing.assert_close(flow[graph.initial], graph.log_z, atol=1e-12, rtol=0)
    for c, exponent in enumerate(EXPONENTS):
        single = exact.state_graph(RewardExponents(grid(), [exponent]))
        here = graph.condition[graph.terminal] == c
        assert float(graph.log_z[c]) == pytest.approx(float(single.log_z), abs=1e-12)
        torch.testing.assert_close(graph.log_target[here], single.log_target, atol=1e-12, rtol=0)
        assert float(log_p[here].logsumexp(0)) == pytest.approx(0, abs=1e-12)
    assert graph.log_z.unique().numel() == 3


def test_conditions_are_told_by_what_their_states_lead_to() -> None:
    """0 and 1 share state 3, so they are one condition; 4 leads elsewhere; numbers go by the first initial state."""
    env = Listed([[2, 3], [3, -1], [-1, -1], [-1, -1], [5, -1], [-1, -1]], initial=(0, 1, 4))
    graph = exact.state_graph(env)
    assert graph.condition.tolist() == [0, 0, 0, 0, 1, 1]
    assert graph.log_z.exp().tolist() == pytest.approx([2.0, 1.0])
    reach = exact.log_reach(graph, -torch.bincount(graph.source, minlength=6).double().log()[graph.source]).exp()
    assert reach.tolist() == pytest.approx([0.5, 0.5, 0.25, 0.75, 1.0, 1.0])


def test_a_long_chain_of_shared_states_is_one_condition() -> None:
    """Initial states 0 … 9, each leading to ends 10 + i and 11 + i: connected only through all the others."""
    child = [[10 + i, 11 + i] for i in range(10)] + [[-1, -1]] * 11
    graph = exact.state_graph(Listed(child, initial=tuple(range(10))))
    assert graph.n_conditions == 1


def test_exact_log_z_is_that_of_each_trajectory() -> None:
    env = tempered()
    start = env.reset(20, torch.Generator().manual_seed(1))
    assert len(start.condition.unique()) == 3
    objective = Objective(
        Uniform(env.forward_mask), UniformBackward(env), Alpha(1.0), ExactLogZ(env)
    )  # by enumeration of all conditions together
    t = rollout(env, objective.policy, start, group=torch.arange(20))
    truth = exact.state_graph(env).log_z
    torch.testing.assert_close(objective.partition(objective.scores(t), Alpha(1.0)), truth[start.condition])
    scrambled = replace(objective.scores(t), initial=start[torch.arange(20).flip(0)])
    torch.testing.assert_close(objective.partition(scrambled, Alpha(1.0)), truth[start.condition.flip(0)])


def test_conditions_do_not_depend_on_what_memory_held_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is not set may happen to hold the very numbers that are sought."""
    monkeypatch.setattr(torch, "empty_like", torch.clone)
    assert torch.bincount(exact.state_graph(tempered()).condition).tolist() == [32] * 3


def test_evaluation_is_the_mean_over_conditions_and_the_worst() -> None:
    env = tempered()
    policy = random_table(env, env.forward_mask)
    result = Evaluator(env, Objective(policy, UniformBackward(env), Alpha(1.0), DevGrad()), n_samples=60)(0)
    graph = exact.state_graph(env)
    log_p, of_terminal = exact.log_terminal(graph, policy), graph.condition[graph.terminal]
    pairs = [(log_p[of_terminal == c], graph.log_target[of_terminal == c]) for c in range(3)]
    for name, measure in (("tv", metrics.total_variation), ("jsd_nats", metrics.jsd), ("kl_model_target", metrics.kl)):
        each = [measure(p, q) for p, q in pairs]
        assert result[name] == pytest.approx(sum(each) / 3, abs=1e-12)
        assert result[f"{name}_worst"] == pytest.approx(max(each), abs=1e-12)
        assert max(each) - min(each) > 0.01
    correlations = [metrics.pearson(p, q) for p, q in pairs]
    assert result["correlation"] == pytest.approx(sum(correlations) / 3)
    assert result["correlation_worst"] == pytest.approx(min(correlations))
    assert result["log_z_exact"] == pytest.approx(float(graph.log_z.mean()))


def test_the_solution_has_no_error_in_any_condition() -> None:
    """Estimates of log Z are exact for each condition, so conditions are not mixed; and ExactLogZ agrees."""
    env = tempered()
    graph = exact.state_graph(env)
    backward = random_table(env, env.backward_mask)
    policy = as_table(env, graph, exact.optimal_log_pf(graph, backward))
    for partition in (DevGrad(), ExactLogZ(env)):
        result = Evaluator(env, Objective(policy, backward, Alpha(0.5), partition), n_samples=31)(0)
        zero = ("tv", "tv_worst", "kl_model_target_worst", "log_z_error", "log_z_error_worst", "kl_estimate")
        assert {name: result[name] for name in zero} == pytest.approx(dict.fromkeys(zero, 0.0), abs=1e-7)
        mean = float(graph.log_z.mean())
        for name in ("elbo", "log_z_importance", "log_z_alpha_2", "log_z"):
            assert result[name] == pytest.approx(mean, abs=1e-7)
        assert result["importance_ess"] == pytest.approx(1.0)
    wrong = Evaluator(env, Objective(policy, backward, Alpha(0.5), LearnedLogZ(mean)), n_samples=31)(0)
    assert wrong["log_z_error"] == pytest.approx(0.0, abs=1e-7)
    worst = max((mean - float(z) for z in graph.log_z), key=abs)
    assert wrong["log_z_error_worst"] == pytest.approx(worst)


def test_conditions_without_a_list_are_drawn() -> None:
    env = RewardExponents(Unlisted(4, 2), EXPONENTS)
    objective = Objective(Uniform(env.forward_mask), UniformBackward(env), Alpha(1.0), DevGrad())
    one, many = (Evaluator(env, objective, n_samples=400, conditions=n)(0) for n in (1, 40))
    assert "tv" not in one
    assert one["kl_estimate"] != many["kl_estimate"]
    with pytest.raises(ValueError, match="leaves less than 2 for each of 40"):
        Evaluator(env, objective, n_samples=79, conditions=40)


PARTITIONS: dict[str, Any] = {
    "conditional": lambda env, policy: ConditionalLogZ(MLPFlow(env, policy), lr=1e-2),
    "devgrad": lambda env, policy: DevGrad(),
    "exact": lambda env, policy: ExactLogZ(env),
}


@pytest.mark.parametrize("partition", mostly_slow(PARTITIONS, ["devgrad"]))
def test_one_policy_learns_the_target_of_every_temperature(partition: str) -> None:
    """16 points under three exponents of which the targets differ by TV 0.1 to 0.3 from one another."""
    torch.manual_seed(0)
    env = RewardExponents(Hypergrid(4, 2, Classic(r0=0.1)), EXPONENTS)
    policy = MLPPolicy(env, 64, 2)
    objective = Objective(policy, UniformBackward(env), ReverseKL(), PARTITIONS[partition](env, policy))
    evaluator = Evaluator(env, objective, n_samples=96)
    untrained = evaluator(0)
    Trainer(objective, OnPolicy(env, policy, batch_size=48, group_size=8), steps=500, lr=3e-3).run()
    result = evaluator(1)
    assert untrained["tv"] > 0.2
    assert result["tv_worst"] <= 0.01
    assert abs(result["log_z_error_worst"]) <= 0.02
    graph = exact.state_graph(env)
    targets = graph.log_target.reshape(3, -1)
    assert min(metrics.total_variation(targets[i], targets[j]) for i, j in ((0, 1), (1, 2), (0, 2))) > 0.05
