"""Batches of states: what the core may do to a batch without knowing what is in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Protocol, Self, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class States(Protocol):
    """A batch of N states of one environment. A plain :class:`torch.Tensor` is one already.

    ``len`` counts states, indexing with a 1-d integer or boolean tensor (or a slice) selects
    states, ``to`` moves them to a device, and :func:`cat` joins batches (through the classmethod
    ``cat`` of anything that is not a tensor).
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: Any, /) -> Self: ...
    def to(self, device: torch.device | str, /) -> Self: ...


S = TypeVar("S", bound=States)


class TensorStates:
    """Base of frozen dataclasses whose fields are tensors that share their first dimension N.

    Raises:
        ValueError: if the fields differ in batch size.
    """

    def __post_init__(self) -> None:
        sizes = {name: len(value) for name, value in self._tensors().items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"{type(self).__name__}: the fields must share their first dimension, got {sizes}")

    def _tensors(self) -> dict[str, Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(cast(Any, self))}

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{name: function(value) for name, value in self._tensors().items()})

    def __len__(self) -> int:
        return len(next(iter(self._tensors().values())))

    def __getitem__(self, index: Any) -> Self:
        return self._map(lambda x: x[index])

    def to(self, device: torch.device | str) -> Self:
        """The same states on ``device``."""
        return self._map(lambda x: x.to(device))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Join batches in order."""
        tables = [batch._tensors() for batch in batches]
        return cls(**{name: torch.cat([table[name] for table in tables]) for name in tables[0]})


def cat(batches: Sequence[S]) -> S:
    """Join batches of states into one, in order."""
    first = batches[0]
    if isinstance(first, Tensor):
        return cast(S, torch.cat(cast("list[Tensor]", batches)))
    return cast(Any, type(first)).cat(batches)
