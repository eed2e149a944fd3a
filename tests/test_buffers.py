"""Buffers against plain lists: what stays, what is drawn, and that nothing stored ever changes."""

from __future__ import annotations

import io
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from envs.hypergrid import GridStates, Hypergrid
from gfn import buffers
from gfn.buffers import Buffer, trajectory_bytes
from gfn.policies import Uniform
from gfn.priorities import ByRank, ByReward, Recent
from gfn.sampling import rollout
from gfn.trajectories import Trajectories
from tests.stored import Conditioned, grid, listed, uniform
from tests.toy_environments import Palindromes, Texts, Words
from tests.trainers import same


def batches(env: Hypergrid, count: int = 12, size: int = 7, **settings: Any) -> list[Trajectories[GridStates]]:
    sampler = uniform(env, batch_size=size, **settings)
    return [sampler(step) for step in range(count)]


def filled(buffer: Buffer[GridStates], given: list[Trajectories[GridStates]]) -> list[tuple[Any, ...]]:
    """Add every batch; returns all trajectories that were given, oldest first."""
    for step, t in enumerate(given):
        buffer.add(t, step)
    return [one for t in given for one in listed(t)]


def kept(buffer: Buffer[GridStates]) -> list[tuple[Any, ...]]:
    contents = buffer.contents()
    return [] if contents is None else listed(contents)


@pytest.mark.parametrize("capacity", [1, 5, 7, 20, 200])
def test_the_oldest_go_first(capacity: int) -> None:
    env = grid()
    buffer = Buffer(env, capacity)
    given = filled(buffer, batches(env))
    assert kept(buffer) == given[-capacity:]
    assert len(buffer) == min(capacity, 84)
    held = sum(len(batch) for batch in buffer._batches)
    assert held <= capacity + capacity // 4, "what was let go of is still in memory"


def test_the_lowest_rewards_go_first_and_the_older_of_equals() -> None:
    env = grid()
    buffer = Buffer(env, 10, ByReward(), evict="lowest")
    alive: list[tuple[float, int, tuple[Any, ...]]] = []
    for step, t in enumerate(batches(env)):
        buffer.add(t, step)
        alive += [(float(r), len(alive) + 100 * step, one) for r, one in zip(t.log_reward, listed(t), strict=True)]
        alive = sorted(sorted(alive, key=lambda x: x[:2])[-10:], key=lambda x: x[1])
    assert kept(buffer) == [one for _, _, one in alive]
    assert len({reward for reward, _, _ in alive}) < len(alive), "there are equals among them"


@pytest.mark.parametrize("unique", ["terminal", "trajectory"])
def test_the_newest_of_the_same_is_kept(unique: Any) -> None:
    env = grid()
    buffer = Buffer(env, 1000, unique=unique)
    newest: dict[Any, tuple[Any, ...]] = {}
    for step, t in enumerate(batches(env)):
        buffer.add(t, step)
        for b, one in enumerate(listed(t)):
            key = t.final[b : b + 1].coords.tolist() if unique == "terminal" else t[b : b + 1].actions.tolist()
            newest.pop(str(key), None)
            newest[str(key)] = one
    assert kept(buffer) == list(newest.values())
    assert len(buffer) < 84


def test_the_same_actions_from_another_start_are_another_trajectory() -> None:
    env = Conditioned(2, 2)
    buffer = Buffer(env, 1000, unique="trajectory")
    whole = Trajectories.cat(batches(env, group_size=1))
    buffer.add(whole, 0)
    different = {(one[0], one[1]) for one in listed(whole)}
    assert len(buffer) == len(different) > len({one[1] for one in listed(whole)})


def test_draws_follow_the_priority_and_the_age() -> None:
    env = grid()
    for priority, weight in (
        (ByReward(0.5), lambda reward, age: math.exp(reward / 2)),
        (Recent(3.0), lambda reward, age: 0.5 ** (age / 3)),
    ):
        buffer = Buffer(env, 10, priority)
        given = batches(env, 4, 3)
        filled(buffer, given)
        # Twelve were added, the two oldest are gone.
        weights = [weight(float(r), 5 - step) for step, t in enumerate(given) for r in t.log_reward][2:]
        drawn = Counter(listed(buffer.draw(1, 4000, 5)))
        wanted = Counter[tuple[Any, ...]]()
        for one, share in zip(kept(buffer), weights, strict=True):
            wanted[one] += share / sum(weights)  # equal trajectories count together
        for one, share in wanted.items():
            assert drawn[one] == pytest.approx(4000 * share, abs=5 * math.sqrt(4000 * share))
        assert drawn.keys() <= wanted.keys()


def test_groups_are_from_one_initial_state() -> None:
    env = Conditioned(4, 2)
    buffer = Buffer(env, 100)
    filled(buffer, batches(env, size=8, group_size=2))
    t = buffer.draw(20, 5, 0)
    assert t.group.tolist() == [g for g in range(20) for _ in range(5)]
    temperature = t.initial.temperature.reshape(20, 5)
    assert (temperature == temperature[:, :1]).all()
    assert len(temperature.unique()) == 3


