"""Rollouts: the one loop in which a policy and an environment meet, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from gfn.distributions import ActionDistribution
from gfn.environment import Environment, checked_log_reward
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
) -> Trajectories[S]:
    """Sample one complete trajectory from each of the B states of ``start``.

    Forward, ``start`` is initial and ``policy`` is P_F; backward, ``start`` is terminal, ``policy``
    is P_B, and the trajectories come back in forward order all the same.

    Args:
        explore: change of the distribution that actions are drawn from.
        group: which trajectories share an initial state, long ``[B]``; default, all of them.
        generator: source of all randomness.
        version: number of updates the policy has seen, stored with the trajectories.

    Raises:
        EndlessTrajectoryError: if a trajectory has not ended after ``env.max_steps`` steps.
        RewardError: if a reward is NaN or +inf.
    """
    move, ended = (env.undo, env.is_initial) if backward else (env.step, env.is_terminal)
    advance = policy.stepper()
    live, alive = start, torch.arange(len(start), device=env.device)
    kept = alive
    states, rows, actions, log_probs = [live], [alive], list[Tensor](), list[Tensor]()
    for _ in range(env.max_steps):
        distribution = advance(live, kept)
        if explore is not None:
            distribution = explore(distribution)
        action = distribution.sample(generator)
        log_probs.append(distribution.log_prob(action))
        live = move(live, action)
        states.append(live)
        rows.append(alive)
        actions.append(action)
        kept = (~ended(live)).nonzero().squeeze(-1)
        live, alive = live[kept], alive[kept]
        if len(alive) == 0:
            break
    else:
        example = env.describe(live[:1])[0]
        raise EndlessTrajectoryError(
            f"{len(alive)} of {len(start)} trajectories have not ended after max_steps={env.max_steps} steps, "
            f"such as the one now in state {example}: raise {type(env).__name__}.max_steps, or make "
            f"{'is_initial' if backward else 'is_terminal'} true at their end"
        )
    by_trajectory = order_by_trajectory(rows[1:])
    counts = torch.bincount(torch.cat(rows[1:]), minlength=len(start))
    visited = cat(states)[order_by_trajectory(rows)]
    trajectories = Trajectories(
        states=visited,
        actions=torch.cat(actions)[by_trajectory],
        lengths=counts,
        log_reward=checked_log_reward(env, start if backward else visited[(counts + 1).cumsum(0) - 1]),
        group=torch.zeros(len(start), dtype=torch.long, device=env.device) if group is None else group,
        behaviour_log_prob=torch.cat(log_probs)[by_trajectory],
        policy_version=torch.full((len(start),), version, device=env.device),
    )
    return trajectories.reversed() if backward else trajectories
