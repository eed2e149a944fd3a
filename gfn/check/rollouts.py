"""Clauses about whole trajectories: their reward, their randomness, and the way back."""

from __future__ import annotations

from typing import TypeVar

import torch

from gfn.check.contract import Contract
from gfn.check.transitions import Walk
from gfn.policies import Policy
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


def check_log_reward(contract: Contract[S], final: S) -> None:
    """``log_reward`` is pure, one float for each terminal state, and neither NaN nor +inf."""
    with contract.clause("log_reward"):
        value = contract.require_tensor("log_reward", contract.env.log_reward, final, (len(final),))
        hint = "return log R: finite, or -inf where R is zero"
        bad = ~(value < torch.inf)
        came = str(float(value[bad][0])) if bool(bad.any()) else ""
        contract.require(~bad, "a log-reward below +inf", came, hint, final)


def check_generator(contract: Contract[S], policy: Policy[S], n: int) -> None:
    """Equal seeds give equal trajectories: nothing is drawn from elsewhere."""
    with contract.clause("generator"):
        hint = "pass the generator to every random call; draw nothing from the global one"
        one, two = _seeded(contract, policy, n, 1), _seeded(contract, policy, n, 2)
        contract.require_same(
            "reset to depend on its generator alone",
            one.initial,
            two.initial,
            "another for the same seed",
            hint,
            two.initial,
        )
        contract.require(one.actions.equal(two.actions), "equal actions from equal seeds", "others", hint)


def _seeded(contract: Contract[S], policy: Policy[S], n: int, global_seed: int) -> Trajectories[S]:
    env = contract.env
    with torch.random.fork_rng(devices=[env.device] if env.device.type == "cuda" else []):
        torch.manual_seed(global_seed)
        generator = torch.Generator(env.device).manual_seed(0)
        return rollout(env, policy, env.reset(n, generator), generator=generator)


def check_backward_rollout(contract: Contract[S], policy: Policy[S], backward: Policy[S], walked: Walk[S]) -> None:
    """Backward from a terminal state lies an initial one, along steps that go both ways."""
    env = contract.env
    with contract.clause("backward rollout"):
        back = backward.distribution(walked.after).log_prob(walked.actions)
        hint = "the backward policy must give every edge into a state a chance"
        contract.require(back > -torch.inf, "backward probability for each step", "none", hint, walked.after)
        t = rollout(env, backward, walked.final, backward=True, generator=contract.generator)
        hint = "step and undo must be inverse to one another along the edges of the backward policy"
        again = env.step(t.sources, t.actions)
        contract.require_same("step to take the same way forward", again, t.targets, "another", hint, t.sources)
        forth = policy.distribution(t.sources).log_prob(t.actions)
        hint = "the backward policy allows an edge that the forward policy never takes"
        contract.require(forth > -torch.inf, "forward probability for each step", "none", hint, t.sources)
