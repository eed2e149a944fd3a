"""Samplers of trajectories that the current policy did not draw, against plain expectations."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from envs.hypergrid import GridStates, Hypergrid
from gfn.exact import log_terminal, state_graph
from gfn.policies import Uniform, UniformBackward
from gfn.samplers import (
    BackwardFromData,
    Jittered,
    Mixture,
    OnPolicy,
    Repeated,
    Sampler,
    Stale,
    Synchronised,
    every_terminal,
)
from gfn.samplers.sampler import apportion
from gfn.schedules import Linear
from tests.composing import SMALL, built
from tests.stored import Conditioned, biased, grid, in_batches, listed, moved, network, replay, uniform
from tests.trainers import Unlisted, same

# Data


def test_terminal_states_of_a_data_set_are_drawn_and_walked_back() -> None:
    env = grid()
    data = every_terminal(env)[torch.tensor([3, 7, 12])]
    policy = UniformBackward(env)
    sampler = BackwardFromData(env, policy, data, batch_size=3000)
    t = sampler(4)
    count = Counter(str(x) for x in t.final.coords.tolist())
    assert count.keys() == {str(x) for x in data.coords.tolist()}
    assert all(abs(n - 1000) < 130 for n in count.values())
    assert bool(env.is_initial(t.initial).all())
    assert same(env.step(t.sources, t.actions).tensors(), t.targets.tensors()), "every path leads forward to its end"
    assert t.behaviour_log_prob.equal(policy.log_prob_backward(t))
    assert t.policy_version.tolist() == [4] * 3000
    assert listed(BackwardFromData(env, policy, lambda e: data, batch_size=3000)(4)) == listed(t)


@pytest.mark.parametrize("power", [0.0, 1.0, Linear(0.0, 4.0, 10)])
def test_draws_follow_the_reward_to_a_power(power: Any) -> None:
    env = grid()
    sampler = BackwardFromData(env, UniformBackward(env), every_terminal, 20000, inverse_temperature=power)
    t = sampler(5)
    exponent = sampler.settings(5)["inverse_temperature"]
    wanted = (exponent * env.log_reward(every_terminal(env))).softmax(0)
    drawn = torch.bincount(env.index(t.final) - 16, minlength=16) / 20000
    assert (drawn - wanted).abs().max() < 5 * math.sqrt(0.25 / 20000)


def test_groups_of_data_are_from_one_initial_state() -> None:
    env = Conditioned(3, 2)
    sampled = uniform(env, batch_size=30, group_size=1)(0).final
    grouped = BackwardFromData(env, UniformBackward(env), sampled, 20, group_size=5)(0)
    assert grouped.group.tolist() == [g for g in range(4) for _ in range(5)]
    temperature = grouped.initial.temperature.reshape(4, 5)
    assert (temperature == temperature[:, :1]).all()
    alone = BackwardFromData(env, UniformBackward(env), sampled, 20)(0)
    pairs = set(zip(alone.group.tolist(), alone.initial.temperature.tolist(), strict=True))
    assert len(pairs) == len(alone.group.unique()) == len(alone.initial.temperature.unique()) == 3


# Mixtures, delays, repetitions


@pytest.mark.parametrize(
    ("total", "weights", "unit", "wanted"),
    [
        (10, [1, 1], 1, [5, 5]),
        (10, [1, 2], 1, [3, 7]),
        (7, [1, 1, 1], 1, [3, 2, 2]),
        (12, [1, 2], 4, [4, 8]),
        (12, [5, 1], 4, [12, 0]),  # halves of a group: the earlier part gets the whole
        (8, [0, 3], 2, [0, 8]),
        (5, [0.2, 0.2, 0.6], 1, [1, 1, 3]),
    ],
)
def test_parts_are_whole_groups_by_largest_remainder(total: int, weights: Any, unit: int, wanted: list[int]) -> None:
    assert apportion(total, weights, unit) == wanted


def test_a_mixture_is_its_parts_one_after_another() -> None:
    env = grid()
    one, two = uniform(env, seed=1), BackwardFromData(env, UniformBackward(env), every_terminal, seed=2)
    twins = uniform(env, seed=1), BackwardFromData(env, UniformBackward(env), every_terminal, seed=2)
    sampler = Mixture([one, two], [Linear(4.0, 0.0, 4), 4.0], batch_size=12)
    for step, sizes in enumerate([(6, 6), (5, 7), (4, 8), (2, 10), (0, 12)]):
        t = sampler(step)
        parts = [twin(step, size) for twin, size in zip(twins, sizes, strict=True) if size]
        assert listed(t) == [one for part in parts for one in listed(part)]
        assert t.group.tolist() == [0] * 12
        assert sampler.settings(step)["share_0"] == sizes[0] / 12
    assert sampler.settings(0)["inverse_temperature_1"] == 0.0


def test_ratios_on_the_command_line_may_be_schedules(tmp_path: Path) -> None:
    plain = built(tmp_path, *SMALL, "sampler=mixture", "sampler.ratios=[linear:3:1:2,constant:1]")
    sampler = plain.parts["sampler"]
    assert [sampler.settings(step)["share_0"] for step in (0, 2)] == [0.75, 0.5]


def test_groups_of_a_mixture_stay_apart() -> None:
    env = Conditioned(4, 2)
    parts = [uniform(env, batch_size=6, group_size=3, seed=seed) for seed in (1, 2)]
    sampler = Mixture(parts, [1, 1])
    assert sampler(0).group.tolist() == [g for g in range(4) for _ in range(3)]
    assert sampler(0, 9).group.tolist() == [g for g in range(3) for _ in range(3)]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_batch_is_used_exactly_that_many_updates_later(lag: int) -> None:
    env = grid()
    policy, twin = network(env), network(env)
    delayed, prompt = Stale(env, OnPolicy(env, policy, 8), lag), OnPolicy(env, twin, 8)
    fresh: list[Any] = []
    for step in range(8):
        fresh.append(listed(prompt(step)))
        t = delayed(step)
        assert listed(t) == fresh[max(step - lag, 0)]
        assert t.policy_version.tolist() == [max(step - lag, 0)] * 8
        torch.manual_seed(step)
        moved(policy)
        torch.manual_seed(step)
        moved(twin)
    assert fresh[0] != fresh[1]


@pytest.mark.parametrize("every", [1, 3])
def test_a_policy_is_brought_up_to_date_every_few_updates(every: int) -> None:
    env = grid()
    policy, twin = network(env), network(env)
    sampler, prompt = Synchronised(env, OnPolicy(env, policy, 8), every), OnPolicy(env, twin, 8)
    ages: list[float] = []
    for step in range(7):
        if step % every == 0:
            fresh = [listed(prompt(step)) for _ in range(every)]
        t = sampler(step)
        assert listed(t) == fresh[step % every]
        assert t.policy_version.tolist() == [step - step % every] * 8
        ages.append(sampler.settings(step)["lag"])
        torch.manual_seed(step)
        moved(policy)
        torch.manual_seed(step)
        moved(twin)
    assert ages == [step % every for step in range(7)]


def test_ages_of_batches_are_random_and_bounded() -> None:
    """As likely to be 0, 1, 2 or 3 updates, once there are as many batches."""
    env = grid()
    policy, twin = network(env), network(env)
    sampler, prompt = Jittered(env, OnPolicy(env, policy, 8), 3, seed=1), OnPolicy(env, twin, 8)
    fresh: list[Any] = []
    ages: list[int] = []
    for step in range(403):
        fresh.append(listed(prompt(step)))
        t = sampler(step)
        version = int(t.policy_version[0])
        assert listed(t) == fresh[version]
        ages.append(step - version)
        assert sampler.settings(step)["lag"] == ages[-1]
    assert max(ages[:3]) <= 2
    assert chisquare([ages[3:].count(age) for age in range(4)]).pvalue > 0.01


def test_each_batch_is_repeated() -> None:
    env = grid()
    sampler = Repeated(env, uniform(env, batch_size=4), 3)
    given = [listed(t) for t in in_batches(sampler, 7)]
    twin = uniform(env, batch_size=4)
    fresh = [listed(twin(step)) for step in (0, 3, 6)]
    assert given == [fresh[i // 3] for i in range(7)]
    assert len(sampler(7, 6)) == 6


# What is refused


def refused(env: Hypergrid) -> dict[str, tuple[Any, str]]:
    backward, on = UniformBackward(env), uniform(env)
    grouped = uniform(env, batch_size=8, group_size=4)
    none = every_terminal(env)[:0]
    return {
        "averaging": (lambda: uniform(env, averaging=1.0), r"averaging must lie in \[0, 1\), got 1.0"),
        "ratio": (lambda: replay(env, ratio=-0.5), "Replay: ratio must be finite and at least 0, got -0.5"),
        "ratio later": (lambda: replay(env, ratio=Linear(0, -1, 2))(2), "must not be negative, got -1.0 at step 2"),
        "reexpand": (lambda: replay(env, reexpand=True), "reexpand needs a backward policy"),
        "replay size": (lambda: replay(env, group_size=4, batch_size=6), "multiple of group_size=4, got 6"),
        "no data": (lambda: BackwardFromData(env, backward, none), "the data set is empty"),
        "unfinished": (
            lambda: BackwardFromData(env, backward, env.enumerate()),
            r"16 of 32 states in the data set are not terminal, such as number 0: 0 0$",
        ),
        "power": (lambda: BackwardFromData(env, backward, every_terminal, inverse_temperature=-1.0), "at least 0"),
        "unlisted": (lambda: every_terminal(Unlisted(4, 2)), "every_terminal needs an environment with enumerate"),
        "data size": (lambda: BackwardFromData(env, backward, every_terminal, 6, 4), "multiple of group_size=4, got 6"),
        "count": (lambda: Mixture([on, on], [1]), "2 samplers and 1 ratios"),
        "nothing": (lambda: Mixture([], []), "0 samplers and 0 ratios"),
        "zero": (lambda: Mixture([on, on], [0, 0]), r"ratios at step 0: .* not all zero"),
        "negative": (lambda: Mixture([on, on], [1, -1]), "not negative"),
        "later": (lambda: Mixture([on, on], [Linear(1, -1, 2), 1])(2), "ratios at step 2: .* not negative"),
        "unlike": (lambda: Mixture([on, grouped], [1, 1]), r"must have one group_size, or all none; got \[16, 4\]"),
        "lag": (lambda: Stale(env, on, -1), "lag must not be negative, got -1"),
        "jitter": (lambda: Jittered(env, on, -1), "lag must not be negative, got -1"),
        "every": (lambda: Synchronised(env, on, 0), "every must be at least 1, got 0"),
        "times": (lambda: Repeated(env, on, 0), "times must be at least 1, got 0"),
    }  # fmt: skip


@pytest.mark.parametrize("case", refused(grid()))
def test_bad_input_is_refused_with_the_reason(case: str) -> None:
    make, message = refused(grid())[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_a_size_that_is_no_multiple_is_refused_by_every_sampler() -> None:
    env = grid()
    grouped = uniform(env, batch_size=8, group_size=4)
    data = BackwardFromData(env, UniformBackward(env), every_terminal, 8, group_size=4)
    late = Stale(env, grouped, 0), Synchronised(env, grouped, 1), Jittered(env, grouped, 0)
    made = Mixture([grouped, data], [1, 1]), Repeated(env, grouped), *late
    samplers: list[Sampler[GridStates]] = [grouped, data, replay(env, group_size=4), *made]
    for sampler in samplers:
        assert len(sampler(0, 12)) == 12
        for size in (0, -4, 6):
            with pytest.raises(ValueError, match=rf"asked for {size} trajectories; expected a positive multiple of"):
                sampler(0, size)


@pytest.mark.parametrize("kind", [Stale, Synchronised])
def test_a_delayed_batch_of_another_size_is_refused(kind: Any) -> None:
    sampler = kind(grid(), uniform(grid()), 2)
    sampler(0, 8)
    with pytest.raises(ValueError, match="asked for 4 trajectories at step 1, and 8 were sampled at step 0"):
        sampler(1, 4)


def test_the_uniform_policy_reaches_every_end() -> None:
    """Full support, which the tests of learning from it rely on."""
    env = grid()
    assert log_terminal(state_graph(env), Uniform(env.forward_mask)).min() > -10
    assert log_terminal(state_graph(env), biased(env)).min() > -math.inf
