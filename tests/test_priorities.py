"""Priorities against their formulas, one item at a time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from gfn.priorities import ByRank, ByReward, Mixed, Priority, Recent, Uniform, draw, normalised
from gfn.schedules import Linear

LOG_REWARD = torch.tensor([0.5, -1.0, 2.0, 0.0, -math.inf], dtype=torch.float64)
AGE = torch.tensor([9, 4, 3, 1, 0])


def probabilities(priority: Priority, step: int = 0) -> list[float]:
    return normalised(priority(LOG_REWARD, AGE, step)).exp().tolist()


def shares(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


REWARD = [math.exp(x) for x in LOG_REWARD.tolist()]
YOUTH = [0.5 ** (age / 2) for age in AGE.tolist()]
RANK = [1, 3, 0, 2, 4]
MIX = [0.75 * y + 0.25 * r for y, r in zip(shares(YOUTH), shares(REWARD), strict=True)]


@pytest.mark.parametrize(
    ("priority", "weights"),
    [
        (Uniform(), [1.0] * 5),
        (ByReward(1.0), REWARD),
        (ByReward(2.5), [r**2.5 for r in REWARD]),
        (ByReward(0.0), [1.0] * 5),
        (ByRank(0.1), [1 / (0.1 * 5 + rank) for rank in RANK]),
        (Recent(2.0), YOUTH),
        (Mixed(Recent(2.0), ByReward(1.0), 0.25), MIX),
        (Mixed(Recent(2.0), ByReward(1.0), 0.0), YOUTH),
        (Mixed(Recent(2.0), ByReward(1.0), 1.0), REWARD),
    ],
    ids=repr,
)
def test_weights_follow_their_formula(priority: Priority, weights: list[float]) -> None:
    assert probabilities(priority) == pytest.approx(shares(weights), abs=1e-12)


@pytest.mark.parametrize(
    ("scheduled", "constant"),
    [
        (ByReward(Linear(0.0, 2.0, 10)), ByReward(1.0)),
        (ByRank(Linear(0.0, 1.0, 10)), ByRank(0.5)),
        (Recent(Linear(1.0, 5.0, 10)), Recent(3.0)),
        (Mixed(Uniform(), ByReward(), Linear(0.0, 1.0, 10)), Mixed(Uniform(), ByReward(), 0.5)),
    ],
    ids=repr,
)
def test_numbers_may_be_scheduled(scheduled: Priority, constant: Priority) -> None:
    assert probabilities(scheduled, 5) == pytest.approx(probabilities(constant))
    assert probabilities(scheduled, 9) != pytest.approx(probabilities(constant))


def test_rewards_that_are_all_zero_draw_all_alike() -> None:
    nothing = torch.full((4,), -math.inf, dtype=torch.float64)
    assert normalised(ByReward()(nothing, AGE[:4], 0)).exp().tolist() == pytest.approx([0.25] * 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ByReward(-1.0), "inverse_temperature must be finite and at least 0, got -1"),
        (lambda: ByReward(math.inf), "inverse_temperature must be finite and at least 0, got inf"),
        (lambda: ByReward(math.nan), "inverse_temperature must be finite"),
        (lambda: ByRank(0.0), "k must be finite and at least 1e-12, got 0"),
        (lambda: Recent(-2.0), "half_life must be finite and at least 1e-12, got -2"),
        (lambda: Mixed(Uniform(), Uniform(), 1.5), r"weight must lie in \[0, 1\], got 1.5"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def expect(drawn: Tensor, shares: list[float]) -> None:
    """Counts are within five standard deviations of what ``shares`` of the draws give; shares of zero never drawn."""
    count = Counter(drawn.tolist())
    for item, share in enumerate(shares):
        spread = 5 * math.sqrt(len(drawn) * share * (1 - share))
        assert abs(count[item] - len(drawn) * share) <= spread, (item, count[item], share)


def test_one_condition_is_drawn_from_by_weight() -> None:
    wanted = shares([1.0, 2.0, 0.0, 5.0])
    index = draw(torch.tensor(wanted).log(), torch.zeros(4, dtype=torch.long), 3, 4000, torch.Generator())
    assert len(index) == 12000
    expect(index, wanted)


def test_groups_are_of_one_condition_and_prefer_those_with_enough_items() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 50.0])
    condition = torch.tensor([7, -3, 7, -3, 7, 0])
    index = draw(weights.log(), condition, 6000, 2, torch.Generator())
    groups = condition[index].reshape(-1, 2)
    assert groups[:, 0].equal(groups[:, 1])
    # The item in condition 0 is alone, so it cannot fill a group of two; 9 against 6 decide between the others.
    expect((groups[:, 0] == 7).long(), [6 / 15, 9 / 15])
    expect(index, shares([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]))


def test_conditions_without_enough_items_are_drawn_from_if_there_are_no_others() -> None:
    index = draw(torch.zeros(3), torch.tensor([4, 5, 6]), 50, 2, torch.Generator())
    assert index.reshape(-1, 2)[:, 0].equal(index.reshape(-1, 2)[:, 1])
    assert set(index.tolist()) == {0, 1, 2}
