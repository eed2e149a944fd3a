"""Rollouts in both directions: what is stored, and what is refused."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from envs.hypergrid import GridStates, Hypergrid, UserReward
from gfn.environment import RewardError
from gfn.exact import log_terminal, state_graph
from gfn.exploration import EpsilonUniform
from gfn.policies import CertainBackward, MLPBackward, MLPPolicy, Policy, Tabular, Uniform, UniformBackward
from gfn.sampling import EndlessTrajectoryError, rollout
from gfn.trajectories import Trajectories
from tests.toy_environments import Bridge, Cook, Diffusion, Drift, Recipes, Uncook, Words


def rows(states: GridStates) -> list[tuple[tuple[int, ...], bool]]:
    return [(tuple(c), s) for c, s in zip(states.coords.tolist(), states.stopped.tolist(), strict=True)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def biased(env: Hypergrid) -> Tabular[GridStates]:
    """A policy far from uniform."""
    return Tabular(env, env.forward_mask, torch.randn(2 * env.side**env.ndim, env.n_actions) * 2)


def assert_walks(env: Hypergrid, t: Trajectories[GridStates]) -> None:
    """Each trajectory leads from the origin to a stop by its own actions, one after another."""
    start = 0
    for b, length in enumerate(t.lengths.tolist()):
        first = start + b
        visited = rows(t.states[first : first + length + 1])
        actions = t.actions[start : start + length].tolist()
        assert visited[0] == ((0, 0), False)
        assert visited[-1][1]
        assert not any(stopped for _, stopped in visited[:-1])
        for (here, there), action in zip(itertools.pairwise(visited), actions, strict=True):
            assert there[0] == tuple(x + (i == action) for i, x in enumerate(here[0]))
            assert there[1] == (action == env.ndim)
        start += length
    assert start == len(t.actions)


@pytest.mark.parametrize("backward", [False, True])
def test_trajectories_walk_from_the_origin_to_a_stop(backward: bool) -> None:
    env = Hypergrid(4, 2)
    final = env.enumerate()[torch.arange(16, 32)]
    policy = UniformBackward(env) if backward else biased(env)
    t = rollout(env, policy, final if backward else env.reset(64), backward=backward, generator=seeded())
    assert_walks(env, t)
    assert len(set(t.lengths.tolist())) > 3
    assert t.log_reward.equal(env.log_reward(t.final))
    if backward:
        assert rows(t.final) == rows(final)


def test_forward_samples_end_as_often_as_dynamic_programming_says() -> None:
    env = Hypergrid(3, 2)
    policy = biased(env)
    wanted = log_terminal(state_graph(env), policy).exp()
    t = rollout(env, policy, env.reset(4000), generator=seeded())
    seen = torch.bincount(env.index(t.final) - 9, minlength=9) / 4000
    assert (seen - wanted).abs().max() < 4 * (0.25 / 4000) ** 0.5
    assert wanted.max() > 0.2  # far from uniform, which has 1/9


def test_stored_states_are_not_changed_by_later_steps_nor_is_the_start() -> None:
    env = Hypergrid(4, 2)
    start = env.reset(8)
    t = rollout(env, Uniform(env.forward_mask), start, generator=seeded())
    assert rows(start) == [((0, 0), False)] * 8
    assert rows(env.step(t.sources, t.actions)) == rows(t.targets)


def test_no_states_lead_to_no_trajectories() -> None:
    env = Hypergrid(side=4, ndim=2)
    t = rollout(env, MLPPolicy(env, width=8), env.reset(0))
    assert len(t) == len(t.states) == len(t.actions) == 0


def test_the_behaviour_is_the_policy_where_nothing_is_explored() -> None:
    env = Hypergrid(4, 2)
    policy = biased(env)
    t = rollout(env, policy, env.reset(64), generator=seeded())
    assert t.behaviour_log_prob.equal(policy.log_prob(t).detach())
    assert not t.behaviour_log_prob.requires_grad


def test_the_behaviour_under_exploration_is_what_was_drawn_from() -> None:
    env = Hypergrid(4, 2)
    policy, exploration = biased(env), EpsilonUniform(0.5)
    t = rollout(
        env, policy, env.reset(64), explore=lambda distribution: exploration(distribution, 0), generator=seeded()
    )
    uniform = 1 / env.forward_mask(t.sources).sum(1)
    mixed = 0.5 * policy.log_prob(t).detach().exp() + 0.5 * uniform
    assert torch.allclose(t.behaviour_log_prob, mixed.log(), atol=1e-5)
    assert (t.behaviour_log_prob - policy.log_prob(t).detach()).abs().max() > 0.5


def test_the_behaviour_of_a_backward_rollout_is_that_of_undoing() -> None:
    env = Hypergrid(4, 2)
    backward = MLPBackward(env, MLPPolicy(env, width=8))
    t = rollout(env, backward, env.enumerate()[16:], backward=True, generator=seeded())
    assert torch.allclose(t.behaviour_log_prob, backward.log_prob_backward(t).detach(), atol=1e-6)
    assert t.behaviour_log_prob[t.actions == 2].tolist() == [0.0] * 16  # a stop is undone with certainty
    assert (t.behaviour_log_prob < -0.1).any()


@pytest.mark.parametrize("backward", [False, True])
def test_the_same_seed_gives_the_same_trajectories(backward: bool) -> None:
    env = Hypergrid(4, 2)
    policy = UniformBackward(env) if backward else Uniform(env.forward_mask)
    start = env.enumerate()[16:] if backward else env.reset(16)

    def actions(seed: int) -> list[int]:
        torch.rand(seed + 1)  # the global generator plays no part
        return rollout(env, policy, start, backward=backward, generator=seeded(seed)).actions.tolist()

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def test_groups_and_versions_are_kept() -> None:
    env = Hypergrid(4, 2)
    policy = Uniform(env.forward_mask)
    t = rollout(env, policy, env.reset(4), group=torch.tensor([0, 0, 1, 1]), version=7)
    assert t.group.tolist() == [0, 0, 1, 1]
    assert t.policy_version.tolist() == [7, 7, 7, 7]
    t = rollout(env, policy, env.reset(4))
    assert t.group.tolist() == [0, 0, 0, 0]
    assert t.policy_version.tolist() == [0, 0, 0, 0]


def test_trajectories_of_exactly_max_steps_are_complete() -> None:
    env = Hypergrid(3, 2)
    up = torch.tensor([[30.0, 30.0, -30.0]]).expand(18, 3)
    t = rollout(env, Tabular(env, env.forward_mask, up), env.reset(4))
    assert t.lengths.tolist() == [env.max_steps] * 4


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (False, r"4 of 4 trajectories have not ended after max_steps=2 .* in state \d \d: raise Hypergrid\.max_steps, "
                r"or make is_terminal true at their end"),
        (True, r"1 of 2 trajectories .* in state \d \d: .* or make is_initial true at their end"),
    ],
)  # fmt: skip
def test_an_endless_trajectory_is_told_with_an_example(backward: bool, message: str) -> None:
    env = Hypergrid(3, 2)
    env.max_steps = 2
    up = Tabular(env, env.forward_mask, torch.tensor([[30.0, 30.0, -30.0]]).expand(18, 3))
    start = env.enumerate()[torch.tensor([9, 17])] if backward else env.reset(4)
    with pytest.raises(EndlessTrajectoryError, match=message):
        rollout(env, UniformBackward(env) if backward else up, start, backward=backward)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("reward", "told"), [(math.nan, "nan"), (math.inf, "inf"), (-2.0, r"-2\.0")])
def test_a_bad_reward_stops_the_rollout(reward: float, told: str, backward: bool) -> None:
    env = Hypergrid(3, 2, UserReward(lambda coords: torch.ones(len(coords)).where(coords.sum(1) < 4, reward)))
    policy = UniformBackward(env) if backward else Uniform(env.forward_mask)
    start = env.enumerate()[9:] if backward else env.reset(200)
    with pytest.raises(RewardError, match=f"reward of state 2 2 stop is {told}"):
        rollout(env, policy, start, backward=backward, generator=seeded())


def test_rewards_of_zero_are_kept_as_minus_infinity() -> None:
    env = Hypergrid(3, 2, UserReward(lambda coords: (coords.sum(1) > 0).double()))
    t = rollout(env, Uniform(env.forward_mask), env.reset(64), generator=seeded())
    assert (t.log_reward == -torch.inf).equal(t.lengths == 1)


def test_a_stepper_is_told_which_rows_go_on() -> None:
    env = Hypergrid(4, 2)

    class Counting(Uniform):
        """Counts, for each live trajectory, the steps so far, from ``kept`` alone."""

        def stepper(self):
            self.counts, self.calls = torch.full((32,), -1), 0

            def advance(states, kept):
                self.counts, self.calls = self.counts[kept] + 1, self.calls + 1
                assert self.counts.equal(states.coords.sum(1))
                return self.distribution(states)

            return advance

    policy = Counting(env.forward_mask)
    t = rollout(env, policy, env.reset(32), generator=seeded())
    assert policy.calls == int(t.lengths.max())


CARRIED = [
    (Words(), lambda env: MLPPolicy(env, width=8), CertainBackward),
    (Recipes(), Cook, Uncook),
    (Diffusion(), Drift, lambda env: Bridge()),
]


@pytest.mark.parametrize(("env", "forward", "backward"), CARRIED, ids=["tree", "hierarchical", "continuous"])
def test_every_kind_of_environment_goes_there_and_back(env, forward, backward) -> None:
    policy, back = forward(env), backward(env)
    t = rollout(env, policy, env.reset(32), generator=seeded())
    again = rollout(env, back, t.final, backward=True, generator=seeded())
    for some in (t, again):
        assert env.is_initial(some.initial).all()
        assert env.is_terminal(some.final).all()
        assert policy.log_prob(some).isfinite().all()
        assert back.log_prob_backward(some).isfinite().all()
    assert again.log_reward.equal(t.log_reward)
    assert isinstance(policy, Policy)


def test_a_tree_has_one_way_back() -> None:
    env = Words()
    t = rollout(env, Uniform(env.forward_mask), env.reset(32), generator=seeded())
    again = rollout(env, CertainBackward(env), t.final, backward=True)
    assert again.states.equal(t.states)
    assert again.actions.equal(t.actions)
    assert again.behaviour_log_prob.tolist() == [0.0] * len(t.actions)
