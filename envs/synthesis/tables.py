"""Scores of the blocks that rows of a batch choose among."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class BlockTable:
    """Scores of blocks for rows that choose among the same candidates.

    Attributes:
        rows: of the batch, long ``[n]``.
        pair: which of the P distributions each follows, long ``[n]``.
        logits: −inf where a block is not allowed, ``[P, C]``.
        candidates: numbers of the blocks, ascending, long ``[C]``; None for all.
    """

    rows: Tensor
    pair: Tensor
    logits: Tensor
    candidates: Tensor | None

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities, ``[P, C]``."""
        return self.logits.log_softmax(1)

    def sample(self, generator: torch.Generator | None) -> Tensor:
        """A block for each row, by inverting the distribution function: one number for each row, no sorting."""
        cumulated = self.log_probs.detach().double().exp().cumsum(1)[self.pair]
        total = cumulated[:, -1]
        u = torch.rand(len(self.rows), generator=generator, dtype=torch.float64, device=total.device) * total
        u = torch.minimum(u, torch.nextafter(total, torch.zeros_like(total)))
        place = torch.searchsorted(cumulated, u.unsqueeze(1), right=True).squeeze(1)
        return place if self.candidates is None else self.candidates[place]

    def log_prob(self, blocks: Tensor) -> Tensor:
        """Log-probability of a block for each row; −inf for one that is no candidate."""
        place, known = position(blocks, self.candidates, self.logits.shape[1])
        return self.log_probs[self.pair, place].masked_fill(~known, -torch.inf)

    def estimated_log_prob(self, blocks: Tensor, logits: Tensor, every: Tensor) -> Tensor:
        """Estimates of the log-probability of blocks where the candidates are a random part of all of them.

        The normaliser is the chosen block's own exp(logit) and, for each of the others, the mean over
        the other candidates: unbiased, so that the estimate of log P is too high on average, the
        less the more candidates there are.

        Args:
            blocks: one for each row, long ``[n]``.
            logits: of these blocks, ``[n]``.
            every: numbers of all the blocks, ascending, long.
        """
        assert self.candidates is not None
        _, known = position(blocks, every, len(every))
        others = self.candidates.unsqueeze(0) != blocks.unsqueeze(1)
        rest = self.logits[self.pair].masked_fill(~others, -torch.inf).logsumexp(1)
        scale = math.log(max(len(every) - 1, 1)) - others.sum(1).clamp(min=1).log()
        return (logits - torch.logaddexp(logits, rest + scale)).masked_fill(~known, -torch.inf)


def position(blocks: Tensor, candidates: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Where blocks stand among ``count`` candidates (None for all blocks), and whether they do; 0 where not."""
    if candidates is None:
        known = (blocks >= 0) & (blocks < count)
        return blocks.where(known, 0), known
    place = torch.searchsorted(candidates, blocks).clamp(max=len(candidates) - 1)
    return place, candidates[place] == blocks
