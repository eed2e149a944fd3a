"""Distributions over the next token, for vocabularies of tens of thousands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class NextToken:
    """Categorical over the vocabulary, −∞ in the logits where a token is impossible.

    It never lays out the log-probabilities of all tokens: a log-probability takes one reduction, and a
    draw one uniform number and one running sum, in float64 so that rare tokens keep their chance.

    Attributes:
        logits: float ``[N, V]``.
    """

    logits: Tensor

    @cached_property
    def log_total(self) -> Tensor:
        """Log of the sum of exp(logits), ``[N]``."""
        return self.logits.logsumexp(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        logits = self.logits.detach()
        upto = (logits - logits.amax(-1, keepdim=True)).exp_().cumsum(-1, dtype=torch.float64)
        height = torch.rand(len(logits), 1, dtype=torch.float64, generator=generator, device=logits.device)
        # 1 − rand lies in (0, 1]: the first sum to reach it belongs to a token of positive probability.
        return torch.searchsorted(upto, (1 - height) * upto[:, -1:]).squeeze(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.logits.gather(-1, actions.unsqueeze(-1)).squeeze(-1) - self.log_total

    def __getitem__(self, rows: Tensor) -> NextToken:
        return NextToken(self.logits[rows])

    def uniform(self) -> NextToken:
        return NextToken(torch.where(self.logits > -math.inf, 0.0, self.logits))

    def tempered(self, temperature: float) -> NextToken:
        return NextToken(self.logits / temperature)


def next_token(logits: Tensor, stop_ids: Sequence[int], stoppable: Tensor | None) -> NextToken:
    """The distribution in which the first stop token stands for all, with their probabilities added up.

    Args:
        logits: of a language model, float ``[N, V]``, in float32 at least.
        stop_ids: tokens that end a sequence.
        stoppable: where it may end, bool ``[N]``; None if everywhere.
    """
    if len(stop_ids) == 1 and stoppable is None:
        return NextToken(logits)
    stops = list(stop_ids)
    stop = logits[:, stops].logsumexp(-1)
    if stoppable is not None:
        stop = stop.masked_fill(~stoppable, -math.inf)
    merged = logits.clone()
    merged[:, stops] = -math.inf
    merged[:, stops[0]] = stop
    return NextToken(merged)
