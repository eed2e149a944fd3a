"""What a frozen policy has said about trajectories, so that it is asked about each of them once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gfn.states import States, fingerprint, fingerprints
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Memory(nn.Module):
    """Log-probabilities of the steps of trajectories, those asked for last; part of a checkpoint.

    A trajectory is known by its initial state and its actions. Replayed, stale and micro-batched
    trajectories are then scored once, in the first batch they are in.

    Args:
        capacity: how many trajectories; 0 keeps none.

    Raises:
        ValueError: if the capacity is negative.
    """

    def __init__(self, capacity: int):
        super().__init__()
        if capacity < 0:
            raise ValueError(f"Memory: capacity must not be negative, got {capacity}")
        self.capacity = capacity
        self._known: OrderedDict[int, Tensor] = OrderedDict()

    def recalled(self, t: Trajectories[S], log_prob: Callable[[Trajectories[S]], Tensor]) -> Tensor:
        """``log_prob(t)``, ``[N]``, asked only for what is not remembered."""
        if self.capacity == 0:
            return log_prob(t)
        keys = _keys(t)
        new = {key: i for i, key in enumerate(keys) if key not in self._known}
        found = dict[int, Tensor]()
        if new:
            unknown = t[torch.tensor(list(new.values()), device=t.lengths.device)]
            values = log_prob(unknown).detach().cpu().split(unknown.lengths.tolist())
            found = {key: value.clone() for key, value in zip(new, values, strict=True)}
        rows = [found[key] if key in found else self._known[key] for key in keys]
        for key, row in zip(keys, rows, strict=True):
            self._known[key] = row
            self._known.move_to_end(key)
        while len(self._known) > self.capacity:
            self._known.popitem(last=False)
        return torch.cat(rows).to(t.lengths.device)

    def clear(self) -> None:
        """Forget all, because the policy has changed."""
        self._known.clear()

    def get_extra_state(self) -> dict[str, Tensor]:
        rows = list(self._known.values())
        return {
            "keys": torch.tensor(list(self._known), dtype=torch.long),
            "lengths": torch.tensor([len(row) for row in rows], dtype=torch.long),
            "values": torch.cat(rows) if rows else torch.zeros(0),
        }

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        rows = state["values"].cpu().split(state["lengths"].tolist())
        self._known = OrderedDict(zip(state["keys"].tolist(), (row.clone() for row in rows), strict=True))


def _keys(t: Trajectories[Any]) -> list[int]:
    """A number for each trajectory, of its initial state and its actions."""
    first = fingerprints(t.initial).tolist()
    actions = t.actions.detach().cpu().contiguous().split(t.lengths.tolist())
    return [
        fingerprint(start.to_bytes(8, "little", signed=True) + steps.numpy().tobytes())
        for start, steps in zip(first, actions, strict=True)
    ]
