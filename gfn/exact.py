"""Exact answers for enumerable environments, by dynamic programming over the graph of states.

Initial states that lead to no common state are conditions, each with a log Z and distributions of
its own; those that do share one condition, and its probability evenly. All in float64 and log
space; memory is a few numbers for each state and edge, and networks see the states in chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from gfn.environment import Enumerable, Environment, checked_log_reward
from gfn.policies import Policy
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
CHUNK = 16384  # states a network sees at once


@dataclass(frozen=True)
class StateGraph(Generic[S]):
    """Every state and edge of an enumerable environment.

    Edges are sorted by the level of the state they lead to; a state's level is the length of the
    longest path to it, so every edge leads to a higher level.

    Attributes:
        env: the environment.
        states: all n states, in the order of ``env.enumerate``.
        source, target: the states each edge joins, long ``[E]``.
        action: the action of each edge, ``[E, ...]``.
        level_ends: for each level from 1 on, how many edges lead to states up to it.
        initial: positions of the initial states, long ``[I]``.
        terminal: positions of the terminal states, long ``[X]``.
        log_reward: of the terminal states, float64 ``[X]``.
        condition: number of the condition each state belongs to, long ``[n]``, by first initial state.
    """

    env: Environment[S]
    states: S
    source: Tensor
    target: Tensor
    action: Tensor
    level_ends: tuple[int, ...]
    initial: Tensor
    terminal: Tensor
    log_reward: Tensor
    condition: Tensor

    @property
    def n(self) -> int:
        """Number of states."""
        return len(self.states)

    @property
    def n_conditions(self) -> int:
        """Number of conditions C."""
        return int(self.condition.max()) + 1

    @property
    def log_z(self) -> Tensor:
        """log Σ_x R(x) of each condition, ``[C]``."""
        total = self.log_reward.new_full((self.n_conditions,), -torch.inf)
        _scatter_logsumexp(total, self.condition[self.terminal], self.log_reward)
        return total

    @property
    def log_target(self) -> Tensor:
        """log R(x)/Z of the terminal states, each within its condition, ``[X]``."""
        return self.log_reward - self.log_z[self.condition[self.terminal]]

    def levels(self) -> Iterator[slice]:
        """The edges into each level, lowest first."""
        start = 0
        for end in self.level_ends:
            yield slice(start, end)
            start = end


def state_graph(env: Any) -> StateGraph[Any]:
    """List the states and edges of an enumerable environment.

    Raises:
        ValueError: if the graph has a cycle.
        RewardError: if a reward is NaN or +inf; the message names the state.
    """
    listed, environment = cast("Enumerable[Any]", env), cast("Environment[Any]", env)
    states = listed.enumerate()
    n = len(states)
    terminal = environment.is_terminal(states)
    live = (~terminal).nonzero().squeeze(-1)
    rows, actions, targets = list[Tensor](), list[Tensor](), list[Tensor]()
    for part in live.split(CHUNK):
        row, action = listed.edges(states[part])
        rows.append(part[row])
        actions.append(action)
        targets.append(listed.index(environment.step(states[part[row]], action)))
    source, action, target = torch.cat(rows), torch.cat(actions), torch.cat(targets)
    level = _levels(n, source, target, type(env).__name__)
    order = level[target].argsort(stable=True)
    ends = torch.bincount(level[target]).cumsum(0)[1:]
    at = terminal.nonzero().squeeze(-1)
    initial = environment.is_initial(states).nonzero().squeeze(-1)
    return StateGraph(
        env=environment,
        states=states,
        source=source[order],
        target=target[order],
        action=action[order],
        level_ends=tuple(ends.tolist()),
        initial=initial,
        terminal=at,
        log_reward=torch.cat([checked_log_reward(environment, states[part]).double() for part in at.split(CHUNK)]),
        condition=_conditions(n, initial, source, target),
    )


def _conditions(n: int, initial: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Connected parts of the graph, long ``[n]``, numbered by their first initial state."""
    label = torch.zeros(n, dtype=torch.long, device=source.device)
    if len(initial) < 2:
        return label
    label += len(initial)
    label[initial] = torch.arange(len(initial), device=label.device)
    before = torch.full_like(label, -1)
    while not torch.equal(before, label):  # each state takes the lowest label of its neighbours, both ways
        before = label.clone()
        label.scatter_reduce_(0, target, label[source], "amin")
        label.scatter_reduce_(0, source, label[target], "amin")
    return label.unique(return_inverse=True)[1]


