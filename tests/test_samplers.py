"""Where trajectories come from: groups, exploration, and going on after a stop."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid
from gfn.exploration import EpsilonUniform
from gfn.policies import Tabular, Uniform
from gfn.samplers import OnPolicy
from gfn.schedules import Linear


@dataclass(frozen=True)
class Heated(GridStates):
    """A grid point, and the temperature drawn at the start."""

    temperature: Tensor


class Conditioned(Hypergrid):
    """A hypergrid whose trajectories carry a temperature."""

    def reset(self, n, generator=None):
        return Heated(**vars(super().reset(n)), temperature=torch.rand(n, generator=generator))

    def step(self, states, actions):
        moved = super().step(states, actions)
        return Heated(moved.coords, moved.stopped, states.temperature)


def on_policy(env: Hypergrid | None = None, **settings) -> OnPolicy[GridStates]:
    env = env or Hypergrid(4, 2)
    return OnPolicy(env, Uniform(env.forward_mask), **settings)


def test_groups_share_their_initial_state() -> None:
    sampler = on_policy(Conditioned(4, 2), batch_size=12, group_size=4)
    t = sampler(0)
    temperature = t.initial.temperature.reshape(3, 4)
    assert len(t) == 12
    assert t.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (temperature == temperature[:, :1]).all()
    assert len(temperature[:, 0].unique()) == 3
    assert t.final.temperature.equal(t.initial.temperature)


def test_a_batch_is_one_group_by_default() -> None:
    sampler = on_policy(batch_size=6)
    assert sampler.group_size == 6
    assert sampler(0).group.tolist() == [0] * 6


@pytest.mark.parametrize(("batch_size", "group_size"), [(6, 4), (0, None), (6, 0), (4, 8), (-4, 2)])
def test_groups_fill_the_batch(batch_size: int, group_size: int | None) -> None:
    with pytest.raises(ValueError, match="batch_size must be a positive multiple of group_size"):
        on_policy(batch_size=batch_size, group_size=group_size)


def test_the_smallest_batch_is_one_trajectory_and_the_usual_one_sixteen() -> None:
    assert len(on_policy(batch_size=1, group_size=1)(0)) == 1
    assert len(on_policy()(0)) == 16


def test_batches_differ_and_know_their_step() -> None:
    sampler = on_policy(batch_size=16)
    one, two = sampler(3), sampler(4)
    assert one.actions.tolist() != two.actions.tolist()
    assert one.policy_version.tolist() == [3] * 16
    assert two.policy_version.tolist() == [4] * 16


def test_the_seed_decides_and_the_global_generator_does_not() -> None:
    first = on_policy(seed=1)(0).actions.tolist()
    torch.manual_seed(99)
    assert on_policy(seed=1)(0).actions.tolist() == first
    assert on_policy(seed=2)(0).actions.tolist() != first
    assert on_policy()(0).actions.equal(on_policy(seed=0)(0).actions)


def test_a_sampler_goes_on_from_where_it_was_saved() -> None:
    sampler = on_policy(Conditioned(4, 2), batch_size=8, group_size=2)
    sampler(0)
    saved = sampler.state_dict()
    wanted = [sampler(step) for step in (1, 2)]
    other = on_policy(Conditioned(4, 2), batch_size=8, group_size=2, seed=5)
    other.load_state_dict(saved)
    for step, t in zip((1, 2), wanted, strict=True):
        again = other(step)
        assert again.actions.equal(t.actions)
        assert again.initial.temperature.equal(t.initial.temperature)


def test_exploration_follows_the_step() -> None:
    env = Hypergrid(4, 2)
    stops = Tabular(env, env.forward_mask, torch.tensor([[-30.0, -30.0, 30.0]]).expand(32, 3))
    exploration = EpsilonUniform(Linear(1.0, 0.0, 10))
    sampler = OnPolicy(env, stops, batch_size=64, exploration=exploration)
    wide, narrow = sampler(0), sampler(10)
    assert wide.lengths.max() > 1
    assert torch.allclose(wide.behaviour_log_prob, -env.forward_mask(wide.sources).sum(1).log())
    assert narrow.lengths.tolist() == [1] * 64
    assert sampler.settings(5) == {"epsilon": 0.5}
    assert on_policy().settings(5) == {}
