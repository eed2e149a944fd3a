"""States of syntheses: wrong steps and ways back are refused, and molecules are kept for as long as they are used."""

from __future__ import annotations

import gc
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.molecules import Molecules
from envs.synthesis.rewards.reward import Values
from gfn.buffers import Buffer
from gfn.environment import RewardError, TooManyStatesError
from gfn.states import cat
from gfn.trajectories import Trajectories
from tests.synthetic import (
    ACID,
    AMIDE,
    AMINE,
    BOC,
    TINY,
    block_of,
    move_of,
    sampled,
    states_at,
    synthesis,
    tiny,
    wrong_steps,
)


@pytest.mark.parametrize("kind", wrong_steps(tiny()))
def test_wrong_steps_are_refused(kind: str) -> None:
    """Each names the action and the state, alone and where the rest of the batch is fine."""
    env = tiny()
    smiles, depth, action = wrong_steps(env)[kind]
    state = states_at(env, [smiles], depth)
    with pytest.raises(ValueError, match=r"Synthesis\.step: action .+ is not allowed in state ") as refused:
        env.step(state, torch.tensor([action]))
    assert str(refused.value).endswith(env.describe(state)[0])
    assert env.name_of(action) in str(refused.value)
    fine = torch.tensor([FIRST, 0, 0, 0])
    with pytest.raises(ValueError, match=r"Synthesis\.step: action"):
        env.step(cat([env.reset(1), state]), torch.stack([fine, torch.tensor(action)]))


def test_nothing_follows_a_finished_synthesis() -> None:
    env = tiny()
    t = sampled(env, 4)
    for action in t.actions[:3].tolist():
        with pytest.raises(ValueError, match="is not allowed in state"):
            env.step(t.final[:1], torch.tensor([action]))
    assert not env.move_mask(t.final).any()


def test_actions_in_words() -> None:
    env = tiny()
    couple, acid, key = move_of(env, "amide_coupling"), block_of(env, ACID), env.network.molecules(ACID).key
    assert env.name_of([STOP, 1, 0, key]) == "stop"
    assert env.name_of([FIRST, acid, 0, 0]) == f"begin with {ACID}"
    assert env.name_of([couple, block_of(env, AMINE), 0, key]) == f"amide_coupling with {AMINE} in slot 1, product 0"
    assert env.name_of([move_of(env, "boc_removal"), -1, 0, key]) == "boc_removal, product 0"
    states = cat([env.reset(1), states_at(env, [ACID], 0), states_at(env, [AMIDE], 1), states_at(env, [AMIDE], 2)])
    lines = ["(start)", f"{ACID} after 0 reactions", f"{AMIDE} after 1 reaction", f"{AMIDE} after 2 reactions"]
    assert env.describe(states) == lines


