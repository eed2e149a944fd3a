"""Backward walks: how many paths there are, whether walks reach the start, and what they tell about a policy.

Where P_B can walk into dead ends, it reaches the start from x with a probability q(x) below one,
and balance makes P_F sample in proportion to R(x) q(x) instead of R(x): report q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from gfn.environment import DiscreteEnvironment, Environment, as_enumerable
from gfn.exact import StateGraph, forward_sum, state_graph
from gfn.policies import Policy, Tabular
from gfn.sampling import rollout
from gfn.states import States

S = TypeVar("S", bound=States)


def log_paths(graph: StateGraph[Any]) -> Tensor:
    """Log of the number of paths from an initial state to each state, ``[n]``; parallel edges count each."""
    return forward_sum(graph, torch.zeros(len(graph.source)), torch.zeros(len(graph.initial)))


def has_dead_ends(graph: StateGraph[Any]) -> bool:
    """Whether some state is neither initial nor stepped into, so that walks back may be lost there."""
    return len(torch.cat([graph.initial, graph.target]).unique()) < graph.n


def log_return(graph: StateGraph[Any], log_pb: Tensor) -> Tensor:
    """log q: that a walk by P_B from each state reaches an initial state, ``[n]``, given log P_B of the edges.

    It is zero (q = 1) everywhere unless P_B walks into states that the graph does not lead to.
    """
    return forward_sum(graph, log_pb, torch.zeros(len(graph.initial)))


class MaxEntropyBackward(Tabular[S]):
    """P_B(s|s') in proportion to the number of paths to s, by exact counting.

    Every trajectory to a state is then equally likely given the state, and P_F, once balanced, has
    the largest entropy over trajectories (Mohammadpour et al. 2024, arXiv:2312.14331).

    Raises:
        ValueError: if the environment cannot list its states.
    """

    def __init__(self, env: DiscreteEnvironment[S]):
        listed = as_enumerable(env)
        if listed is None:
            raise ValueError(
                f"MaxEntropyBackward counts paths and needs an environment with enumerate and index; "
                f"{type(env).__name__} has none: use backward=uniform or backward=learned"
            )
        graph = state_graph(env)
        logits = torch.full((graph.n, env.n_actions), -math.inf, dtype=torch.float64, device=graph.source.device)
        paths = log_paths(graph)
        known = paths[graph.target].isfinite()
        logits[graph.target, graph.action] = (paths[graph.source] - paths[graph.target]).where(known, 0.0)
        super().__init__(listed, env.backward_mask, logits.to(torch.get_default_dtype()), learned=False)


@dataclass(frozen=True)
class Walks:
    """One walk back by P_B from each of B states.

    Attributes:
        log_prob: log P_B of all its steps, differentiable, ``[B]``.
        returned: whether it reached an initial state, bool ``[B]``. A walk is lost where P_B knows no way
            back, or after ``env.max_steps`` steps.
    """

    log_prob: Tensor
    returned: Tensor


def walks(env: Environment[S], backward: Policy[S], final: S, generator: torch.Generator | None = None) -> Walks:
    """Walk back by P_B from each state."""
    returned = env.is_initial(final)
    log_prob = torch.zeros(len(final), dtype=torch.float64, device=returned.device)
    rows = (~returned).nonzero().squeeze(-1)
    live = final[rows]
    for _ in range(env.max_steps):
        walking = ~backward.stuck(live)
        live, rows = live[walking], rows[walking]
        if len(rows) == 0:
            break
        distribution = backward.distribution(live)
        action = distribution.sample(generator)
        log_prob = log_prob.index_add(0, rows, distribution.log_prob(action).double())
        live = env.undo(live, action)
        home = env.is_initial(live)
        returned[rows[home]] = True
        live, rows = live[~home], rows[~home]
    return Walks(log_prob, returned)


@torch.no_grad()
def reach_fraction(
    env: Environment[S], backward: Policy[S], final: S, generator: torch.Generator | None = None
) -> float:
    """Share of walks by P_B, one from each state, that reach an initial state: an estimate of the mean of q."""
    return float(walks(env, backward, final, generator).returned.double().mean())


@torch.no_grad()
def terminal_log_prob(
    env: Environment[S],
    policy: Policy[S],
    backward: Policy[S],
    final: S,
    samples: int = 10,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Estimates of log p(x) by importance sampling with P_B, float64 ``[N]``.

    log p(x) ≈ log mean_k P_F(τ_k)/P_B(τ_k|x) over ``samples`` walks back from each x (Malkin et al.
    2022, appendix): unbiased for p, exact on a tree, low on average in the logarithm.

    Raises:
        ValueError: if a walk ends in a dead end, where P_B allows nothing.
    """
    repeated = final[torch.arange(len(final), device=env.device).repeat_interleave(samples)]
    t = rollout(env, backward, repeated, backward=True, generator=generator)
    log_ratio = t.pad(policy.log_prob(t) - backward.log_prob_backward(t)).double().sum(1)
    return log_ratio.reshape(len(final), samples).logsumexp(1) - math.log(samples)
