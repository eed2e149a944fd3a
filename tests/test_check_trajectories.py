"""The contract of whole trajectories: each way to break it is caught by the clause that names the fault."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid
from gfn.distributions import Certain, MaskedCategorical
from gfn.environment import TooManyStatesError
from gfn.policies import Uniform
from tests.breaking import Cases, at, caught, right
from tests.toy_environments import Cook, Recipes, Uncook

cases = Cases()


@cases.add("log_reward", "log_reward of shape (64,); came (64, 1)")
def rewards_in_a_column(self, states):
    return right.log_reward(self, states).unsqueeze(1)


@cases.add("log_reward", "log_reward of dtype a float; came torch.int64")
def rewards_in_integers(self, states):
    return states.coords.sum(1)


@cases.add("log_reward", "a log-reward below +inf; came nan in state [3 3 stop]")
def rewards_the_corner_with_nan(self, states):
    return right.log_reward(self, states).where(~(states.coords == 3).all(1), torch.nan)


@cases.add("log_reward", "a log-reward below +inf; came inf in state [0 0 stop]")
def rewards_the_origin_with_infinity(self, states):
    return right.log_reward(self, states).where(states.coords.any(1), torch.inf)


@cases.add("log_reward", "log_reward to answer for each state alone")
def rewards_by_rank(self, states):
    reward = right.log_reward(self, states)
    return reward - reward.max()


@cases.add("log_reward", "log_reward to leave the states it is given as they were")
def rewards_in_place(self, states):
    states.coords.mul_(2)
    return right.log_reward(self, states)


@cases.add("log_reward", "expected an answer, came ZeroDivisionError")
def divides(self, states):
    return right.log_reward(self, states) * (1 / (len(states) - 64))


@pytest.mark.parametrize("name", cases)
def test_a_broken_grid_is_caught_by_the_clause_it_breaks(name: str) -> None:
    cases.check(name)


@dataclass(frozen=True)
class Heated(GridStates):
    """A grid point and the temperature it was started with."""

    temperature: Tensor


def test_a_condition_from_the_global_generator_is_caught() -> None:
    class Conditioned(Hypergrid):
        def reset(self, n, generator=None):
            return Heated(**vars(super().reset(n)), temperature=torch.rand(n))

        def step(self, states, actions):
            return replace(states, **vars(super().step(states, actions)))

        def undo(self, states, actions):
            return replace(states, **vars(super().undo(states, actions)))

        def enumerate(self):
            raise TooManyStatesError("there are as many as temperatures")

    caught(
        "generator", "reset to depend on its generator alone; came another for the same seed [0 0]", Conditioned(4, 2)
    )


def test_actions_from_the_global_generator_are_caught() -> None:
    class Careless(MaskedCategorical):
        def sample(self, generator=None):
            return super().sample()

    class Roll(Uniform):
        def distribution(self, states):
            return Careless(torch.zeros(len(states), 3), self.mask(states))

    env = Hypergrid(4, 2)
    caught("generator", "equal actions from equal seeds; came others", env, Roll(env.forward_mask))


def test_a_backward_policy_that_misses_an_edge_is_caught() -> None:
    class First(Uniform):
        def distribution(self, states):
            return Certain(self.mask(states).int().argmax(1))

    env = Hypergrid(4, 2)
    caught("backward rollout", "backward probability for each step; came none", env, None, First(env.backward_mask))


def test_a_forward_policy_that_misses_an_edge_is_caught() -> None:
    class Staircase(Uniform):
        def distribution(self, states):
            return super().distribution(replace(states, coords=states.coords + 3 * at(states, 0, 1).unsqueeze(1)))

    env = Hypergrid(4, 2)
    phrase = "forward probability for each step; came none in state [0 1]"
    caught("backward rollout", phrase, env, Staircase(env.forward_mask))


def test_a_backward_walk_that_misses_the_start_is_caught() -> None:
    class Bottomless(Hypergrid):
        def backward_mask(self, states):
            anywhere = (states.coords != 0).any(1) & ~states.stopped
            return super().backward_mask(states) | (anywhere.unsqueeze(1) & (torch.arange(3) == 0))

    caught("backward rollout", "expected an answer, came EndlessTrajectoryError", Bottomless(4, 2))


def test_an_undo_that_cannot_be_repeated_is_caught() -> None:
    class Floored(Recipes):
        def undo(self, states, actions):
            back = super().undo(states, actions)
            return replace(back, total=back.total.clamp_min(0))

        def entering(self, states):
            return super().entering(states) | (~states.served & (states.total > 0)).unsqueeze(1) & (
                self.table[:, 0] > 0
            )

    env = Floored()
    caught("backward rollout", "step to take the same way forward; came another", env, Cook(env), Uncook(env))
