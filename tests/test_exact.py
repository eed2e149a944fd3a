"""Exact evaluation against itself, against enumeration of trajectories, and against sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from envs.hypergrid import Cosine, Hypergrid, UserReward
from gfn import exact
from gfn.environment import DiscreteEnvironment, RewardError
from gfn.policies import MLPBackward, MLPPolicy, Tabular, Uniform, UniformBackward
from gfn.sampling import rollout
from tests.two_paths import TwoPaths

GRIDS: dict[str, Callable[[], Hypergrid]] = {
    "8x8": lambda: Hypergrid(8),
    "5x5x5": lambda: Hypergrid(5, 3, Cosine()),
    "4x4x4x4": lambda: Hypergrid(4, 4),
}


class Listed(DiscreteEnvironment[Tensor]):
    """A graph given as a table: ``child[s, a]`` is where action a leads from state s, −1 if it is not allowed."""

    def __init__(self, child: list[list[int]], initial: tuple[int, ...] = (0,), log_reward: float = 0.0):
        self.child = torch.tensor(child)
        self.start, self.value = torch.tensor(initial), log_reward
        self.n_actions, self.n_features, self.max_steps = self.child.shape[1], 1, len(child)

    def reset(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return self.start.repeat(n)[:n]

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        return self.child[states, actions]

    def undo(self, states: Tensor, actions: Tensor) -> Tensor:
        return (self.child[:, actions] == states).int().argmax(0)

    def is_initial(self, states: Tensor) -> Tensor:
        return torch.isin(states, self.start)

    def is_terminal(self, states: Tensor) -> Tensor:
        return (self.child[states] < 0).all(1)

    def log_reward(self, states: Tensor) -> Tensor:
        return torch.full(states.shape, self.value, dtype=torch.float64)

    def forward_mask(self, states: Tensor) -> Tensor:
        return self.child[states] >= 0

    def backward_mask(self, states: Tensor) -> Tensor:
        return (self.child == states.view(-1, 1, 1)).any(1)

    def encode(self, states: Tensor) -> Tensor:
        return states.unsqueeze(1).float()

    def enumerate(self) -> Tensor:
        return torch.arange(len(self.child))

    def index(self, states: Tensor) -> Tensor:
        return states


def random_table(env: Any, mask: Callable[[Any], Tensor]) -> Tabular[Any]:
    """A policy with normal logits, float64."""
    return Tabular(env, mask, torch.randn(len(env.enumerate()), env.n_actions, dtype=torch.float64))


def as_table(env: Any, graph: Any, log_pf: Tensor) -> Tabular[Any]:
    """The policy with given log-probabilities of every edge."""
    logits = torch.zeros(graph.n, env.n_actions, dtype=torch.float64)
    return Tabular(env, env.forward_mask, logits.index_put((graph.source, graph.action), log_pf))


@pytest.mark.parametrize(("side", "ndim"), [(3, 2), (2, 3), (4, 1)])
def test_graph_of_a_hypergrid(side: int, ndim: int) -> None:
    env = Hypergrid(side, ndim)
    graph = exact.state_graph(env)
    points = side**ndim
    assert graph.n == 2 * points
    assert len(graph.source) == points + ndim * (side - 1) * side ** (ndim - 1)  # stops, and steps along each axis
    assert torch.equal(env.index(env.step(graph.states[graph.source], graph.action)), graph.target)
    edges = set(zip(graph.source.tolist(), graph.action.tolist(), strict=True))
    assert len(edges) == len(graph.source)
    assert torch.equal(graph.terminal, torch.arange(points, 2 * points))
    assert graph.initial.tolist() == [0]
    level = graph.states.coords.sum(1) + graph.states.stopped
    slices = list(graph.levels())
    assert len(slices) == env.max_steps == int(level.max())
    for depth, edges_of_level in enumerate(slices, 1):
        assert (level[graph.target[edges_of_level]] == depth).all()
    assert slices[-1].stop == len(graph.source)
    assert (level[graph.source] < level[graph.target]).all()


def test_level_is_the_longest_path() -> None:
    graph = exact.state_graph(Listed([[1, 3], [2, 3], [3, -1], [-1, -1]]))
    assert [graph.target[edges].tolist() for edges in graph.levels()] == [[1], [2], [3, 3, 3]]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", GRIDS)
def test_terminal_probabilities_sum_to_one(name: str) -> None:
    env = GRIDS[name]()
    graph = exact.state_graph(env)
    for policy in (MLPPolicy(env, 16, 2), random_table(env, env.forward_mask), Uniform(env.forward_mask)):
        log_p = exact.log_terminal(graph, policy)
        assert log_p.shape == (env.side**env.ndim,)
        assert float(log_p.logsumexp(0)) == pytest.approx(0, abs=1e-10)


def test_terminal_probabilities_match_sampling() -> None:
    env = Hypergrid(4)
    graph, policy = exact.state_graph(env), random_table(env, env.forward_mask)
    t = rollout(env, policy, env.reset(20_000), generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(env.index(t.final), minlength=graph.n)[graph.terminal]
    expected = 20_000 * exact.log_terminal(graph, policy).exp()
    assert expected.min() > 5
    assert chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3
    assert chisquare(counts.numpy(), [20_000 / 16] * 16).pvalue < 1e-12


def test_reach_is_the_sum_over_trajectories() -> None:
    env = Hypergrid(3, 2)
    graph, policy = exact.state_graph(env), random_table(env, env.forward_mask)
    t = exact.all_trajectories(graph)
    p = t.pad(policy.log_prob(t)).sum(1).exp()
    visits = torch.zeros(graph.n, dtype=torch.float64)
    visits.index_add_(0, env.index(t.states), p.repeat_interleave(t.lengths + 1))
    reach = exact.log_reach(graph, exact.edge_log_pf(graph, policy)).exp()
    torch.testing.assert_close(reach, visits.detach(), atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("env", "count"), [(Hypergrid(2), 5), (Hypergrid(3), 19), (Hypergrid(2, 3), 16), (TwoPaths(), 6)]
)
def test_all_trajectories(env: Any, count: int) -> None:
    graph = exact.state_graph(env)
    t = exact.all_trajectories(graph)
    assert len(t) == count
    paths = [tuple(t.actions[t.row == b].tolist()) for b in range(count)]
    assert len(set(paths)) == count
    assert env.is_initial(t.initial).all()
    assert env.is_terminal(t.final).all()
    assert torch.equal(env.index(env.step(t.sources, t.actions)), env.index(t.targets))
    torch.testing.assert_close(t.log_reward, env.log_reward(t.final).double())
    p = t.pad(random_table(env, env.forward_mask).log_prob(t)).sum(1).exp()
    assert float(p.sum().detach()) == pytest.approx(1, abs=1e-12)
    back = t.pad(random_table(env, env.backward_mask).log_prob_backward(t)).sum(1).exp().detach()
    given_end = torch.zeros(graph.n, dtype=torch.float64).index_add(0, env.index(t.final), back)[graph.terminal]
    torch.testing.assert_close(given_end, torch.ones_like(given_end), atol=1e-12, rtol=0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", GRIDS)
def test_flows_meet_at_the_root_and_are_conserved(name: str) -> None:
    env = GRIDS[name]()
    graph = exact.state_graph(env)
    learned = MLPBackward(env, MLPPolicy(env, 8, 1))
    for backward in (UniformBackward(env), learned, random_table(env, env.backward_mask)):
        log_pb = exact.edge_log_pb(graph, backward)
        flow = exact.log_flows(graph, log_pb)
        assert float(flow[graph.initial]) == pytest.approx(float(graph.log_z), abs=1e-12)
        along = (flow[graph.target] + log_pb).exp()
        out = torch.zeros(graph.n).index_add(0, graph.source, along)[: env.side**env.ndim]
        torch.testing.assert_close(out, flow.exp()[: env.side**env.ndim], atol=1e-12, rtol=1e-12)
    assert float(exact.log_partition(env)) == pytest.approx(float(graph.log_z), abs=1e-12)


@pytest.mark.parametrize("name", GRIDS)
def test_optimal_policy_ends_in_the_target(name: str) -> None:
    env = GRIDS[name]()
    graph = exact.state_graph(env)
    log_pf = exact.optimal_log_pf(graph, random_table(env, env.backward_mask))
    total = torch.zeros(graph.n, dtype=torch.float64).index_add(0, graph.source, log_pf.exp())
    live = total[: env.side**env.ndim]
    torch.testing.assert_close(live, torch.ones_like(live), atol=1e-12, rtol=0)
    ends = exact.log_terminal(graph, as_table(env, graph, log_pf))
    torch.testing.assert_close(ends, graph.log_target, atol=1e-12, rtol=0)
    coords = graph.states[graph.terminal].coords
    reward = env.reward(coords, env.side)
    torch.testing.assert_close(graph.log_target.exp(), reward / reward.sum(), atol=1e-12, rtol=0)


def test_optimal_policy_with_zero_rewards() -> None:
    env = Hypergrid(4, reward=UserReward(lambda coords: (coords[:, 0] < 2).double() * (1 + coords[:, 1])))
    graph = exact.state_graph(env)
    log_pf = exact.optimal_log_pf(graph, UniformBackward(env))
    assert not log_pf.isnan().any()
    ends = exact.log_reach(graph, log_pf)[graph.terminal]
    torch.testing.assert_close(ends, graph.log_target, atol=1e-7, rtol=0)  # P_B in float32
    assert (ends == -torch.inf).sum() == 8
    total = torch.zeros(graph.n, dtype=torch.float64).index_add(0, graph.source, log_pf.exp())[:16]
    torch.testing.assert_close(total, torch.ones_like(total), atol=1e-7, rtol=0)


def test_parallel_edges_count_each() -> None:
    env = Listed([[1, 1, 2], [-1, -1, -1], [-1, -1, -1]])
    graph = exact.state_graph(env)
    ends = exact.log_terminal(graph, Tabular(env, env.forward_mask, torch.zeros(3, 3, dtype=torch.float64)))
    torch.testing.assert_close(ends.exp(), torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))
    assert len(exact.all_trajectories(graph)) == 3
    backward = Tabular(env, env.backward_mask, torch.zeros(3, 3, dtype=torch.float64))
    torch.testing.assert_close(
        exact.edge_log_pb(graph, backward).exp().sort().values, torch.tensor([0.5, 0.5, 1.0]).double()
    )


def test_several_initial_states_share_the_probability_and_not_the_group() -> None:
    env = Listed([[2, 3], [3, -1], [-1, -1], [-1, -1]], initial=(0, 1))
    graph = exact.state_graph(env)
    ends = exact.log_terminal(graph, Tabular(env, env.forward_mask, torch.zeros(4, 2, dtype=torch.float64)))
    torch.testing.assert_close(ends.exp(), torch.tensor([0.25, 0.75], dtype=torch.float64))
    t = exact.all_trajectories(graph)
    same_start = t.initial.unsqueeze(0) == t.initial.unsqueeze(1)
    assert torch.equal(t.group.unsqueeze(0) == t.group.unsqueeze(1), same_start)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Hypergrid(5)
    policy, backward = random_table(env, env.forward_mask), random_table(env, env.backward_mask)
    whole = exact.state_graph(env)
    expected = exact.edge_log_pf(whole, policy), exact.edge_log_pb(whole, backward), exact.log_partition(env)
    monkeypatch.setattr(exact, "CHUNK", 7)
    graph = exact.state_graph(env)
    for name in ("source", "target", "action", "terminal", "log_reward"):
        assert torch.equal(getattr(graph, name), getattr(whole, name))
    found = exact.edge_log_pf(graph, policy), exact.edge_log_pb(graph, backward), exact.log_partition(env)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="Listed: 3 states lie on or behind a cycle"):
        exact.state_graph(Listed([[1, 3], [2, -1], [1, 4], [-1, -1], [-1, -1]]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_bad_reward_is_named(bad: float) -> None:
    def reward(coords: Tensor) -> Tensor:
        return torch.where((coords == torch.tensor([1, 2])).all(1), bad, 1.0)

    env = Hypergrid(3, reward=UserReward(reward))
    for ask in (exact.state_graph, exact.log_partition):
        with pytest.raises(RewardError, match=r"state 1 2 stop is (nan|inf)"):
            ask(env)