def test_wrong_ways_back_are_refused() -> None:
    env = tiny()
    couple, acid, amine = move_of(env, "amide_coupling"), block_of(env, ACID), block_of(env, AMINE)
    key = {m: env.network.molecules(m).key for m in (ACID, AMINE, AMIDE, BOC)}
    product, block = states_at(env, [AMIDE], 1), states_at(env, [ACID], 0)
    right = torch.tensor([[couple, amine, 0, key[ACID]]])
    assert env.undo(product, right).smiles == [ACID]
    done = env.step(product, torch.tensor([[STOP, 1, 0, key[AMIDE]]]))
    assert env.undo(done, torch.tensor([[STOP, 1, 0, key[AMIDE]]])).depth.tolist() == [1]
    for state, action in [
        (product, [couple, amine, 0, key[BOC]]),  # the parent does not react so
        (product, [couple, amine, 0, 1234567]),  # no such molecule
        (product, [couple, block_of(env, "NCCN"), 0, key[ACID]]),  # another product comes out
        (product, [couple, amine, 1, key[ACID]]),
        (product, [STOP, 1, 0, key[AMIDE]]),
        (product, [FIRST, acid, 0, 0]),
        (block, [FIRST, amine, 0, 0]),
        (block, [couple, amine, 0, key[ACID]]),
        (states_at(env, [AMIDE], 2), [FIRST, acid, 0, 0]),
        (done, right[0].tolist()),
        (done, [STOP, 0, 0, key[AMIDE]]),
        (done, [STOP, 1, 0, key[ACID]]),
        (env.reset(1), [FIRST, acid, 0, 0]),
    ]:
        with pytest.raises(ValueError, match=r"Synthesis\.(undo|step): action .+ state "):
            env.undo(state, torch.tensor([action]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_reactions": 0}, "max_reactions >= 1"),
        ({"min_reactions": 2}, "min_reactions 0 or 1"),
        ({"exponent": 0.0}, r"positive and finite, got \[0.0\]"),
        ({"exponent": []}, r"positive and finite, got \[\]"),
        ({"exponent": [1.0, float("inf")]}, "positive and finite"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        synthesis(**wrong)


def test_rewards_are_powers_and_bad_ones_are_named() -> None:
    env = synthesis(exponent=[1.0, 3.0])
    states = sampled(env, 64).final
    plain = torch.tensor([float(env.reward([m])[0]) for m in states.smiles], dtype=torch.float64).log()
    torch.testing.assert_close(env.log_reward(states), plain * (1 + 2 * states.condition))
    assert set(states.condition.tolist()) == {0, 1}


@dataclass(frozen=True)
class Constant:
    """A reward that is the same for all molecules, whatever sense that makes."""

    value: float
    name: str = "odd"

    def __call__(self, smiles: Sequence[str]) -> Values:
        return np.full(len(smiles), self.value)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_reward_that_is_none_is_named(value: float) -> None:
    env = synthesis(reward=Constant(value))
    with pytest.raises(RewardError, match=rf"reward odd of {re.escape(ACID)} is {value} \(2 of 2 are bad\); expected"):
        env.log_reward(states_at(env, [ACID, AMINE, ACID], 0))


def test_a_reward_of_zero_is_legal() -> None:
    env = synthesis(reward=Constant(0.0))
    assert env.log_reward(states_at(env, [ACID, AMINE], 0)).tolist() == [-torch.inf] * 2


def test_too_many_states_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.synthesis.listing.MAX_LISTED", 100)
    env: Any = synthesis()
    with pytest.raises(TooManyStatesError, match=r"more than 100 states with 16 blocks .*env\.listed=false"):
        env.enumerate()


def test_states_are_stored_as_tensors_and_read_back() -> None:
    env = synthesis(exponent=[1.0, 2.0])
    t = sampled(env, 32)
    file = io.BytesIO()
    torch.save(t.tensors(), file)
    file.seek(0)
    again = Trajectories.from_tensors(torch.load(file, weights_only=True), env.reset(1))
    assert all(a is b for a, b in zip(again.states.molecule, t.states.molecule, strict=True))
    for name, value in t.tensors().items():
        other = again.tensors()[name]
        assert all(torch.equal(value[k], other[k]) for k in value) if name == "states" else torch.equal(value, other)
    torch.testing.assert_close(env.step(again.sources, again.actions).tensors(), t.targets.tensors())
    empty = t.states[:0]
    assert len(empty.from_tensors(empty.tensors())) == 0


def test_a_buffer_keeps_trajectories() -> None:
    env: Any = tiny()
    buffer, t = Buffer(env, 100, unique="terminal"), sampled(env, 64)
    buffer.add(t, 0)
    assert len(buffer) == len(set(t.final.smiles))
    drawn = buffer.draw(1, 50, 0)
    assert set(drawn.final.smiles) <= set(t.final.smiles)
    assert torch.equal(env.log_reward(drawn.final), drawn.log_reward)
    assert torch.equal(env.index(env.step(drawn.sources, drawn.actions)), env.index(drawn.targets))


def test_molecules_live_as_long_as_something_refers_to_them() -> None:
    molecules = Molecules()
    one = molecules("CCO")
    assert molecules("CCO") is one
    assert molecules.named(one.key) is one
    assert len(molecules) == 2  # and the start
    key = one.key
    del one
    gc.collect()
    assert len(molecules) == 1
    with pytest.raises(KeyError):
        molecules.named(key)
    assert molecules("CCO").key == key == Molecules()("CCO").key


def test_rollouts_do_not_fill_the_memory() -> None:
    env = synthesis(listed=False, max_reactions=3)
    kept = len(env.network.molecules)
    for seed in range(6):
        sampled(env, 64, seed)
    gc.collect()
    assert len(env.network.molecules) == kept == len(TINY) + 1
    t = sampled(env, 64)
    gc.collect()
    assert len(env.network.molecules) == len(set(t.states.smiles) | {b.smiles for b in env.network.blocks})
