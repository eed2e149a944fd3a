"""Networks that look at each distinct state of a batch once."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from gfn.distributions import MaskedCategorical
from gfn.states import States, to_tensors

S = TypeVar("S", bound=States)

SMALLEST = 128  # batches below this cost less than finding what is equal in them


def once(network: Callable[[S], Tensor], states: S) -> Tensor:
    """``network(states)``, ``[N, ...]``, from one evaluation of each distinct state where many are equal.

    Values differ by rounding alone, and so does the gradient, which is summed over equal states.
    """
    found = distinct(states)
    if found is None:
        return network(states)
    some, place = found
    return network(some).index_select(0, place)


def distinct(states: S) -> tuple[S, Tensor] | None:
    """The states without repetition, and where among them each of the N is, long ``[N]``; None where few repeat."""
    keys = hashes(states) if len(states) >= SMALLEST else None
    if keys is None:
        return None
    found, place = keys.unique(return_inverse=True)
    if 4 * len(found) > 3 * len(states):
        return None
    example = place.new_empty(len(found)).scatter_(0, place, torch.arange(len(place), device=place.device))
    return states[example], place


def picked(logits: Tensor, mask: Tensor, rows: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities of ``actions[i]`` under the masked categorical of row ``rows[i]``, ``[N]``.

    Only rows that are asked for must allow an action.

    Args:
        logits, mask: ``[U, A]``.
        rows, actions: long ``[N]``.

    Raises:
        NoActionError: if one that is asked for allows none.
    """
    allowed = mask.any(-1)
    if not bool(allowed.index_select(0, rows).all()):
        return MaskedCategorical(logits[rows], mask[rows]).log_prob(actions)  # which tells where
    log_probs = logits.masked_fill(~(mask | ~allowed.unsqueeze(1)), -math.inf).log_softmax(-1)
    return log_probs.flatten().index_select(0, rows * mask.shape[1] + actions)


def hashes(states: States) -> Tensor | None:
    """64 bits that tell states of whole numbers apart (short of a chance of 2⁻⁶⁰ for each pair), long ``[N]``.

    None for other states, and for wide ones, whose hash would not be quick.
    """
    try:
        columns = [x.reshape(len(x), -1) for x in to_tensors(states).values()]
    except TypeError:  # states that are not made of tensors
        return None
    width = sum(x.shape[1] for x in columns)
    if width > 256 or any(x.is_floating_point() or x.is_complex() for x in columns):
        return None
    table = torch.cat([x.long() for x in columns], 1)
    return (table * _factors(width).to(table.device)).sum(1)


@cache
def _factors(width: int) -> Tensor:
    """Odd numbers, always the same."""
    return torch.randint(2**62, (width,), generator=torch.Generator().manual_seed(0)) * 2 + 1
