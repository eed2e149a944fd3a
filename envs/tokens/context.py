"""What a causal language model has read, kept so that it can read on."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from envs.tokens.environment import EMPTY


class Context:
    """What a model has read, as its key-value cache, with rows that can be chosen and extended."""

    def __init__(self, model: nn.Module):
        self.model: Any = model
        self.cache: Any = None
        self.seen: Tensor | None = None  # which entries of the cache are tokens, bool [N, L]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order, repeats allowed."""
        if self.seen is not None and (len(rows) != len(self.seen) or bool((rows[1:] != rows[:-1] + 1).any())):
            self.cache.batch_select_indices(rows)
            self.seen = self.seen[rows]

    def of(self, rows: Tensor) -> Context:
        """A context of these rows beside this one, which stays as it is."""
        other = Context(self.model)
        other.cache, other.seen = copy.copy(self.cache), self.seen
        other.cache.layers = [copy.copy(layer) for layer in self.cache.layers]  # they replace tensors, never change any
        other.select(rows)
        return other

    def extend(self, tokens: Tensor, wanted: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Read on, ``[N, L]`` with ``EMPTY`` for nothing; the logits after each, ``[N, L, V]``.

        Args:
            wanted: rows and columns of the only entries whose logits are asked for; these come as ``[1, M, V]``.
        """
        new = tokens != EMPTY
        seen = new if self.seen is None else torch.cat([self.seen, new], 1)
        position = (seen.cumsum(1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        with picked(self.model, wanted):
            output = self.model(
                input_ids=tokens.clamp_min(0),
                attention_mask=None if bool(seen.all()) else seen.long(),
                position_ids=position,
                cache=self.cache,
                use_cache=True,
            )
        self.cache, self.seen = output.cache, seen
        return output.logits


@contextmanager
def picked(model: Any, wanted: tuple[Tensor, Tensor] | None) -> Generator[None]:
    """Within, the output head of a model sees these rows and columns of the hidden states only, as ``[1, M, D]``.

    Whatever the model does with logits, such as capping them, it does as before.
    """
    if wanted is None:
        yield
        return

    def pick(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (given[0][wanted].unsqueeze(0),)

    hook = model.get_output_embeddings().register_forward_pre_hook(pick)
    try:
        yield
    finally:
        hook.remove()
