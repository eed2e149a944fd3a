"""The next token: drawn with the probabilities it is scored by, rare tokens too, and impossible ones never."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from envs.tokens.next_token import NextToken, next_token
from gfn.distributions import MaskedCategorical

INF = math.inf


def random_logits(n: int, size: int, seed: int = 0) -> Tensor:
    return 1.5 * torch.randn(n, size, generator=torch.Generator().manual_seed(seed))


def at_height(monkeypatch: pytest.MonkeyPatch, heights: list[float]) -> None:
    """Let the uniform numbers of [0, 1) that are drawn next be these."""
    monkeypatch.setattr(torch, "rand", lambda n, one, **settings: torch.tensor(heights, dtype=torch.float64).view(n, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tokens_are_drawn_as_often_as_they_are_probable(dtype: torch.dtype) -> None:
    n = 20_000
    logits = random_logits(3, 11).to(dtype)
    logits[1, [0, 5, 10]] = -INF
    p = logits.double().softmax(1)
    drawn = NextToken(logits.repeat_interleave(n, 0)).sample(torch.Generator().manual_seed(1)).view(3, n)
    for row, expected in zip(drawn, p, strict=True):
        counts = torch.bincount(row, minlength=11).double()
        assert counts[expected == 0].sum() == 0
        some = expected > 0
        statistic = float(((counts - n * expected).square()[some] / (n * expected[some])).sum())
        assert statistic < chi2.ppf(0.999, int(some.sum()) - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("added", [0.0, -64.0, 64.0])
def test_rare_tokens_are_as_wide_as_their_probability(
    added: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chance of 10⁻⁹ would be lost in a running sum in float32; what is added to all logits has no say."""
    rare = [1e-9, 1e-12]
    logits = torch.tensor([0.0, math.log(rare[0]), 0.0, math.log(rare[1]), 0.0], dtype=dtype) + added
    total = 3 + sum(rare)
    places = [1 + 0.5 * rare[0], 2 + rare[0] + 0.5 * rare[1]]  # the middle of each rare token
    beside = [1 - 0.5 * rare[0], 1 + 1.5 * rare[0], 2 + rare[0] - 0.5 * rare[1], 2 + rare[0] + 1.5 * rare[1]]
    at_height(monkeypatch, [1 - place / total for place in places + beside])
    assert NextToken(logits.repeat(6, 1)).sample().tolist() == [1, 3, 0, 2, 2, 4]


