"""Backward walks: paths counted, the max-entropy P_B, dead ends and what they do, probabilities of given states."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.bits import Append, Insert, PrependAppend
from envs.hypergrid import Hypergrid
from gfn import exact, metrics
from gfn.backward import (
    MaxEntropyBackward,
    has_dead_ends,
    log_paths,
    log_return,
    reach_fraction,
    terminal_log_prob,
    walks,
)
from gfn.environment import DiscreteEnvironment
from gfn.evaluation import Evaluator
from gfn.objectives import Alpha, LearnedLogZ, Objective
from gfn.policies import MLPPolicy, Tabular, Uniform, UniformBackward
from gfn.sampling import rollout
from tests.test_exact import Listed, as_table, random_table
from tests.trainers import Unlisted

ENVIRONMENTS: dict[str, Any] = {
    "grid": Hypergrid(4, 2),
    "cube": Hypergrid(3, 3),
    "either end": PrependAppend(3, 1, ["010"]),
    "any order": Insert(3, 1, ["010"]),
    "parallel": Listed([[1, 1, 2], [3, 3, -1], [-1, -1, 3], [-1, -1, -1]]),
}


class DeadEnds(DiscreteEnvironment[Tensor]):
    """From 0 to 1 or 2, and on to the ends 3, 4 and 5; 6 and 7 are parents too, which 0 does not lead to.

    Rewards 1, 2, 3. Walking back evenly, 3 comes from 1 or 6; 4 from 1, 2 or 7; 5 from 2 alone. An
    action names its parent, action = 2 · parent + place in ``child``.
    """

    child = torch.tensor([[1, 2], [3, 4], [4, 5], [-1, -1], [-1, -1], [-1, -1], [3, -1], [4, -1]])
    n_actions, n_features, max_steps = 16, 8, 2

    def reset(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.zeros(n, dtype=torch.long)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        return self.child[states, actions % 2]

    def is_initial(self, states: Tensor) -> Tensor:
        return states == 0

    def is_terminal(self, states: Tensor) -> Tensor:
        return (states >= 3) & (states <= 5)

    def log_reward(self, states: Tensor) -> Tensor:
        return (states - 2).double().log()

    def encode(self, states: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(states, 8).float()

    def enumerate(self) -> Tensor:
        return torch.tensor([0, 6, 7, 1, 2, 3, 4, 5])

    def index(self, states: Tensor) -> Tensor:
        return torch.tensor([0, 3, 4, 5, 6, 7, 1, 2])[states]

    def forward_mask(self, states: Tensor) -> Tensor:
        mask = torch.zeros(len(states), 8, 2, dtype=torch.bool)
        mask[torch.arange(len(states)), states] = self.child[states] >= 0
        return mask.flatten(1)

    def backward_mask(self, states: Tensor) -> Tensor:
        return (self.child.flatten() == states.unsqueeze(1)).flatten(1)

    def undo(self, states: Tensor, actions: Tensor) -> Tensor:
        return actions // 2


Q = {3: 1 / 2, 4: 2 / 3, 5: 1.0}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_paths_are_counted(name: str) -> None:
    env = ENVIRONMENTS[name]
    graph = exact.state_graph(env)
    t = exact.all_trajectories(graph)
    counted = log_paths(graph).exp()
    expected = torch.bincount(env.index(t.final), minlength=graph.n).double()
    torch.testing.assert_close(counted[graph.terminal], expected[graph.terminal], atol=1e-9, rtol=0)
    assert counted[graph.terminal].max() > 1, "a tree shows nothing"
    if name == "grid":  # binomials
        corner = env.index(env.enumerate()[15:16])
        assert float(counted[corner]) == pytest.approx(math.comb(6, 3))


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_max_entropy_backward_makes_all_paths_to_a_state_equally_likely(name: str) -> None:
    env = ENVIRONMENTS[name]
    graph = exact.state_graph(env)
    t = exact.all_trajectories(graph)

    def of_paths(backward: Any) -> Tensor:
        return t.pad(backward.log_prob_backward(t)).double().sum(1)

    backward = MaxEntropyBackward(env)
    assert not any(p.requires_grad for p in backward.parameters())
    equal = -log_paths(graph)[env.index(t.final)]
    torch.testing.assert_close(of_paths(backward), equal, atol=1e-5, rtol=0)
    if name in ("grid", "cube"):
        assert float((of_paths(UniformBackward(env)) - equal).abs().max()) > 0.1, "uniform P_B is another one"


def entropy(graph: Any, env: Any, log_pf: Tensor) -> float:
    t = exact.all_trajectories(graph)
    log_p = t.pad(as_table(env, graph, log_pf).log_prob(t)).sum(1).detach()
    return -float((log_p.exp() * log_p).sum())


def test_max_entropy_backward_gives_the_forward_policy_of_largest_entropy() -> None:
    env = Hypergrid(4, 2)
    graph = exact.state_graph(env)
    best = exact.optimal_log_pf(graph, MaxEntropyBackward(env))
    ends = exact.log_terminal(graph, as_table(env, graph, best))
    torch.testing.assert_close(ends, graph.log_target, atol=1e-6, rtol=0)
    others = [exact.optimal_log_pf(graph, random_table(env, env.backward_mask)) for _ in range(3)]
    others.append(exact.optimal_log_pf(graph, UniformBackward(env)))
    assert entropy(graph, env, best) > max(entropy(graph, env, other) for other in others) + 0.01


def test_max_entropy_backward_needs_a_list() -> None:
    with pytest.raises(ValueError, match=r"Unlisted has none: use backward=uniform"):
        MaxEntropyBackward(Unlisted(4, 2))


def test_no_walk_is_lost_without_dead_ends() -> None:
    env = Hypergrid(3, 2)
    graph = exact.state_graph(env)
    assert not has_dead_ends(graph)
    q = log_return(graph, exact.edge_log_pb(graph, random_table(env, env.backward_mask)))
    torch.testing.assert_close(q, torch.zeros(graph.n, dtype=torch.float64), atol=1e-12, rtol=0)
    assert reach_fraction(env, UniformBackward(env), graph.states[graph.terminal]) == 1.0


def test_q_is_exact_and_estimated() -> None:
    env = DeadEnds()
    graph = exact.state_graph(env)
    assert has_dead_ends(graph)
    backward = UniformBackward(env)
    q = log_return(graph, exact.edge_log_pb(graph, backward)).exp()
    final = graph.states[graph.terminal]
    assert q[graph.terminal].tolist() == pytest.approx([Q[x] for x in final.tolist()], abs=1e-6)
    n, generator = 4000, torch.Generator().manual_seed(0)
    for x, expected in Q.items():
        share = reach_fraction(env, backward, torch.full((n,), x), generator)
        assert abs(share - expected) <= 4 * (expected * (1 - expected) / n) ** 0.5, x
    assert walks(env, backward, torch.tensor([0, 6, 7])).returned.tolist() == [True, False, False]
    careful = MaxEntropyBackward(env)  # counts paths from the start, so it never walks where there are none
    q = log_return(graph, exact.edge_log_pb(graph, careful)).exp()
    torch.testing.assert_close(q[graph.terminal], torch.ones(3, dtype=torch.float64), atol=1e-6, rtol=0)
    assert reach_fraction(env, careful, final.repeat(50), generator) == 1.0


def solved(env: DeadEnds, backward: Any) -> tuple[Tensor, float]:
    """Terminal distribution and log Z at the minimum of trajectory balance over all trajectories, tables throughout."""
    graph = exact.state_graph(env)
    policy = Tabular(env, env.forward_mask, torch.zeros(graph.n, env.n_actions, dtype=torch.float64))
    objective = Objective(policy, backward, Alpha(1.0), LearnedLogZ(0.0))
    t = exact.all_trajectories(graph)
    optimizer = torch.optim.LBFGS(objective.parameters(), lr=1.0, max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        loss, _ = objective(t)
        loss.backward()
        return float(loss.detach())

    optimizer.step(closure)
    assert closure() < 1e-9, "balance can be met by all trajectories there are"
    return exact.log_terminal(graph, policy).exp(), float(objective.partition.value.detach())


def test_trajectory_balance_then_samples_in_proportion_to_reward_times_q() -> None:
    env = DeadEnds()
    graph = exact.state_graph(env)
    final = graph.states[graph.terminal]
    reward = graph.log_reward.exp()
    q = torch.tensor([Q[x] for x in final.tolist()], dtype=torch.float64)
    p, log_z = solved(env, UniformBackward(env))
    torch.testing.assert_close(p, reward * q / (reward * q).sum(), atol=1e-4, rtol=0)
    assert log_z == pytest.approx(math.log(float((reward * q).sum())), abs=1e-4)
    assert float((p - reward / reward.sum()).abs().sum() / 2) > 0.05
    p, log_z = solved(env, MaxEntropyBackward(env))
    torch.testing.assert_close(p, reward / reward.sum(), atol=1e-4, rtol=0)
    assert log_z == pytest.approx(math.log(6), abs=1e-4)


def test_evaluator_tells_how_many_walks_are_lost() -> None:
    env = DeadEnds()
    objective = Objective(Uniform(env.forward_mask), UniformBackward(env), Alpha(1.0), LearnedLogZ(0.0))
    result = Evaluator(env, objective, n_samples=16)(0)
    assert result["reach_fraction"] == pytest.approx((1 * 0.5 + 2 * 2 / 3 + 3) / 6, abs=1e-6)
    assert result["reach_fraction_worst"] == pytest.approx(0.5, abs=1e-6)
    assert "eubo" not in result
    grid = Hypergrid(3, 2)
    objective = Objective(Uniform(grid.forward_mask), UniformBackward(grid), Alpha(1.0), LearnedLogZ(0.0))
    assert "reach_fraction" not in Evaluator(grid, objective, n_samples=16)(0)


@pytest.mark.parametrize("name", ["grid", "either end"])
def test_probabilities_of_given_states_are_unbiased(name: str) -> None:
    env = ENVIRONMENTS[name]
    graph = exact.state_graph(env)
    policy, backward = random_table(env, env.forward_mask), random_table(env, env.backward_mask)
    final = graph.states[graph.terminal]
    log_p = exact.log_terminal(graph, policy)
    n = 4000
    estimate = terminal_log_prob(env, policy, backward, final, n, torch.Generator().manual_seed(0))
    t = exact.all_trajectories(graph)
    with torch.no_grad():
        log_pf, log_pb = (t.pad(x).sum(1) for x in (policy.log_prob(t), backward.log_prob_backward(t)))
    square = torch.zeros(graph.n, dtype=torch.float64).index_add(0, env.index(t.final), (2 * log_pf - log_pb).exp())
    spread = ((square[graph.terminal] - (2 * log_p).exp()).clamp(min=0) / n).sqrt()
    assert ((estimate.exp() - log_p.exp()).abs() <= 5 * spread + 1e-12).all()
    assert (spread / log_p.exp()).max() > 1e-3, "some state has several paths"
    few = terminal_log_prob(env, policy, backward, final, 1, torch.Generator().manual_seed(0))
    assert float((few - log_p).abs().mean()) > 3 * float((estimate - log_p).abs().mean())
    assert metrics.spearman(estimate, log_p) > 0.95


def test_probabilities_of_given_states_are_exact_on_a_tree() -> None:
    env = Append(4, 2, ["0101"])
    graph = exact.state_graph(env)
    policy = MLPPolicy(env, 8, 1).double()
    estimate = terminal_log_prob(env, policy, UniformBackward(env), graph.states[graph.terminal], 1)
    torch.testing.assert_close(estimate, exact.log_terminal(graph, policy), atol=1e-6, rtol=0)


def test_probabilities_refuse_dead_ends() -> None:
    env = DeadEnds()
    with pytest.raises(ValueError, match="allow no action"):
        terminal_log_prob(env, Uniform(env.forward_mask), UniformBackward(env), torch.full((50,), 3))
    with pytest.raises(ValueError, match="allow no action"):
        rollout(env, UniformBackward(env), torch.full((50,), 3), backward=True)


def reinforced(entropy: float = 0.0) -> tuple[DeadEnds, Any, Tabular[Any], Objective[Any]]:
    env = DeadEnds()
    graph = exact.state_graph(env)
    table = torch.zeros(graph.n, env.n_actions, dtype=torch.float64)
    backward = Tabular(env, env.backward_mask, table.clone())
    policy = Tabular(env, env.forward_mask, table.clone())
    objective = Objective(
        policy, backward, Alpha(1.0), LearnedLogZ(0.0), backward_loss="reinforce", backward_entropy=entropy, env=env
    )
    return env, graph, backward, objective


def chance(graph: Any, backward: Any) -> Tensor:
    """q(x) of the terminal states."""
    return log_return(graph, exact.edge_log_pb(graph, backward))[graph.terminal].exp()


def test_reinforce_has_the_gradient_of_the_chance_to_return() -> None:
    env, graph, backward, objective = reinforced()
    n = 3000
    t = rollout(env, objective.policy, env.reset(n * 3), generator=torch.Generator().manual_seed(0))
    loss, report = objective(t)
    loss.backward()
    assert backward.logits.grad is not None
    share = torch.bincount(env.index(t.final), minlength=graph.n)[graph.terminal] / len(t)
    assert float(report["walks_returned"]) == pytest.approx(float((share * chance(graph, backward)).sum()), abs=0.03)
    mask, step = env.backward_mask(graph.states), 1e-5
    for state, action in mask.nonzero().tolist():
        ends = list[float]()
        for sign in (1, -1):
            with torch.no_grad():
                backward.logits[state, action] += sign * step
            ends.append(float((share * chance(graph, backward)).sum()))
            with torch.no_grad():
                backward.logits[state, action] -= sign * step
        slope = (ends[0] - ends[1]) / (2 * step)
        assert -float(backward.logits.grad[state, action]) == pytest.approx(slope, abs=4 * len(t) ** -0.5)


@pytest.mark.parametrize("entropy", [0.0, 0.01])
def test_reinforce_teaches_walks_to_find_the_start(entropy: float) -> None:
    env, graph, backward, objective = reinforced(entropy)
    assert float(chance(graph, backward).mean()) < 0.75
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for step in range(300):
        t = rollout(env, objective.policy, env.reset(64), generator=generator)
        loss, _ = objective(t, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(chance(graph, backward).min()) > 0.97
    assert float(metrics.total_variation(exact.log_terminal(graph, objective.policy), graph.log_target)) < 0.05


def test_walks_are_the_same_whenever_a_batch_is_scored() -> None:
    env, _, _, objective = reinforced()
    t = rollout(env, objective.policy, env.reset(50), generator=torch.Generator().manual_seed(0))
    first, again, other = objective.scores(t), objective.scores(t), objective.scores(t[:49])
    assert first.returned is not None
    assert again.returned is not None
    assert other.returned is not None
    assert first.returned.equal(again.returned)
    assert not first.returned[:49].equal(other.returned)
    assert objective.eval().scores(t).log_walk is None, "looking at a policy draws nothing"
    with pytest.raises(ValueError, match="give it env="):
        Objective(objective.policy, objective.backward_policy, Alpha(1.0), LearnedLogZ(0.0), backward_loss="reinforce")
