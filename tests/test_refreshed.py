"""Limits on what is stored and drawn, and batches from a buffer that is refreshed, against plain counts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from envs.hypergrid import GridStates
from gfn.buffers import Buffer
from gfn.distributed import Asynchronous
from gfn.priorities import ByReward
from gfn.samplers import Refreshed
from gfn.schedules import Linear
from gfn.trajectories import Trajectories
from tests.stored import Conditioned, grid, in_batches, listed, moved, network, uniform


def numbered(n: int) -> Trajectories[GridStates]:
    """Trajectories that can be told apart by their log-reward."""
    t = uniform(grid(), batch_size=n)(0)
    return replace(t, log_reward=torch.arange(float(n)))


def most_often(t: Trajectories[GridStates]) -> int:
    return max(Counter(t.log_reward.tolist()).values())


# Buffers


@pytest.mark.parametrize("evict", ["oldest", "lowest"])
def test_each_initial_state_keeps_its_newest_or_its_best(evict: Any) -> None:
    env = Conditioned(4, 2)
    buffer = Buffer(env, 1000, ByReward(), evict=evict, per_condition=3)
    given: list[tuple[float, int, float, Any]] = []  # temperature, age, log-reward, trajectory
    for step, t in enumerate(in_batches(uniform(env, batch_size=8, group_size=1), 6)):
        buffer.add(t, step)
        rows = zip(t.initial.temperature.tolist(), t.log_reward.tolist(), listed(t), strict=True)
        given += [(heat, 8 * step + i, reward, one) for i, (heat, reward, one) in enumerate(rows)]
        wanted: list[tuple[int, Any]] = []
        for heat in {row[0] for row in given}:
            of_one = [row for row in given if row[0] == heat]
            ordered = of_one if evict == "oldest" else sorted(of_one, key=lambda row: row[2])  # stable: older first
            wanted += [(row[1], row[3]) for row in ordered[-3:]]
        contents = buffer.contents()
        assert contents is not None
        assert listed(contents) == [one for _, one in sorted(wanted, key=lambda pair: pair[0])]
        if evict == "lowest":  # what has gone does not come back
            given = [row for row in given if row[1] in {place for place, _ in wanted}]


def test_worn_out_trajectories_are_drawn_so_often_and_no_more() -> None:
    env = grid()
    buffer = Buffer(env, 100, max_reuse=3, replacement=False)
    buffer.add(numbered(10), 0)
    for step in range(3):
        assert sorted(buffer.draw(1, 10, step).log_reward.tolist()) == list(range(10))
    with pytest.raises(ValueError, match=r"may be used at step 7 with max_age=None and max_reuse=3"):
        buffer.draw(1, 1, 7)


def test_what_an_older_policy_sampled_goes_when_its_time_is_over() -> None:
    env = grid()
    buffer = Buffer(env, 100, max_age=2)
    for step, t in enumerate(in_batches(uniform(env, batch_size=4), 6)):
        buffer.add(t, step)
        drawn = buffer.draw(1, 200, step)
        assert set(drawn.policy_version.tolist()) == set(range(max(0, step - 2), step + 1))
    with pytest.raises(ValueError, match=r"may be used at step 8 with max_age=2"):
        buffer.draw(1, 1, 8)


def test_without_replacement_nothing_comes_twice_while_there_is_enough() -> None:
    env = grid()
    buffer, again = Buffer(env, 100, replacement=False), Buffer(env, 100)
    for one in (buffer, again):
        one.add(numbered(30), 0)
    assert most_often(buffer.draw(1, 30, 0)) == 1
    assert most_often(buffer.draw(3, 10, 0)) == 1
    assert most_often(buffer.draw(2, 30, 0)) == 2, "each group is whole"
    assert most_often(buffer.draw(1, 31, 0)) > 1
    assert most_often(again.draw(1, 30, 0)) > 1


def test_without_replacement_every_initial_state_comes_once() -> None:
    env = Conditioned(4, 2)
    buffer = Buffer(env, 100, replacement=False)
    buffer.add(uniform(env, batch_size=60, group_size=1)(0), 0)
    for _ in range(10):
        t = buffer.draw(3, 4, 0)
        assert len(t.initial.temperature[::4].unique()) == 3


@pytest.mark.parametrize("settings", [{"per_condition": 0}, {"max_reuse": 0}, {"max_age": -1}])
def test_limits_that_allow_nothing_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="per_condition and max_reuse must be at least 1 and max_age at least 0"):
        Buffer(grid(), **settings)


# Refreshed


def test_with_the_latest_batch_alone_it_is_that_batch() -> None:
    env = grid(16)
    twin = uniform(env, batch_size=8)
    sampler = Refreshed(uniform(env, batch_size=8), Buffer(env, 100, replacement=False), newest=1.0, every=1)
    for step in range(4):
        assert sorted(listed(sampler(step))) == sorted(listed(twin(step)))


def test_the_latest_batch_has_its_share_and_the_rest_is_from_all() -> None:
    env = grid()
    sampler = Refreshed(
        uniform(env, batch_size=50), Buffer(env, 1000), newest=Linear(0.0, 1.0, 100), every=5, batch_size=40
    )
    shares: list[float] = []
    for step in range(100):
        t = sampler(step)
        assert sampler.refreshed == step - step % 5
        assert int(t.policy_version.max()) <= sampler.refreshed
        if step >= 50:
            shares.append(float((t.policy_version == sampler.refreshed).double().mean()))
        said = sampler.settings(step)
        assert said["lag_max"] == step - int(t.policy_version.min())
        assert said["stored"] == len(sampler.buffer) == min(1000, 50 * (step // 5 + 1))
    # On the average ¾ are asked of the latest batch; of the others some are from it, too: one in 15 of what is stored.
    assert sum(shares) / 50 == pytest.approx(0.75 + 0.25 / 15, abs=5 * math.sqrt(0.19 / 2000) + 0.01)


def test_groups_are_whole_and_may_be_smaller_than_those_of_the_source() -> None:
    env = Conditioned(4, 2)
    source = uniform(env, batch_size=24, group_size=6)
    sampler = Refreshed(source, Buffer(env, 100), every=2, batch_size=12, group_size=4)
    assert not sampler.one_group
    for step in range(6):
        t = sampler(step)
        assert t.group.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        temperature = t.initial.temperature.reshape(3, 4)
        assert (temperature == temperature[:, :1]).all()


def test_each_trajectory_is_learned_from_as_often_as_it_may_be() -> None:
    env = grid()
    buffer = Buffer(env, 100, max_reuse=2, replacement=False)
    source = uniform(env, batch_size=16)
    sampler = Refreshed(source, buffer, newest=0.5, every=2, batch_size=8)
    made = iter(range(10_000))
    add = buffer.add
    buffer.add = lambda t, step: add(replace(t, log_reward=torch.tensor([float(next(made)) for _ in t.lengths])), step)
    count = Counter[float]()
    for step in range(40):
        count.update(sampler(step).log_reward.tolist())
    assert max(count.values()) == 2
    assert sum(count.values()) == 320


def test_asynchronous_searchers_refresh_it() -> None:
    env = grid()
    policy = network(env)
    source = Asynchronous(env, policy, batch_size=16, max_staleness=1)
    sampler = Refreshed(source, Buffer(env, 200), every=4, batch_size=8)
    for step in range(20):
        t = sampler(step)
        moved(policy)
        assert int(t.policy_version.max()) <= step - step % 4
    assert set(sampler.settings(20)) >= {"queue", "newest_share", "lag_mean"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every must be at least 1"),
        ({"newest": 1.5}, r"newest must lie in \[0, 1\], got 1.5"),
        ({"group_size": 4}, r"needs a source that makes groups \(source.group_size"),
        ({"batch_size": 0}, "batch_size must be a positive multiple"),
        ({"every": 3}, r"8 trajectories that may be used 2 times do not last for every=3 updates on 8"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    env = grid()
    buffer = Buffer(env, 100, max_reuse=2)
    with pytest.raises(ValueError, match=message):
        Refreshed(uniform(env, batch_size=8), buffer, **{"every": 2, **settings})


def test_groups_of_another_size_than_asked_for_are_refused() -> None:
    env = Conditioned(4, 2)
    sampler = Refreshed(uniform(env, batch_size=24, group_size=6), Buffer(env, 100))
    with pytest.raises(ValueError, match="positive multiple of group_size=6"):
        sampler(0, 8)
    whole: Trajectories[Any] = sampler(0, 12)
    assert len(whole) == 12
