"""What the evaluator makes of samples and of a test set: ladder, best samples, diversity, ranks of probabilities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.bits import Append, BitSequences, PrependAppend
from envs.hypergrid import Hypergrid
from gfn import exact, metrics
from gfn.environment import as_measured, as_tested
from gfn.evaluation import Evaluator
from gfn.objectives import Alpha, LearnedLogZ, Objective
from gfn.policies import MLPPolicy, Policy, Uniform, UniformBackward
from gfn.sampling import rollout
from tests.test_exact import as_table, random_table

MODES = ["00110100", "11111111"]


def bits(way: type[BitSequences] = PrependAppend) -> BitSequences:
    return way(8, 2, MODES, exponent=0.7, radius=1)


def evaluated(env: Any, policy: Policy[Any], **settings: Any) -> dict[str, float]:
    objective = Objective(policy, UniformBackward(env), Alpha(1.0), LearnedLogZ(0.0))
    return Evaluator(env, objective, **settings)(0)


def drawn(env: Any, policy: Policy[Any], n: int) -> Any:
    """The trajectories that an evaluator with seed 0 looks at."""
    generator = torch.Generator().manual_seed(0)
    start = env.reset(1, generator)[torch.zeros(n, dtype=torch.long)]
    return rollout(env, policy, start, generator=generator)


def test_ladder_goes_down_and_tells_the_divergence() -> None:
    env = Hypergrid(4, 2)
    policy = random_table(env, env.forward_mask)
    result = evaluated(env, policy, n_samples=20_000)
    ladder = [result[f"log_z_alpha_{alpha}"] for alpha in ("0", "0.5", "1", "2")]
    assert sorted(ladder, reverse=True) == ladder
    assert ladder[0] - ladder[3] > 0.1
    assert ladder[0] == pytest.approx(result["log_z_importance"], abs=1e-9)
    assert ladder[2] == pytest.approx(result["elbo"], abs=1e-9)
    graph = exact.state_graph(env)
    t = exact.all_trajectories(graph)
    with torch.no_grad():
        log_p = t.pad(policy.log_prob(t)).sum(1)
        log_q = t.pad(UniformBackward(env).log_prob_backward(t)).double().sum(1) + t.log_reward - graph.log_z
    assert result["kl_estimate"] == pytest.approx(metrics.kl(log_p, log_q), rel=0.05)
    solution = as_table(env, graph, exact.optimal_log_pf(graph, UniformBackward(env)))
    assert evaluated(env, solution)["kl_estimate"] == pytest.approx(0.0, abs=1e-6)


def test_best_samples_and_how_far_apart_they_are() -> None:
    env = bits()
    policy = Uniform(env.forward_mask)
    final = drawn(env, policy, 100).final
    reward = env.log_reward(final)
    result = evaluated(env, policy, n_samples=100, top_k=5)
    assert result["log_reward_top"] == pytest.approx(float(reward.sort().values[-5:].mean()))
    assert result["log_reward_top"] > result["log_reward_mean"] + 0.5
    best = final[reward.topk(5).indices]
    apart = [float(env.distance(best[i : i + 1], best[j : j + 1])) for i in range(5) for j in range(i)]
    assert result["diversity"] == pytest.approx(sum(apart) / 10)
    assert result["diversity"] > 0


def test_the_test_set_is_ranked_by_its_probabilities() -> None:
    """With the solution probabilities are in the order of rewards; with its opposite, in the opposite order.

    Short of one by what rounding does to equal ones.
    """
    env = bits(Append)
    graph = exact.state_graph(env)
    backward = UniformBackward(env)
    solution = as_table(env, graph, exact.optimal_log_pf(graph, backward))
    result = evaluated(env, solution)
    assert result["test_spearman"] > 0.95
    assert result["test_pearson"] == pytest.approx(1.0, abs=1e-6)

    class Upside(Append):
        def log_reward(self, states: Tensor) -> Tensor:
            return -super().log_reward(states)

    other = Upside(8, 2, MODES, exponent=0.7, radius=1)
    opposite = as_table(env, graph, exact.optimal_log_pf(exact.state_graph(other), backward))
    assert evaluated(env, opposite)["test_spearman"] < -0.95
    torch.manual_seed(0)
    assert abs(evaluated(env, MLPPolicy(env, 16, 1))["test_spearman"]) < 0.7


def test_correlation_on_the_test_set_is_that_of_the_exact_probabilities() -> None:
    """Many walks back leave no noise: the evaluator's correlations are those of exact log-probabilities."""
    env = bits()
    policy = random_table(env, env.forward_mask)
    objective = Objective(policy, UniformBackward(env), Alpha(1.0), LearnedLogZ(0.0))
    evaluator = Evaluator(env, objective, test_states=1000, backward_samples=300)
    assert evaluator.test is not None
    assert len(evaluator.test) == 16, "all of it, if it is smaller"
    graph = exact.state_graph(env)
    place = torch.full((graph.n,), -1).index_put((graph.terminal,), torch.arange(len(graph.terminal)))
    log_p = exact.log_terminal(graph, policy)[place[env.index(evaluator.test)]]
    log_reward = env.log_reward(evaluator.test)
    result = evaluator(0)
    assert result["test_pearson"] == pytest.approx(metrics.pearson(log_p, log_reward), abs=0.05)
    assert result["test_spearman"] == pytest.approx(metrics.spearman(log_p, log_reward), abs=0.1)


def test_the_test_set_stays_the_same() -> None:
    env = Append(16, 4, 3)
    objective = Objective(Uniform(env.forward_mask), UniformBackward(env), Alpha(1.0), LearnedLogZ(0.0))
    sets = [Evaluator(env, objective, test_states=7, exact=False, seed=seed).test for seed in (0, 0, 1)]
    assert sets[0] is not None
    assert sets[0].shape == (7, 4)
    assert torch.equal(sets[0], sets[1])
    assert not torch.equal(sets[0], sets[2])


class Talkative(Hypergrid):
    """Has a word to say about trajectories, under a name of its own or not."""

    said = "corner_rate"

    def summary(self, t: Any) -> dict[str, float]:
        return {self.said: float((t.final.coords == 0).all(1).double().mean())}


def test_what_an_environment_says_about_trajectories_is_among_the_metrics() -> None:
    env = Talkative(4, 2)
    policy = Uniform(env.forward_mask)
    t = drawn(env, policy, 256)
    result = evaluated(env, policy)
    assert result["corner_rate"] == pytest.approx(float((t.lengths == 1).double().mean()))
    assert 0 < result["corner_rate"] < 1
    assert set(result) == {"corner_rate", *evaluated(Hypergrid(4, 2), policy)}


@pytest.mark.parametrize("name", ["elbo", "tv"])
def test_two_metrics_of_one_name_are_refused(name: str) -> None:
    env = Talkative(4, 2)
    env.said = name
    with pytest.raises(ValueError, match=f"two metrics named {name}"):
        evaluated(env, Uniform(env.forward_mask))


def test_abilities_that_an_environment_lacks_leave_no_metrics() -> None:
    grid = Hypergrid(4, 2)
    assert as_tested(grid) is None
    assert as_measured(grid) is None
    assert not {"diversity", "test_spearman", "test_pearson"} & set(evaluated(grid, Uniform(grid.forward_mask)))


@pytest.mark.parametrize("wrong", [{"top_k": 1}, {"test_states": 1}, {"backward_samples": 0}, {"conditions": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    env = Hypergrid(4, 2)
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        evaluated(env, Uniform(env.forward_mask), **wrong)