def test_nothing_stored_changes_when_it_is_drawn_or_when_its_origin_is_written_over() -> None:
    env = grid()
    buffer = Buffer(env, 50, ByRank())
    given = batches(env)
    before = filled(buffer, given)[-50:]
    drawn = buffer.draw(2, 10, 3)
    contents = buffer.contents()
    assert contents is not None
    for t in (*given, drawn, contents):
        for x in (t.states.coords, t.actions, t.lengths, t.log_reward, t.behaviour_log_prob, t.policy_version):
            x.fill_(-99)
    assert kept(buffer) == before
    rollout(env, Uniform(env.forward_mask), buffer.draw(1, 20, 4).initial)
    assert kept(buffer) == before


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class KeptTexts(Texts):
    """Texts that can be written as tensors: the letters' numbers, zero after the end."""

    def __getitem__(self, index):
        return KeptTexts(super().__getitem__(index).texts)

    def tensors(self):
        return {"letters": torch.tensor([[ord(c) for c in text.ljust(3, "\0")] for text in self.texts]).reshape(-1, 3)}

    @classmethod
    def from_tensors(cls, tensors):
        return cls(["".join(chr(c) for c in row if c) for row in tensors["letters"].tolist()])


class KeptPalindromes(Palindromes):
    def reset(self, n, generator=None):
        return KeptTexts([""] * n)

    def step(self, states, actions):
        return KeptTexts(super().step(states, actions).texts)


@pytest.mark.parametrize("env", [grid(), Conditioned(4, 2), Words(), KeptPalindromes()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("unique", ["none", "terminal", "trajectory"])
def test_a_buffer_goes_on_bit_for_bit(env: Any, unique: Any) -> None:
    def fresh(seed: int) -> Buffer[Any]:
        return Buffer(env, 20, ByReward(), unique=unique, seed=seed)

    def sampled(step: int) -> Trajectories[Any]:
        seeded = torch.Generator().manual_seed(step)
        return rollout(env, Uniform(env.forward_mask), env.reset(9, seeded), generator=seeded, version=step)

    first, second = fresh(0), fresh(1)
    for step in range(5):
        first.add(sampled(step), step)
        first.draw(2, 3, step)
    second.load_state_dict(through_a_file(first.state_dict()))
    for step in range(5, 9):
        for buffer in (first, second):
            buffer.add(sampled(step), step)
        assert same(first.draw(2, 3, step).tensors(), second.draw(2, 3, step).tensors())
    assert same(first.state_dict(), second.state_dict())


def test_an_empty_buffer_goes_on_too() -> None:
    env = grid()
    first, second = Buffer(env, 5), Buffer(env, 5, seed=1)
    second.add(uniform(env)(0), 0)
    second.load_state_dict(through_a_file(first.state_dict()))
    assert len(second) == 0
    assert same(first.state_dict(), second.state_dict())


def test_more_than_the_machine_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    env = grid()
    t = uniform(env, batch_size=64)(0)
    longest = t[t.lengths == t.lengths.max()][:1]
    longest = replace(longest, actions=longest.actions.long())
    tensors = [*longest.tensors().pop("states").values(), *(x for n, x in longest.tensors().items() if n != "states")]
    used = sum(x.numel() * x.element_size() for x in tensors)
    assert 0.8 * used <= trajectory_bytes(env.reset(1), int(longest.lengths)) <= 2 * used
    one = trajectory_bytes(env.reset(1), env.max_steps)
    monkeypatch.setattr(buffers, "machine_memory", lambda: 100 * one)
    Buffer(env, 100)
    with pytest.raises(ValueError, match=r"101 trajectories of up to 7 steps in Hypergrid .* capacity to at most 100$"):
        Buffer(env, 101)


def test_the_machine_has_a_memory_that_a_small_buffer_fits_and_an_absurd_one_does_not() -> None:
    assert 1e8 < buffers.machine_memory() < 1e15
    with pytest.raises(ValueError, match="set capacity to at most"):
        Buffer(grid(), 10**15)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be at least 1 trajectory, got 0"),
        ({"unique": "state"}, "unique must be none, terminal or trajectory"),
        ({"evict": "newest"}, "evict oldest or lowest"),
    ],
)
def test_options_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Buffer(grid(), **settings)


def test_drawing_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing is stored yet"):
        Buffer(grid()).draw(1, 1, 0)


def test_states_that_cannot_be_written_down_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"Texts cannot be stored: derive it from TensorStates, or give it tensors\(\)"):
        Buffer(Palindromes(), 5)


def test_a_smaller_buffer_does_not_take_over_a_larger_one() -> None:
    env = grid()
    large = Buffer(env, 20)
    filled(large, batches(env))
    with pytest.raises(ValueError, match="20 stored trajectories are more than capacity=10"):
        Buffer(env, 10).load_state_dict(large.state_dict())
