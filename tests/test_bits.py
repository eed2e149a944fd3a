"""Bit sequences: the contract, rewards and modes by hand, numbers of trajectories, and learning to the exact answer."""

from __future__ import annotations

import math
from itertools import product
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.bits import BLOCKS, EMPTY, Append, BitSequences, Insert, PrependAppend, published_modes
from gfn import exact
from gfn.check import check_environment
from gfn.environment import TooManyStatesError, as_multimodal
from gfn.evaluation import Evaluator
from gfn.flows import ForwardLooking, MLPFlow
from gfn.objectives import LearnedLogZ, Objective, ReverseKL
from gfn.policies import CertainBackward, MLPPolicy, UniformBackward
from gfn.samplers import OnPolicy
from gfn.training import Trainer

WAYS: dict[str, type[BitSequences]] = {"append": Append, "prepend_append": PrependAppend, "insert": Insert}
TINY: dict[str, Any] = {"bits": 6, "word": 2, "modes": ["000000", "110101"], "exponent": 1.0, "radius": 1}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "single_bits": {"bits": 4, "word": 1, "modes": ["0110"], "exponent": 0.5},
    "one_word": {"bits": 3, "word": 3, "modes": ["011", "100"]},
    "blocks": {"bits": 8, "word": 4, "modes": 5},
    "published": {},
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
def test_contract(way: str, size: str) -> None:
    kept = check_environment(WAYS[way](**SIZES[size]), n=8 if size == "published" else 32)
    assert "modes" in kept
    assert ("enumerate" in kept) == (size != "published")


@pytest.mark.parametrize("way", WAYS)
def test_every_sequence_has_its_reward(way: str) -> None:
    env = WAYS[way](**TINY)
    graph = exact.state_graph(env)
    final = graph.states[graph.terminal]
    texts = ["".join(text.split()) for text in env.describe(final)]
    assert sorted(texts) == ["".join(digits) for digits in product("01", repeat=6)]
    nearest = [min(sum(a != b for a, b in zip(text, mode, strict=True)) for mode in TINY["modes"]) for text in texts]
    assert (-graph.log_reward).tolist() == nearest
    labels = env.modes(final)
    expected = [0 if text.count("1") <= 1 else -1 for text in texts]
    assert [label if label == 0 else -1 for label in labels["modes"].tolist()] == expected
    assert int((labels["modes"] == 1).sum()) == 7
    assert [texts[i] for i in (labels["mode_states"] >= 0).nonzero().flatten()] == TINY["modes"]
    assert env.mode_counts == {"modes": 2, "mode_states": 2}
    assert as_multimodal(env) is env
    doubled = WAYS[way](**{**TINY, "exponent": 2.0})
    torch.testing.assert_close(doubled.log_reward(final), 2 * graph.log_reward)


@pytest.mark.parametrize(
    ("way", "count"),
    # 3 words: in order; at 2 ends, 2 edges each for the first; in 3! orders
    [("append", 1), ("prepend_append", 2**3), ("insert", 6)],
)
def test_trajectories_to_each_sequence(way: str, count: int) -> None:
    env = WAYS[way](bits=3, word=1, modes=["010"])
    t = exact.all_trajectories(exact.state_graph(env))
    assert (t.lengths == 3).all()
    reached = torch.bincount(env.index(t.final))
    if way == "prepend_append":  # x is made by choosing which word came first, then an end for each of the others
        assert int(reached.sum()) == 8 * count
    else:
        assert set(reached[reached > 0].tolist()) == {count}


def test_ways_of_writing_by_hand() -> None:
    pair: dict[str, Any] = {"bits": 6, "word": 2, "modes": ["000000"]}
    state = torch.tensor([[1, EMPTY, EMPTY]])
    assert Append(**pair).step(state, torch.tensor([3])).tolist() == [[1, 3, EMPTY]]
    env = PrependAppend(**pair)
    assert env.step(state, torch.tensor([3])).tolist() == [[1, 3, EMPTY]]
    assert env.step(state, torch.tensor([7])).tolist() == [[3, 1, EMPTY]]
    assert env.backward_mask(torch.tensor([[3, 1, EMPTY]])).nonzero()[:, 1].tolist() == [1, 7]
    assert env.backward_mask(state).nonzero()[:, 1].tolist() == [1, 5], "the first word has two edges"
    insert = Insert(**pair)
    assert insert.step(state, torch.tensor([2 * 4 + 3])).tolist() == [[1, EMPTY, 3]]
    assert insert.backward_mask(torch.tensor([[1, EMPTY, 3]])).nonzero()[:, 1].tolist() == [1, 11]
    assert insert.describe(torch.tensor([[1, EMPTY, 3]])) == ["01 -- 11"]
    with pytest.raises(ValueError, match=r"Insert\.step: action 0 is not allowed in state 01 -- --"):
        insert.step(state, torch.tensor([0]))