def _levels(n: int, source: Tensor, target: Tensor, name: str) -> Tensor:
    """Length of the longest path to each state, by taking away states without remaining parents."""
    order = source.argsort(stable=True)
    child = target[order]
    degree = torch.bincount(source, minlength=n)
    first = degree.cumsum(0) - degree
    waiting = torch.bincount(target, minlength=n)
    level = torch.full((n,), -1, device=source.device)
    frontier, depth = (waiting == 0).nonzero().squeeze(-1), 0
    while len(frontier):
        level[frontier] = depth
        count = degree[frontier]
        shift = torch.repeat_interleave(first[frontier] - (count.cumsum(0) - count), count)
        reached = child[shift + torch.arange(len(shift), device=shift.device)]
        unique, times = reached.unique(return_counts=True)
        waiting[unique] -= times
        frontier, depth = unique[waiting[unique] == 0], depth + 1
    if bool((level < 0).any()):
        raise ValueError(f"{name}: {int((level < 0).sum())} states lie on or behind a cycle; steps must form no cycle")
    return level


def _edge_log_prob(graph: StateGraph[S], policy: Policy[S], end: Tensor) -> Tensor:
    """Log-probability that ``policy``, asked at the ``end`` (source or target) of each edge, takes it; ``[E]``."""
    result = torch.empty(len(end), dtype=torch.float64, device=end.device)
    order = end.argsort(stable=True)
    asked, row = end[order].unique_consecutive(return_inverse=True)
    cut = torch.arange(0, len(asked) + CHUNK, CHUNK, device=row.device)
    bounds = torch.searchsorted(row, cut).tolist()
    for part, start, stop in zip(asked.split(CHUNK), bounds, bounds[1:], strict=False):
        distribution = policy.distribution(graph.states[part])
        edges = order[start:stop]
        local = row[start:stop] - row[start]
        result[edges] = distribution[local].log_prob(graph.action[edges]).double()
    return result


@torch.no_grad()
def edge_log_pf(graph: StateGraph[S], policy: Policy[S]) -> Tensor:
    """log P_F of every edge, ``[E]``."""
    return _edge_log_prob(graph, policy, graph.source)


@torch.no_grad()
def edge_log_pb(graph: StateGraph[S], backward: Policy[S]) -> Tensor:
    """log P_B of every edge, ``[E]``."""
    return _edge_log_prob(graph, backward, graph.target)


def log_reach(graph: StateGraph[Any], log_pf: Tensor) -> Tensor:
    """Log-probability that a forward trajectory passes through each state, ``[n]``, given log P_F of the edges.

    Each condition has probability one, shared evenly by its initial states.
    """
    of_initial = graph.condition[graph.initial]
    return forward_sum(graph, log_pf, -torch.bincount(of_initial).double().log()[of_initial])


def forward_sum(graph: StateGraph[Any], log_weight: Tensor, log_start: Tensor) -> Tensor:
    """Log of the sum over all paths to each state of the product of weights along them, ``[n]``.

    Args:
        log_weight: of the edges, ``[E]``.
        log_start: weight of each initial state, ``[I]``.
    """
    reach = torch.full((graph.n,), -torch.inf, dtype=torch.float64, device=log_weight.device)
    reach[graph.initial] = log_start.double()
    for edges in graph.levels():
        _scatter_logsumexp(reach, graph.target[edges], reach[graph.source[edges]] + log_weight[edges])
    return reach


def log_flows(graph: StateGraph[Any], log_pb: Tensor) -> Tensor:
    """Log of the state flows F(s) that R and P_B determine, ``[n]``: F(x) = R(x), F(s) = Σ F(s') P_B(s|s')."""
    flow = torch.full((graph.n,), -torch.inf, dtype=torch.float64, device=log_pb.device)
    flow[graph.terminal] = graph.log_reward
    # Edges into a state are complete only after every edge out of it, so levels of the source go from high to low.
    for edges in reversed(_by_source_level(graph)):
        _scatter_logsumexp(flow, graph.source[edges], flow[graph.target[edges]] + log_pb[edges])
    return flow


