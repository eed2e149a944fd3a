"""Baselines, generalised advantages and the clip against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gfn.objectives.advantage import clipped_surrogate, compared, generalised_advantage, standardised
from tests.oracles import f64

GROUP = torch.tensor([7, 7, 7, 3, 3])
RETURNS = f64(1, 2, 6, 0, 4)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("none", f64(1, 2, 6, 0, 4)),
        ("batch", f64(-1.6, -0.6, 3.4, -2.6, 1.4)),
        ("group", f64(-2, -1, 3, -2, 2)),
        ("leave_one_out", f64(-3, -1.5, 4.5, -4, 4)),
    ],
)
def test_baselines(baseline: Any, expected: Tensor) -> None:
    torch.testing.assert_close(compared(RETURNS, GROUP, baseline, False), expected)


@pytest.mark.parametrize(
    ("baseline", "spread"),
    [
        ("none", [math.sqrt(5.8)] * 5),  # (1.6² + 0.6² + 3.4² + 2.6² + 1.4²)/4
        ("batch", [math.sqrt(5.8)] * 5),
        ("group", [math.sqrt(7)] * 3 + [math.sqrt(8)] * 2),
        ("leave_one_out", [math.sqrt(7)] * 3 + [math.sqrt(8)] * 2),
    ],
)
def test_standard_deviations(baseline: Any, spread: list[float]) -> None:
    plain = compared(RETURNS, GROUP, baseline, False)
    torch.testing.assert_close(compared(RETURNS, GROUP, baseline, True), plain / f64(*spread), atol=0, rtol=1e-6)


def test_equal_returns_have_no_advantage() -> None:
    equal = f64(0.3, 0.3, 0.3, -1e5, -1e5)
    assert compared(equal, GROUP, "group", True).abs().max() < 1e-6
    assert compared(f64(0.3), torch.tensor([0]), "none", True).isfinite().all()


def test_generalised_advantage_by_hand() -> None:
    reward = torch.tensor([[1.0, 2.0, 3.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    value = torch.tensor([[0.5, 1.0, 2.0], [4.0, 0.0, 0.0]], dtype=torch.float64)
    # surprises: 1 + 1 − 0.5, 2 + 2 − 1, 3 + 0 − 2; and 5 − 4
    expected = torch.tensor([[1.5 + 0.5 * 3.5, 3 + 0.5, 1], [1, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(generalised_advantage(reward, value, 0.5), expected)


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.95, 1.0])
def test_generalised_advantage_against_a_double_sum(decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(6) < torch.tensor([6, 1, 4]).unsqueeze(1)
    reward, value = (torch.randn(3, 6, generator=generator, dtype=torch.float64) * mask for _ in range(2))
    naive = torch.zeros(3, 6, dtype=torch.float64)
    for b, length in enumerate((6, 1, 4)):
        ahead = [*value[b, :length].tolist(), 0.0]
        for t in range(length):
            naive[b, t] = sum(
                decay ** (k - t) * (float(reward[b, k]) + ahead[k + 1] - ahead[k]) for k in range(t, length)
            )
    torch.testing.assert_close(generalised_advantage(reward, value, decay), naive)


def test_standardised_advantages_of_steps() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    result = standardised(torch.tensor([[1.0, 2.0], [6.0, 0.0]], dtype=torch.float64), mask)
    torch.testing.assert_close(result, torch.tensor([[-2, -1], [3, 0]]).double() / math.sqrt(7), atol=0, rtol=1e-6)


# ratio, advantage, surrogate, derivative by log ratio, clipped; the clip is (0.8, 1.3)
CLIPS = [
    (0.5, 2.0, 1.0, 1.0, False),  # good and rarer: free to return
    (0.5, -2.0, -1.6, 0.0, True),  # bad and rarer already: no further
    (0.79, -2.0, -1.6, 0.0, True),
    (0.81, -2.0, -1.62, -1.62, False),
    (1.0, 2.0, 2.0, 2.0, False),
    (1.0, -2.0, -2.0, -2.0, False),
    (1.29, 2.0, 2.58, 2.58, False),
    (1.31, 2.0, 2.6, 0.0, True),  # good and commoner already
    (3.0, 2.0, 2.6, 0.0, True),
    (3.0, -2.0, -6.0, -6.0, False),  # bad and commoner: free to return
    (3.0, 0.0, 0.0, 0.0, False),
    (0.5, 0.0, 0.0, 0.0, False),
]


@pytest.mark.parametrize(("ratio", "advantage", "value", "slope", "clipped"), CLIPS)
def test_clip(ratio: float, advantage: float, value: float, slope: float, clipped: bool) -> None:
    got = clipped_surrogate(f64(ratio).log(), f64(advantage), 0.2, 0.3)
    torch.testing.assert_close(got[0], f64(value))
    torch.testing.assert_close(got[1], f64(slope))
    assert got[2].tolist() == [clipped]


def test_surrogate_of_any_ratio_is_finite() -> None:
    value, slope, _ = clipped_surrogate(f64(800, 800, -800), f64(1, -1, -1), 0.2, 0.2)
    assert value.isfinite().all()
    assert slope.isfinite().all()