@pytest.mark.parametrize("way", WAYS)
def test_features_tell_states_apart(way: str) -> None:
    env = WAYS[way](**TINY)
    features = env.encode(env.enumerate())
    assert features.shape == (len(env.enumerate()), env.n_features)
    assert len(features.unique(dim=0)) == len(features)


@pytest.mark.parametrize("way", ["append", "insert"])
def test_potential_is_the_best_reward_still_possible_near_one_mode(way: str) -> None:
    """With one mode it is the largest reward that can be reached; in the end it is the reward."""
    env: Any = WAYS[way](bits=4, word=1, modes=["0110"], exponent=1.5)
    graph = exact.state_graph(env)
    best = torch.full((graph.n,), -math.inf, dtype=torch.float64)
    best[graph.terminal] = graph.log_reward
    for source, target in reversed(list(zip(graph.source.tolist(), graph.target.tolist(), strict=True))):
        best[source] = max(best[source], best[target])
    torch.testing.assert_close(env.log_potential(graph.states), best)
    ForwardLooking(env, MLPFlow(env, MLPPolicy(env, 8, 1)))
    other = PrependAppend(**TINY)
    correction = MLPFlow(other, MLPPolicy(other, 8, 1))
    with pytest.raises(ValueError, match="PrependAppend has none"):
        ForwardLooking(other, correction)


def test_published_modes() -> None:
    env = Append()
    modes = published_modes(120, 60, seed=0)
    assert len(set(modes)) == 60 == env.mode_counts["modes"]
    assert {mode[i : i + 8] for mode in modes for i in range(0, 120, 8)} == set(BLOCKS)
    assert published_modes(120, 60, seed=0) == modes != published_modes(120, 60, seed=1)
    assert set(published_modes(8, 5, seed=3)) == set(BLOCKS)
    states = env.words_of(env.mode_bits)
    assert env.log_reward(states).tolist() == [0.0] * 60
    assert env.modes(states)["mode_states"].tolist() == list(range(60))
    assert env.distance(states[:3], states[3:6]).tolist() == [
        sum(a != b for a, b in zip(modes[i], modes[i + 3], strict=True)) for i in range(3)
    ]


def test_published_test_set() -> None:
    env = Append()
    states = env.benchmark_states(torch.Generator().manual_seed(0))
    assert states.shape == (60 * 120, 15)
    assert env.is_terminal(states).all()
    origin = env.words_of(env.mode_bits).repeat_interleave(120, 0)
    assert env.distance(states, origin).tolist() == list(range(120)) * 60
    again = env.benchmark_states(torch.Generator().manual_seed(0))
    assert torch.equal(states, again)
    assert not torch.equal(states, env.benchmark_states(torch.Generator().manual_seed(1)))
    flips = (env.bits_of(states)[0] != env.bits_of(origin)[0]).float().mean(0)  # each bit in half of all cases
    assert float((flips - 119 / 240).abs().max()) < 4 * (0.25 / 7200) ** 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bits": 12, "word": 5}, "got word=5"),
        ({"bits": 12, "word": 4}, "multiple of 8"),
        ({"bits": 8, "modes": 6}, "1 to 5 modes"),
        ({"bits": 4, "word": 4, "modes": ["0101", "011"]}, "distinct texts of 4 digits"),
        ({"bits": 2, "word": 1, "modes": ["01", "01"]}, "distinct texts"),
        ({"exponent": 0.0}, "exponent > 0"),
        ({"radius": -1}, "radius=-1"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Insert(**wrong)


@pytest.mark.parametrize("way", WAYS)
def test_the_published_size_says_how_to_evaluate_it(way: str) -> None:
    with pytest.raises(TooManyStatesError, match=r"evaluator\.exact=false"):
        WAYS[way]().enumerate()


def learned(way: str, seed: int, steps: int = 500) -> tuple[float, float, float]:
    """TV before and after training by trajectory balance on 16 sequences a step, and the error of log Z."""
    torch.manual_seed(seed)
    env = WAYS[way](**TINY)
    policy: MLPPolicy[Tensor] = MLPPolicy(env, 64, 2)
    backward = CertainBackward(env) if way == "append" else UniformBackward(env)
    objective = Objective(policy, backward, ReverseKL(), LearnedLogZ())
    evaluator = Evaluator(env, objective, n_samples=16)
    untrained = evaluator(0)["tv"]
    Trainer(objective, OnPolicy(env, policy, batch_size=16, seed=seed), steps=steps, lr=3e-3).run()
    return untrained, evaluator(1)["tv"], evaluator(1)["log_z_error"]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_learns_the_exact_distribution(way: str) -> None:
    """64 sequences of two modes, 8 000 trajectories each."""
    runs = [learned(way, seed) for seed in range(3)]
    assert min(untrained for untrained, _, _ in runs) > 0.3
    assert median(tv for _, tv, _ in runs) <= 0.02
    assert median(abs(error) for _, _, error in runs) <= 0.02
