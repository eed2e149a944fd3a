"""Figures of completions, from their token ids alone; pure functions, and the same on every call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Completion = Sequence[int]  # token ids, without a stop token
Grams = Counter[tuple[int, ...]]


def pass_at_k(correct: Tensor, n: Tensor, k: int) -> Tensor:
    """Chance that one of k completions of each prompt is right, float64 ``[P]``: 1 − C(n − c, k)/C(n, k).

    Without bias, from n ≥ k independent completions of which c are right (Chen et al. 2021, arXiv:2107.03374).

    Args:
        correct: c of each prompt, long ``[P]``.
        n: how many completions there are of each, long ``[P]``.
        k: how many tries.

    Raises:
        ValueError: unless 1 ≤ k ≤ n and 0 ≤ c ≤ n for every prompt.
    """
    pairs = list(zip(correct.tolist(), n.tolist(), strict=True))
    wrong = [(c, m) for c, m in pairs if not 1 <= k <= m or not 0 <= c <= m]
    if wrong:
        raise ValueError(f"pass_at_k: needs 1 <= k <= n and 0 <= correct <= n, got {k=} and (correct, n)={wrong[0]}")
    shares = [(math.comb(m, k) - math.comb(m - c, k)) / math.comb(m, k) for c, m in pairs]
    return torch.tensor(shares, dtype=torch.float64)


def distinct(completions: Sequence[Completion], n: int) -> float:
    """Distinct n-grams over all n-grams of the completions (Li et al. 2016, arXiv:1510.03055); NaN if there are none.

    Like all counts of what is distinct, it falls with the number of completions: compare equal ones.
    """
    grams = [gram for completion in completions for gram in ngrams(completion, n)]
    return len(set(grams)) / len(grams) if grams else math.nan


def unique(completions: Sequence[Completion]) -> int:
    """How many of the completions differ."""
    return len({tuple(completion) for completion in completions})


def unique_right(completions: Sequence[Completion], right: Sequence[bool]) -> int:
    """How many of the right ones among completions differ; ``right`` says which those are."""
    return unique([completion for completion, counts in zip(completions, right, strict=True) if counts])


def self_bleu(completions: Sequence[Completion], max_n: int = 4) -> float:
    """Mean BLEU of each completion against all others (Zhu et al. 2018, arXiv:1802.01886).

    1 if all are equal, 0 if none has a token of another; NaN of less than two. BLEU is that of
    Papineni et al. (2002), doi:10.3115/1073083.1073135, on token ids: n-grams up to ``max_n``, or to the
    length of the completion if it is shorter, weigh alike. Precisions of two tokens and more are smoothed
    by adding one to both counts, as Lin and Och (2004), doi:10.3115/1220355.1220427, do. An empty
    completion has 1 if another one is empty, else 0.
    """
    if len(completions) < 2:
        return math.nan
    counts = [[Grams(ngrams(completion, n)) for completion in completions] for n in range(1, max_n + 1)]
    largest = [_two_largest(of_order) for of_order in counts]
    lengths = [len(completion) for completion in completions]
    total = 0.0
    for i, length in enumerate(lengths):
        others = lengths[:i] + lengths[i + 1 :]
        orders = range(min(max_n, length))
        matches = [_matches(counts[order][i], *largest[order]) for order in orders]
        total += _bleu(length, matches, others) if length else float(0 in others)
    return total / len(completions)


def ngrams(completion: Completion, n: int) -> Iterator[tuple[int, ...]]:
    """The n-grams of a completion in order; none if it is shorter."""
    return zip(*(completion[start:] for start in range(n)), strict=False)


def _two_largest(counts: Sequence[Grams]) -> tuple[Grams, Grams]:
    """The largest count of each n-gram in one completion, and the largest in any other than that one."""
    first, second = Grams(), Grams()
    for count in counts:
        for gram, times in count.items():
            if times > first[gram]:
                first[gram], second[gram] = times, first[gram]
            else:
                second[gram] = max(second[gram], times)
    return first, second


def _matches(own: Grams, first: Grams, second: Grams) -> int:
    """How many n-grams of one completion are in others, each at most as often as in the one of them with most."""
    # Where its own count is the largest of all, the largest of the others is the second; with ties both are equal.
    return sum(min(times, second[gram] if times == first[gram] else first[gram]) for gram, times in own.items())


def _bleu(length: int, matches: Sequence[int], others: Sequence[int]) -> float:
    """BLEU of a completion of ``length`` ≥ 1 tokens, with the matches of each order, against some of other lengths."""
    if matches[0] == 0:
        return 0.0
    counts = [length - order for order in range(len(matches))]
    precisions = [matches[0] / counts[0], *((m + 1) / (c + 1) for m, c in zip(matches[1:], counts[1:], strict=True))]
    closest = min(others, key=lambda other: (abs(other - length), other))
    brevity = min(0.0, 1 - closest / length)
    return math.exp(brevity + sum(map(math.log, precisions)) / len(precisions))
