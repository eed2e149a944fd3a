"""Rollouts: the one loop in which a policy and an environment meet, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from gfn.distributions import ActionDistribution
from gfn.environment import Environment, checked_log_reward
from gfn.fused import Advance, Table
from gfn.policies import Policy
from gfn.states import States, cat
from gfn.trajectories import Trajectories, order_by_trajectory

S = TypeVar("S", bound=States)
Explore = Callable[[ActionDistribution], ActionDistribution]


class EndlessTrajectoryError(RuntimeError):
    """A trajectory is longer than the environment says any can be."""


@torch.no_grad()
def rollout(
    env: Environment[S],
    policy: Policy[S],
    start: S,
    *,
    backward: bool = False,
    explore: Explore | None = None,
    group: Tensor | None = None,
    generator: torch.Generator | None = None,
    version: int = 0,
    table: Table[S] | None = None,
) -> Trajectories[S]:
    """Sample one complete trajectory from each of the B states of ``start``.

    Forward, ``start`` is initial and ``policy`` is P_F; backward, ``start`` is terminal, ``policy``
    is P_B, and the trajectories come back in forward order all the same.

    Args:
        explore: change of the distribution that actions are drawn from.
        group: which trajectories share an initial state, long ``[B]``; default, all of them.
        generator: source of all randomness.
        version: number of updates the policy has seen, stored with the trajectories.
        table: of the environment; without ``explore`` rollouts then take one compiled call a step, if they can.

    Raises:
        EndlessTrajectoryError: if a trajectory has not ended after ``env.max_steps`` steps.
        RewardError: if a reward is NaN or +inf.
    """
    fused = table.steps(policy, backward, generator) if table is not None and explore is None else None
    advance: Advance = fused or _operators(env, policy, backward, explore, generator)
    listed = None if fused is None else fused.table
    live: Any = start if listed is None else listed.index(start)
    alive = torch.arange(len(start), device=env.device)
    states, rows, actions, log_probs = [live], [alive], list[Tensor](), list[Tensor]()
    for _ in range(env.max_steps):
        rows.append(alive)
        action, log_prob, target, live, alive = advance(live, alive)
        states.append(target)
        actions.append(action)
        log_probs.append(log_prob)
        if alive.numel() == 0:
            break
    else:
        raise _endless(env, live if listed is None else listed.states[live], len(start), backward)
    by_trajectory = order_by_trajectory(rows[1:])
    counts = torch.bincount(torch.cat(rows[1:]), minlength=len(start))
    visited = cat(states)[order_by_trajectory(rows)]
    visited: S = visited if listed is None else listed.states[visited]
    trajectories = Trajectories(
        states=visited,
        actions=torch.cat(actions)[by_trajectory],
        lengths=counts,
        log_reward=checked_log_reward(env, start if backward else visited[(counts + 1).cumsum(0) - 1], masked=True),
        group=torch.zeros(len(start), dtype=torch.long, device=env.device) if group is None else group,
        behaviour_log_prob=torch.cat(log_probs)[by_trajectory],
        policy_version=torch.full((len(start),), version, device=env.device),
    )
    if backward:
        return trajectories.reversed()
    if fused is not None:
        fused.remember(trajectories, by_trajectory)
    return trajectories


def _operators(
    env: Environment[S],
    policy: Policy[S],
    backward: bool,
    explore: Explore | None,
    generator: torch.Generator | None,
) -> Advance:
    """A step of a rollout, one operator at a time."""
    move, ended = (env.undo, env.is_initial) if backward else (env.step, env.is_terminal)
    stepper, kept = policy.stepper(), None

    def advance(live: S, alive: Tensor) -> tuple[Tensor, Tensor, S, S, Tensor]:
        nonlocal kept
        distribution = stepper(live, alive if kept is None else kept)
        if explore is not None:
            distribution = explore(distribution)
        action = distribution.sample(generator)
        log_prob = distribution.log_prob(action)
        target = move(live, action)
        kept = (~ended(target)).nonzero().squeeze(-1)
        return action, log_prob, target, target[kept], alive[kept]

    return advance


def _endless(env: Environment[S], live: S, n: int, backward: bool) -> EndlessTrajectoryError:
    return EndlessTrajectoryError(
        f"{len(live)} of {n} trajectories have not ended after max_steps={env.max_steps} steps, "
        f"such as the one now in state {env.describe(live[:1])[0]}: raise {type(env).__name__}.max_steps, or make "
        f"{'is_initial' if backward else 'is_terminal'} true at their end"
    )