def _by_source_level(graph: StateGraph[Any]) -> list[Tensor]:
    level = torch.zeros(graph.n, dtype=torch.long, device=graph.source.device)
    for depth, edges in enumerate(graph.levels(), 1):
        level[graph.target[edges]] = depth
    of_edge = level[graph.source]
    return list(of_edge.argsort(stable=True).split(torch.bincount(of_edge).tolist()))


def _scatter_logsumexp(out: Tensor, index: Tensor, values: Tensor) -> None:
    """Set ``out[i]`` to the log-sum-exp of the values with index i, in place; every other entry stays."""
    peak = torch.full_like(out, -torch.inf).scatter_reduce(0, index, values, "amax")
    base = peak.where(peak.isfinite(), 0.0)
    total = torch.zeros_like(out).index_add(0, index, (values - base[index]).exp())
    touched = index.unique()
    out[touched] = total[touched].log() + base[touched]


@torch.no_grad()
def log_terminal(graph: StateGraph[S], policy: Policy[S]) -> Tensor:
    """Log-probability with which ``policy`` ends in each terminal state, given its condition, ``[X]``."""
    return log_reach(graph, edge_log_pf(graph, policy))[graph.terminal]


def log_partition(env: Any) -> Tensor:
    """log Σ_x R(x) of an enumerable environment with one initial state, ``[1]``, without listing its edges."""
    listed, environment = cast("Enumerable[Any]", env), cast("Environment[Any]", env)
    states = listed.enumerate()
    terminal = environment.is_terminal(states).nonzero().squeeze(-1)
    parts = [checked_log_reward(environment, states[part]).double() for part in terminal.split(CHUNK)]
    return torch.cat(parts).logsumexp(0, keepdim=True)


@torch.no_grad()
def optimal_log_pf(graph: StateGraph[S], backward: Policy[S]) -> Tensor:
    """log P_F of every edge under the one policy that balances with R and P_B, ``[E]``: F(s') P_B(s|s') / F(s).

    States without flow, from which every end has reward zero, are never visited; there it is uniform.
    """
    log_pb = edge_log_pb(graph, backward)
    flow = log_flows(graph, log_pb)
    uniform = -torch.bincount(graph.source, minlength=graph.n).double().log()
    balanced = flow[graph.target] + log_pb - flow[graph.source]
    return torch.where(flow[graph.source].isfinite(), balanced, uniform[graph.source])


def all_trajectories(graph: StateGraph[S]) -> Trajectories[S]:
    """Every complete trajectory of a small graph, once each; their number grows exponentially with depth."""
    order = graph.source.argsort(stable=True)
    degree = torch.bincount(graph.source, minlength=graph.n)
    first = degree.cumsum(0) - degree
    finished: list[tuple[list[int], list[int]]] = []
    open_paths: list[tuple[list[int], list[int]]] = [([int(i)], []) for i in graph.initial]
    while open_paths:
        visited, taken = open_paths.pop()
        here = visited[-1]
        edges = order[first[here] : first[here] + degree[here]].tolist()
        if not edges:
            finished.append((visited, taken))
        open_paths += [([*visited, int(graph.target[edge])], [*taken, edge]) for edge in edges]
    visited = torch.tensor([state for path, _ in finished for state in path])
    edges = torch.tensor([edge for _, taken in finished for edge in taken])
    lengths = torch.tensor([len(taken) for _, taken in finished])
    final = visited[(lengths + 1).cumsum(0) - 1]
    log_reward = torch.full((graph.n,), -torch.inf, dtype=torch.float64)
    log_reward[graph.terminal] = graph.log_reward
    return Trajectories(
        states=graph.states[visited],
        actions=graph.action[edges],
        lengths=lengths,
        log_reward=log_reward[final],
        group=visited[(lengths + 1).cumsum(0) - (lengths + 1)],
        behaviour_log_prob=torch.full((len(edges),), torch.nan, dtype=torch.float64),
        policy_version=torch.zeros(len(finished), dtype=torch.long),
    )


def expected_loss(loss: Callable[[Tensor], Tensor], residual: Tensor, log_prob: Tensor) -> Tensor:
    """Σ_τ p(τ) L(Δ(τ)) with p held constant: the exact on-policy objective, differentiable through Δ."""
    return (log_prob.detach().exp() * loss(residual)).sum()
