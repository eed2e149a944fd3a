"""Sampling from the likeliest tokens only, as text generation does; training needs more."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from envs.tokens.next_token import NextToken
from gfn.distributions import ActionDistribution


@dataclass(frozen=True)
class Nucleus:
    """Draw from the ``top_k`` likeliest tokens and the fewest that hold ``top_p`` of the probability.

    A completion with any other token is then never seen: no loss can tell its probability, and ratios to
    the behaviour policy are wrong by the mass left out (Holtzman et al. 2020, arXiv:1904.09751, for the method).

    Args:
        top_p: share of the probability that is kept; 1 keeps all.
        top_k: how many tokens are kept; None keeps all.
        force: sample so nevertheless.

    Raises:
        ValueError: without ``force``, or if a number is out of its range.
        TypeError: when called with anything but the next tokens of a language model.
    """

    top_p: float = 1.0
    top_k: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            raise ValueError(f"Nucleus: needs 0 < top_p <= 1 and top_k >= 1, got top_p={self.top_p} top_k={self.top_k}")
        if not self.force:
            raise ValueError(
                "Nucleus: training on samples without full support leaves the probability of all other completions "
                "free, so the target is not learned: use exploration=none or exploration=tempered, or insist with "
                "exploration.force=true"
            )

    def __call__(self, distribution: ActionDistribution, step: int) -> ActionDistribution:
        if not isinstance(distribution, NextToken):
            raise TypeError(f"Nucleus needs the next tokens of a language model, got {type(distribution).__name__}")
        logits, order = distribution.logits.sort(-1, descending=True)
        share = logits.softmax(-1)
        dropped = share.cumsum(-1) - share >= self.top_p  # by then the likelier ones hold enough
        if self.top_k is not None:
            dropped[:, self.top_k :] = True
        kept = logits.masked_fill(dropped, -math.inf)
        return NextToken(torch.empty_like(kept).scatter(-1, order, kept))

    def settings(self, step: int) -> dict[str, float]:
        return {"top_p": self.top_p} if self.top_k is None else {"top_p": self.top_p, "top_k": float(self.top_k)}