def test_impossible_tokens_are_not_drawn_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest and the largest number that can be drawn, with nothing possible at either end or between."""
    logits = torch.tensor([-INF, 0.0, -INF, -200.0, 0.0, -INF]).repeat(4, 1)
    at_height(monkeypatch, [0.0, 1 - 2**-53, 0.5, 0.5 - 2**-53])
    assert NextToken(logits).sample().tolist() == [4, 1, 1, 4]
    only = torch.tensor([[-INF, -INF, 3.0, -INF]]).repeat(2, 1)
    at_height(monkeypatch, [0.0, 1 - 2**-53])
    assert NextToken(only).sample().tolist() == [2, 2]


def test_large_vocabularies_add_up() -> None:
    """Fifty thousand tokens of equal probability: the last ones come up as often as the first."""
    size, n = 50_000, 400
    drawn = NextToken(torch.zeros(n, size)).sample(torch.Generator().manual_seed(0))
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < size
    assert float(drawn.double().mean()) == pytest.approx((size - 1) / 2, abs=4 * size / math.sqrt(12 * n))
    assert int((drawn > 0.9 * size).sum()) > 20


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d,
        lambda d: d.tempered(0.5),
        lambda d: d.tempered(3.0),
        lambda d: d.uniform(),
        lambda d: d.uniform().tempered(2.0),
        lambda d: d[torch.tensor([4, 0, 0])],
        lambda d: d[torch.tensor([True, False, True, False, True])].tempered(2.0),
        lambda d: d.tempered(2.0)[torch.tensor([3])].uniform(),
    ],
)
def test_it_is_the_masked_categorical(change: Any) -> None:
    """One distribution written in two ways: equal log-probabilities, gradients, and normalisers."""
    mask = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[:, 2] = True
    ours, theirs = (random_logits(5, 7).double().requires_grad_() for _ in range(2))
    found = change(NextToken(ours.masked_fill(~mask, -INF)))
    expected = change(MaskedCategorical(theirs, mask))
    for token in range(7):
        tokens = torch.full((len(found.logits),), token)
        torch.testing.assert_close(found.log_prob(tokens), expected.log_prob(tokens), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.log_total, expected.log_total, atol=1e-12, rtol=0)
    twos = torch.full((len(found.logits),), 2)
    gradients = [
        torch.autograd.grad((d.log_prob(twos) + 0 * logits.sum()).sum(), logits)[0]
        for d, logits in ((found, ours), (expected, theirs))
    ]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_log_probabilities_by_hand() -> None:
    distribution = NextToken(torch.tensor([[0.0, math.log(3.0), -INF]], dtype=torch.float64))
    for token, p in enumerate([0.25, 0.75, 0.0]):
        assert float(distribution.log_prob(torch.tensor([token])).exp()) == pytest.approx(p, abs=1e-15)
    assert float(distribution.tempered(0.5).log_prob(torch.tensor([0])).exp()) == pytest.approx(0.1, abs=1e-15)
    assert float(distribution.uniform().log_prob(torch.tensor([0])).exp()) == pytest.approx(0.5, abs=1e-15)


def test_sampling_leaves_logits_and_the_global_generator_alone() -> None:
    logits = random_logits(4, 9).requires_grad_()
    before, state = logits.detach().clone(), torch.get_rng_state()
    first, again = (NextToken(logits).sample(torch.Generator().manual_seed(3)) for _ in range(2))
    assert first.equal(again)
    assert not first.requires_grad
    assert logits.equal(before)
    assert torch.get_rng_state().equal(state)


@pytest.mark.parametrize("stop_ids", [(3,), (3, 0), (5, 1, 2)])
def test_stop_tokens_become_one(stop_ids: tuple[int, ...]) -> None:
    """Their probabilities add up, nothing else changes; where it is too early, the others are raised alike."""
    logits = random_logits(4, 6).double().requires_grad_()
    stoppable = torch.tensor([True, False, True, False])
    p = logits.detach().softmax(1)
    merged, early = p.clone(), p.clone()
    merged[:, list(stop_ids)] = 0
    merged[:, stop_ids[0]] = p[:, list(stop_ids)].sum(1)
    early[:, list(stop_ids)] = 0
    early /= early.sum(1, keepdim=True)
    for given, expected in (
        (None, merged),
        (stoppable, merged.where(stoppable.unsqueeze(1), early)),
    ):
        found = next_token(logits, stop_ids, given)
        every = torch.stack([found.log_prob(torch.full((4,), token)) for token in range(6)], 1).exp()
        torch.testing.assert_close(every.detach(), expected, atol=1e-12, rtol=0)
        (gradient,) = torch.autograd.grad(found.log_prob(torch.full((4,), 4)).sum(), logits)
        assert bool(gradient.isfinite().all())
        if given is not None:
            assert gradient[~stoppable][:, list(stop_ids)].eq(0).all()


def test_the_gradient_of_the_merged_stop_is_that_of_the_sum() -> None:
    ours, by_hand = (random_logits(2, 5).double().requires_grad_() for _ in range(2))
    next_token(ours, (4, 1, 2), None).log_prob(torch.tensor([4, 0])).sum().backward()
    p = by_hand.softmax(1)
    (p[0, [4, 1, 2]].sum().log() + p[1, 0].log()).backward()
    torch.testing.assert_close(ours.grad, by_hand.grad, atol=1e-12, rtol=0)
