"""Figures of completions: by hand, by counting all cases, and by another way to compute the same."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.metrics import distinct, pass_at_k, self_bleu, unique, unique_right
from envs.tokens.summary import summary
from envs.tokens.tasks import Sums
from gfn.callbacks import TensorBoard
from gfn.evaluation import Evaluator
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import Prior, Tabular, UniformBackward
from gfn.sampling import rollout
from gfn.training import Report


def long(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.long)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int) -> None:
    for correct, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(range(n), k))
        share = sum(any(i < correct for i in subset) for subset in subsets) / len(subsets)
        assert pass_at_k(long(correct), long(n), k).tolist() == [share], (correct, k)


def test_pass_at_k_by_hand() -> None:
    """3 right of 10: 1 − C(7, 2)/C(10, 2) = 1 − 21/45; one of 5000 gives k/5000, whatever their factorials are."""
    value = pass_at_k(long(3, 0, 10, 1), long(10, 4, 10, 4), 2)
    assert value.dtype == torch.float64
    assert value.tolist() == [24 / 45, 0.0, 1.0, 0.5]
    assert pass_at_k(long(1), long(5000), 2500).tolist() == [0.5]
    assert pass_at_k(long(), long(), 1).tolist() == []


@pytest.mark.parametrize(("correct", "n", "k"), [(1, 3, 4), (1, 3, 0), (4, 3, 1), (-1, 3, 1)])
def test_pass_at_k_needs_as_many_samples(correct: int, n: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"got k={k} and \(correct, n\)=\({correct}, {n}\)"):
        pass_at_k(long(correct, 1), long(n, 9), k)


def test_distinct_ngrams_by_hand() -> None:
    completions = [[1, 2, 1], [1, 2], [], [3]]
    assert distinct(completions, 1) == 3 / 6  # 1 2 1 1 2 3
    assert distinct(completions, 2) == 2 / 3  # 12 21 12
    assert distinct(completions, 3) == 1.0  # 121
    assert math.isnan(distinct(completions, 4))
    assert distinct([[12, 3], [1, 23]], 2) == 1.0, "tokens are numbers, not their digits"


def test_unique_completions_by_hand() -> None:
    completions = [[1, 2], [2, 1], [1, 2], [], [1], []]
    assert unique(completions) == 4
    assert unique_right(completions, [True, False, True, True, False, False]) == 2
    assert unique_right(completions, [False] * 6) == 0


def test_self_bleu_by_hand() -> None:
    """Precisions of one token, then those of more with one added to both counts; and the price of being short."""
    assert self_bleu([[1, 2, 3, 4, 5]] * 3) == pytest.approx(1.0, abs=1e-12)
    assert self_bleu([[1, 2], [3, 4]]) == 0.0
    # Both have one of two tokens and no pair: sqrt(1/2 · (0 + 1)/(1 + 1)) = 1/2.
    assert self_bleu([[1, 2], [1, 3]]) == pytest.approx(0.5, abs=1e-12)
    # [1] is matched, and short: e^(1 − 3/1). [1, 2, 2] has 1 of 3 tokens, 0 of 2 pairs and of 1 triple.
    assert self_bleu([[1], [1, 2, 2]]) == pytest.approx((math.exp(-2) + (1 / 3 * 1 / 3 * 1 / 2) ** (1 / 3)) / 2)
    # 1 occurs thrice, and at most twice in another one: 2/3, pairs (1 + 1)/(2 + 1), triples (0 + 1)/(1 + 1).
    thrice, twice = (2 / 3 * 2 / 3 * 1 / 2) ** (1 / 3), math.exp(1 - 3 / 2)
    assert self_bleu([[1, 1, 1], [1, 1], [7]]) == pytest.approx((thrice + 1.0 + 0.0) / 3)
    assert self_bleu([[1, 1, 1], [1, 1]]) == pytest.approx((thrice + twice) / 2)
    assert self_bleu([[], [], [1]]) == pytest.approx(2 / 3)
    assert self_bleu([[], [1]]) == 0.0
    assert math.isnan(self_bleu([[1]]))
    assert math.isnan(self_bleu([]))
    assert self_bleu([[1, 2], [1, 3]], max_n=1) == pytest.approx(0.5, abs=1e-12)


def plain_self_bleu(completions: list[list[int]], max_n: int) -> float:
    """The definition, one pair after the other."""
    scores = list[float]()
    for i, own in enumerate(completions):
        others = completions[:i] + completions[i + 1 :]
        log_precision = 0.0
        orders = range(1, min(max_n, len(own)) + 1)
        for n in orders:
            mine = Counter(tuple(own[j : j + n]) for j in range(len(own) - n + 1))
            theirs = [Counter(tuple(y[j : j + n]) for j in range(len(y) - n + 1)) for y in others]
            matched = sum(min(count, max(other[gram] for other in theirs)) for gram, count in mine.items())
            added = int(n > 1)
            precision = (matched + added) / (len(own) - n + 1 + added)
            log_precision += math.log(precision) / len(orders) if precision else -math.inf
        closest = min((abs(len(y) - len(own)), len(y)) for y in others)[1]
        scores.append(math.exp(log_precision) * math.exp(min(0.0, 1 - closest / len(own))))
    return sum(scores) / len(scores)


@pytest.mark.parametrize("max_n", [1, 2, 4, 6])
def test_self_bleu_is_that_of_the_plain_definition(max_n: int) -> None:
    draw = random.Random(max_n)
    for letters, number in itertools.product((1, 2, 4), (2, 3, 9)):
        completions = [[draw.randrange(letters) for _ in range(draw.randint(1, 12))] for _ in range(number)]
        assert self_bleu(completions, max_n) == pytest.approx(plain_self_bleu(completions, max_n), abs=1e-12)


def tokens(**settings: Any) -> Tokens:
    return Tokens(Sums(), **{"max_tokens": 4, "temperature": 0.3, **settings})


def table(env: Tokens, stop: float = 0.0) -> Tabular[Any]:
    """The same logits everywhere: ``stop`` for the stop token, 0 for the letters."""
    env = Tokens(env.task, env.max_steps, listed=True)
    logits = torch.zeros(len(env.enumerate()), env.n_actions, dtype=torch.float64)
    logits[:, env.stop] = stop
    return Tabular(env, env.forward_mask, logits)


def written(env: Tokens, *completions: tuple[int, list[int]]) -> Any:
    """Trajectories that write these completions, by prompt; the stop token of Sums is 4."""
    rows = [[*tokens, *[EMPTY] * (env.max_steps - len(tokens))] for _, tokens in completions]
    final = Sequences(torch.tensor([prompt for prompt, _ in completions]), torch.tensor(rows))
    t = rollout(env, UniformBackward(env), final, backward=True, generator=torch.Generator().manual_seed(0))
    assert torch.equal(t.final.tokens, final.tokens)
    return t


def test_summary_by_hand() -> None:
    """Prompt 1 asks for b, bb… adding up to 1 modulo 4; prompt 2 for 2. Temperature undone, cut ones never right."""
    env = tokens(cut_reward=-1.0)
    result = summary(
        env,
        written(
            env,
            (1, [1, 4]),  # right, 1
            (2, [1, 1, 4]),  # right, 1.5
            (1, [1, 0, 4]),  # right, 1.5
            (1, [1, 4]),  # right again
            (1, [1, 0, 0, 0]),  # cut, −1
            (2, [4]),  # empty: wrong
            (2, [2, 2, 4]),  # wrong
        ),
        ks=(1, 2, 3, 4),
    )
    expected = {
        "reward": (1 + 1.5 + 1.5 + 1 - 1 + 0 + 0) / 7,
        "cut": 1 / 7,
        "length_stopped": (2 + 3 + 3 + 2 + 1 + 3) / 6,
        "pass@1": (3 / 4 + 1 / 3) / 2,
        "pass@2": (1 + 2 / 3) / 2,
        "pass@3": 1.0,
        "unique": (3 / 4 + 1) / 2,
        "unique_right": (2 + 1) / 2,
        "distinct_1": (2 / 8 + 2 / 4) / 2,  # 1 10 1 1000, and 11 22
        "distinct_2": (2 / 4 + 1) / 2,  # 10 10 00 00, and 11 22
        "distinct_3": 1.0,  # 100 000 of the first prompt, the second has none
        "self_bleu": (self_bleu([[1], [1, 0], [1], [1, 0, 0, 0]]) + self_bleu([[1, 1], [], [2, 2]])) / 2,
    }
    assert result == pytest.approx(expected, abs=1e-9)
    assert list(result)[:3] == ["reward", "cut", "length_stopped"]


def test_what_is_not_defined_is_left_out() -> None:
    env = tokens(cut_reward=2.0)
    with pytest.warns(RuntimeWarning, match="raise env.max_tokens"):
        result = summary(env, written(env, (0, [1, 1, 1, 1])))
    assert result == {
        "reward": pytest.approx(2.0),
        "cut": 1.0,
        "pass@1": 0.0,  # worth 2, and yet no answer
        "unique": 1.0,
        "unique_right": 0.0,
        "distinct_1": 0.25,
        "distinct_2": pytest.approx(1 / 3),
        "distinct_3": 0.5,
    }
    empty = summary(env, written(env, (0, [4]), (0, [4])))
    assert not {"distinct_1", "distinct_2", "distinct_3"} & set(empty)
    assert (empty["self_bleu"], empty["unique"], empty["length_stopped"], empty["pass@1"]) == (1.0, 0.5, 1.0, 0.0)


def test_a_right_answer_is_right_at_any_temperature() -> None:
    """r/β is rounded: 1/49 · 49 is less than one."""
    for beta in (1 / 49, 0.01, 0.3, 7.0, 49.0, 107.0):
        env = tokens(temperature=beta)
        assert summary(env, written(env, (1, [1, 4])))["pass@1"] == 1.0, beta
    assert summary(env, written(env, (1, [1, 4]), (1, [1, 0, 4])), right_from=1.25)["pass@1"] == 0.5


def test_more_than_half_cut_is_warned_of_once() -> None:
    env = tokens()
    cut, ended = (0, [1, 1, 1, 1]), (0, [4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert summary(env, written(env, cut, ended))["cut"] == 0.5
    with pytest.warns(RuntimeWarning) as caught:
        summary(env, written(env, cut, cut, ended))
    assert [str(w.message) for w in caught] == [
        "more than half of the sequences were cut at max_tokens=4 before a stop token: raise env.max_tokens, add a "
        "stop id that completions do end with, or lower env.cut_reward=0, which is what they are worth"
    ]


def test_evaluation_reports_the_summary_of_its_samples() -> None:
    env = tokens()
    policy = table(env, stop=1.0)
    objective = Objective(policy, Prior(policy), Alpha(1.0), DevGrad())
    evaluator = Evaluator(env, objective, n_samples=128, conditions=4)
    first, state = evaluator(0), torch.get_rng_state()
    assert first == evaluator(0), "the same for the same step"
    assert torch.equal(state, torch.get_rng_state())
    generator = torch.Generator().manual_seed(0)
    start = env.reset(4, generator)[torch.arange(128) * 4 // 128]
    expected = summary(env, rollout(env, policy, start, generator=generator))
    assert {name: first[name] for name in expected} == expected
    assert {"pass@1", "pass@8", "pass@32", "unique_right", "cut", "self_bleu", "distinct_2"} <= set(expected)
    assert first["reward"] == pytest.approx(first["log_reward_mean"] * 0.3)


def test_summary_agrees_with_what_the_policy_does() -> None:
    """Uniform over 4 letters and the stop: cut with (4/5)⁴; right with 1/5 · (1/5 + 4/25 + 16/125) for each prompt."""
    env = tokens()
    start = Sequences(torch.arange(20_000) % 4, torch.full((20_000, 4), EMPTY))
    result = summary(env, rollout(env, table(env), start, generator=torch.Generator().manual_seed(0)))
    assert result["cut"] == pytest.approx(0.8**4, abs=0.01)
    assert result["pass@1"] == pytest.approx((1 + 0.8 + 0.64) / 25, abs=0.01)
    assert result["unique_right"] == 1 + 4 + 16  # all that there are


def test_names_with_a_sign_reach_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path)
    board.start(0)
    board(Report(1, 1, 8, {}, {"pass@4": 0.5}))
    board.close()
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["scalars"] == ["eval/pass@4"]
