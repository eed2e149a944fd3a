"""Distributions over the next token, for vocabularies of tens of thousands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CACHED = 2**18  # numbers


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
        chosen: Any = LogProb.apply(self.logits, actions, self.__dict__.get("log_total"))
        return chosen

    def __getitem__(self, rows: Tensor) -> NextToken:
        return NextToken(self.logits[rows])

    def uniform(self) -> NextToken:
        return NextToken(torch.where(self.logits > -math.inf, 0.0, self.logits))

    def tempered(self, temperature: float) -> NextToken:
        return NextToken(self.logits / temperature)


class LogProb(torch.autograd.Function):
    """Log-softmax at one place a row, a few rows at a time, so that the gradient is the only other table ``[N, V]``."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, actions: Tensor, log_total: Tensor | None) -> Tensor:
        if log_total is None:
            log_total = torch.cat([part.logsumexp(-1) for part in logits.split(_few(logits))])
        ctx.save_for_backward(logits, actions, log_total)
        return logits.gather(-1, actions.unsqueeze(-1)).squeeze(-1) - log_total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits, actions, log_total = ctx.saved_tensors
        result, n = torch.empty_like(logits), _few(logits)
        scale = gradients[0].unsqueeze(-1)
        for out, part, total, by in zip(*(x.split(n) for x in (result, logits, log_total, scale)), strict=True):
            torch.sub(part, total.unsqueeze(-1), out=out)
            out.exp_().mul_(-by)
        return result.scatter_add_(-1, actions.unsqueeze(-1), scale), None, None


def _few(logits: Tensor) -> int:
    """Number of rows that stay in the processor's cache from one pass over them to the next."""
    return max(1, CACHED // max(1, logits.shape[-1]))


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
