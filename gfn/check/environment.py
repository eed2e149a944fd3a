"""The examination of an environment: which clauses, in which order."""

from __future__ import annotations

from typing import TypeVar

import torch

from gfn.check.contract import Contract
from gfn.check.listing import check_listing, check_modes
from gfn.check.rollouts import check_backward_rollout, check_generator, check_log_reward
from gfn.check.states import check_describe, check_predicates, check_reset, check_states, examine
from gfn.check.transitions import check_backward_edges, check_forbidden, check_step, check_taken, check_undo, walk
from gfn.environment import Environment, as_discrete
from gfn.policies import Policy, Uniform, UniformBackward
from gfn.states import States, cat

S = TypeVar("S", bound=States)
VISITED = 16  # visited states looked at, for each trajectory


@torch.no_grad()
def check_environment(
    env: Environment[S],
    policy: Policy[S] | None = None,
    backward: Policy[S] | None = None,
    *,
    n: int = 64,
    seed: int = 0,
    tolerance: float = 1e-5,
) -> list[str]:
    """Examine what the rest of the library takes for granted about an environment.

    Half of the trajectories walked are kept going for as long as they can, so that rims are
    reached; an environment that lists its states is examined at every one of them.

    Args:
        env: the environment.
        policy: P_F to walk with; default, uniform over ``forward_mask``.
        backward: P_B to walk back with; default, and where it is a prior, which cannot, uniform over
            ``backward_mask``.
        n: number of trajectories.
        seed: of all random choices.
        tolerance: largest difference, absolute or relative, between floats that count as equal.

    Returns:
        The names of the clauses examined.

    Raises:
        ContractError: at the first clause that does not hold.
        TypeError: if the environment has no dense masks and a policy is missing.
    """
    policy, backward = _walkers(env, policy, backward)
    discrete = as_discrete(env)
    contract = Contract(env, seed, tolerance)
    start = check_reset(contract, n)
    check_states(contract, start)
    check_describe(contract, start)
    check_predicates(contract, start)
    examine(contract, discrete, start)
    with contract.clause("forward rollout"):
        actions = policy.distribution(start).sample(contract.generator)
    with contract.clause("step"):
        moved = env.step(start[torch.arange(n, device=env.device)], actions)
    check_states(contract, moved)
    check_step(contract, start, actions)
    check_predicates(contract, moved)
    examine(contract, discrete, moved)

    walked = walk(contract, discrete, policy, start)
    visited = cat([start, walked.after])[contract.some(n + len(walked.actions), VISITED * n)]
    check_describe(contract, visited)
    check_predicates(contract, visited)
    examine(contract, discrete, visited)
    check_step(contract, walked.before, walked.actions)
    if discrete is not None:
        check_taken(contract, discrete, walked)
    check_undo(contract, walked)
    if discrete is not None:
        check_forbidden(contract, discrete, visited)
        check_backward_edges(contract, discrete, visited)
    check_log_reward(contract, walked.final)
    check_generator(contract, policy, n)
    check_backward_rollout(contract, policy, backward, walked)
    check_listing(contract, discrete, start, backward)
    check_modes(contract, walked.final)
    return contract.kept


def _walkers(env: Environment[S], policy: Policy[S] | None, backward: Policy[S] | None) -> tuple[Policy[S], Policy[S]]:
    discrete = as_discrete(env)
    if discrete is not None:
        policy = Uniform(discrete.forward_mask) if policy is None else policy
        if backward is None or backward.prior is not None:
            backward = UniformBackward(discrete)
    if policy is None or backward is None:
        raise TypeError(
            f"check_environment: {type(env).__name__} is no DiscreteEnvironment, so it has no uniform policies "
            "to walk with; give it policy= and backward="
        )
    return policy, backward
