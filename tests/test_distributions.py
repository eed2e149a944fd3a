"""Categorical distributions over actions, against enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from gfn.distributions import ActionDistribution, Certain, MaskedCategorical, RaggedCategorical, Sequential

DRAWS = 4000
LOGITS = torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 50.0], [0.5, 0.5, 0.5]])
MASK = torch.tensor([[True, True, True], [True, True, False], [False, False, True]])
# row 0 lists (0, 0), (0, 1), (2, 1); row 1 lists (5, 5); row 2 lists (0, 1), (0, 0)
LISTED = torch.tensor([[0, 0], [0, 1], [2, 1], [5, 5], [0, 1], [0, 0]])
ROWS = torch.tensor([0, 0, 0, 1, 2, 2])


def masked() -> MaskedCategorical:
    return MaskedCategorical(LOGITS, MASK)


def ragged() -> RaggedCategorical:
    return RaggedCategorical(torch.tensor([0.3, -1.0, 2.0, 7.0, 1.5, 0.0]), LISTED, ROWS, 3)


def hierarchy() -> Sequential:
    """Rows 0 … 2: first one of two kinds, then an amount below kind + row + 1."""

    def kind(rows: Tensor, done: Tensor) -> ActionDistribution:
        return MaskedCategorical(rows.unsqueeze(1) * torch.tensor([0.0, 0.7]), torch.ones(len(rows), 2).bool())

    def amount(rows: Tensor, done: Tensor) -> ActionDistribution:
        mask = torch.arange(4) < (done[:, 0] + rows + 1).unsqueeze(1)
        return MaskedCategorical(torch.arange(4.0).expand(len(rows), 4) * 0.4, mask)

    return Sequential([kind, amount], torch.arange(3))


def table(distribution: ActionDistribution, row: int, actions: list) -> Tensor:
    """Probabilities of these actions in one row."""
    times = torch.full((len(actions),), row)
    return distribution[times].log_prob(torch.tensor(actions)).exp()


def assert_drawn(distribution: ActionDistribution, row: int, actions: list, probabilities: Tensor) -> None:
    """Many draws from one row agree with these probabilities by a chi-square test, and are of these actions only."""
    draws = distribution[torch.full((DRAWS,), row)].sample(torch.Generator().manual_seed(1)).tolist()
    counts = [draws.count(action) for action in actions]
    assert sum(counts) == DRAWS
    if len(actions) > 1:
        share = probabilities.double() / probabilities.double().sum()
        assert chisquare(counts, (share * DRAWS).tolist()).pvalue > 1e-3


PAIRS = [list(pair) for pair in itertools.product(range(6), repeat=2)]
CASES = [
    (masked, 0, {0: 0.0, 1: 1.0, 2: 2.0}),
    (masked, 1, {0: 3.0, 1: -1.0}),
    (masked, 2, {2: 0.5}),
    (ragged, 0, {(0, 0): 0.3, (0, 1): -1.0, (2, 1): 2.0}),
    (ragged, 1, {(5, 5): 7.0}),
    (ragged, 2, {(0, 1): 1.5, (0, 0): 0.0}),
]


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize(("make", "row", "logits"), CASES)
def test_probabilities_are_the_softmax_over_allowed_actions(make, row, logits, temperature) -> None:
    every = PAIRS if make is ragged else [0, 1, 2]
    weight = {action: math.exp(logit / temperature) for action, logit in logits.items()}
    wanted = [weight.get(tuple(a) if make is ragged else a, 0.0) / sum(weight.values()) for a in every]
    distribution = make() if temperature == 1.0 else make().tempered(temperature)
    assert torch.allclose(table(distribution, row, every), torch.tensor(wanted), atol=1e-6)


@pytest.mark.parametrize(("make", "row", "logits"), CASES)
def test_uniform_is_uniform_over_the_same_support(make, row, logits) -> None:
    actions = [list(a) if make is ragged else a for a in logits]
    assert torch.allclose(table(make().uniform(), row, actions), torch.tensor(1 / len(logits)))
    assert_drawn(make().uniform(), row, actions, torch.ones(len(logits)))


@pytest.mark.parametrize(("make", "row", "logits"), CASES)
def test_samples_follow_the_probabilities(make, row, logits) -> None:
    actions = [list(a) if make is ragged else a for a in logits]
    assert_drawn(make(), row, actions, torch.tensor([math.exp(logit) for logit in logits.values()]))


@pytest.mark.parametrize("row", [0, 1, 2])
def test_hierarchical_probabilities_are_products(row: int) -> None:
    actions = [list(a) for a in itertools.product(range(2), range(4))]
    wanted = []
    for kind, amount in actions:
        first = math.exp(0.7 * row * kind) / (1 + math.exp(0.7 * row))
        allowed = [math.exp(0.4 * a) for a in range(4) if a < kind + row + 1]
        wanted.append(first * (allowed[amount] / sum(allowed) if amount < len(allowed) else 0.0))
    assert sum(wanted) == pytest.approx(1)
    assert torch.allclose(table(hierarchy(), row, actions), torch.tensor(wanted), atol=1e-6)
    possible = [(action, p) for action, p in zip(actions, wanted, strict=True) if p > 0]
    assert_drawn(hierarchy(), row, [a for a, _ in possible], torch.tensor([p for _, p in possible]))


def test_hierarchical_actions_change_stage_by_stage() -> None:
    flat, cold = hierarchy().uniform(), hierarchy().tempered(0.5)
    assert table(flat, 1, [[0, 0], [0, 1], [1, 0], [1, 2]]).tolist() == pytest.approx([1 / 4, 1 / 4, 1 / 6, 1 / 6])
    first = math.exp(1.4) / (1 + math.exp(1.4))
    second = 1 / sum(math.exp(0.8 * a) for a in range(3))
    assert table(cold, 1, [[1, 0]]).tolist() == pytest.approx([first * second])


@pytest.mark.parametrize("make", [masked, ragged, hierarchy])
@pytest.mark.parametrize("rows", [torch.tensor([2, 0, 0]), torch.tensor([True, False, True]), torch.tensor([1])])
def test_rows_are_selected_in_order_with_repeats(make, rows: Tensor) -> None:
    whole = make()
    picked = whole[rows]
    for position, row in enumerate(torch.arange(3)[rows].tolist()):
        for _ in range(5):
            action = whole.sample()[row].expand(len(torch.arange(3)[rows]), *whole.sample().shape[1:])
            assert picked.log_prob(action)[position] == whole[torch.tensor([row])].log_prob(action[:1])[0]


@pytest.mark.parametrize("make", [masked, ragged, hierarchy])
def test_the_same_seed_draws_the_same_actions_and_another_does_not(make) -> None:
    rows = torch.zeros(100, dtype=torch.long)

    def draw(seed: int) -> list:
        return make()[rows].sample(torch.Generator().manual_seed(seed)).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_forbidden_actions_are_impossible_however_large_their_logit() -> None:
    assert masked().log_prob(torch.tensor([0, 2, 0])).tolist()[1:] == [-math.inf, -math.inf]
    assert masked().log_probs[1, 2] == -math.inf


def test_probabilities_add_up_to_one_at_extreme_logits() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    total = MaskedCategorical(logits, torch.ones(2, 3).bool()).log_probs.logsumexp(1)
    assert torch.allclose(total, torch.zeros(2), atol=1e-5)


def test_a_hopeless_action_is_not_drawn() -> None:
    likely = MaskedCategorical(torch.tensor([[0.0, -1e4]]).expand(2000, 2), torch.ones(2000, 2).bool())
    assert likely.sample().sum() == 0


def test_a_row_without_actions_is_refused() -> None:
    mask = torch.ones(8, 2).bool()
    mask[[1, 3]] = False
    with pytest.raises(ValueError, match=r"2 of 8 states allow no action \(rows \[1, 3\]\)"):
        MaskedCategorical(torch.zeros(8, 2), mask)
    with pytest.raises(ValueError, match=r"1 of 3 states allow no action \(rows \[1\]\)"):
        RaggedCategorical(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([0, 2]), 3).sample()


def test_rows_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match="rows ascend"):
        RaggedCategorical(torch.zeros(3), torch.tensor([0, 1, 2]), torch.tensor([0, 1, 0]), 2)


@pytest.mark.parametrize("make", ["masked", "ragged"])
def test_gradients_reach_the_allowed_logits_and_none_flows_through_samples(make: str) -> None:
    logits = torch.zeros(6, requires_grad=True)
    if make == "masked":
        distribution = MaskedCategorical(logits.reshape(2, 3), MASK[[0, 1]])
        action, wanted = torch.tensor([1, 0]), [-1 / 3, 2 / 3, -1 / 3, 1 / 2, -1 / 2, 0]
    else:
        distribution = RaggedCategorical(logits, LISTED, ROWS, 3)
        action, wanted = LISTED[[1, 3, 5]], [-1 / 3, 2 / 3, -1 / 3, 0, -1 / 2, 1 / 2]
    assert not distribution.sample().requires_grad
    distribution.log_prob(action).sum().backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx(wanted)


def test_the_only_action_is_certain() -> None:
    pairs = Certain(torch.tensor([[0, 1], [2, 3]]))
    assert pairs.sample().tolist() == [[0, 1], [2, 3]]
    assert pairs.log_prob(torch.tensor([[0, 1], [2, 0]])).tolist() == [0, -math.inf]
    assert pairs[torch.tensor([1, 1])].sample().tolist() == [[2, 3], [2, 3]]
    assert pairs.uniform() is pairs
    assert pairs.tempered(2.0) is pairs
    assert Certain(torch.tensor([4])).log_prob(torch.tensor([4])).tolist() == [0]
