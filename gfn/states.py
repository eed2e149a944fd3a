"""Batches of states: what the core may do to a batch without knowing what is in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from hashlib import blake2b
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


@runtime_checkable
class Storable(Protocol):
    """A batch of states that can be written down as tensors and read back, as buffers and checkpoints need."""

    def tensors(self) -> dict[str, Tensor]:
        """Tensors ``[N, ...]`` by name; each row depends on its own state alone, and equal states have equal rows."""
        ...

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], /) -> Self:
        """The states that gave ``tensors``."""
        ...


class TensorStates:
    """Base of frozen dataclasses whose fields are tensors that share their first dimension N.

    Raises:
        ValueError: if the fields differ in batch size.
    """

    def __post_init__(self) -> None:
        if len({value.shape[0] for value in self.tensors().values()}) > 1:
            sizes = {name: len(value) for name, value in self.tensors().items()}
            raise ValueError(f"{type(self).__name__}: the fields must share their first dimension, got {sizes}")

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name."""
        return {name: getattr(self, name) for name in _names(type(self))}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The states with these fields."""
        return cls(**tensors)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        return type(self)(**{name: function(value) for name, value in self.tensors().items()})

    def __len__(self) -> int:
        return len(next(iter(self.tensors().values())))

    def __getitem__(self, index: Any) -> Self:
        return self._map(lambda x: x[index])

    def to(self, device: torch.device | str) -> Self:
        """The same states on ``device``."""
        return self._map(lambda x: x.to(device))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Join batches in order."""
        tables = [batch.tensors() for batch in batches]
        return cls(**{name: torch.cat([table[name] for table in tables]) for name in tables[0]})


@cache
def _names(states: type[TensorStates]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cast(Any, states)))


def cat(batches: Sequence[S]) -> S:
    """Join batches of states into one, in order."""
    first = batches[0]
    if isinstance(first, Tensor):
        return cast(S, torch.cat(cast("list[Tensor]", batches)))
    return cast(Any, type(first)).cat(batches)


def to_tensors(states: States) -> dict[str, Tensor]:
    """A batch of states as tensors ``[N, ...]`` by name, for :func:`from_tensors` to read.

    Raises:
        TypeError: if the states cannot be written as tensors.
    """
    if isinstance(states, Tensor):
        return {"states": states}
    if not isinstance(states, Storable):
        name = type(states).__name__
        raise TypeError(
            f"{name} cannot be stored: derive it from TensorStates, or give it tensors() and from_tensors()"
        )
    return states.tensors()


def from_tensors(tensors: Mapping[str, Tensor], like: S) -> S:
    """The states that :func:`to_tensors` was given, which are of the kind of ``like``."""
    if isinstance(like, Tensor):
        return cast(S, tensors["states"])
    return cast(Any, like).from_tensors(tensors)  # through the batch itself: it may hold batches of other kinds


def fingerprints(states: States) -> Tensor:
    """64 bits that tell states apart (short of a chance of 2⁻⁶⁴ for each pair), on the CPU, long ``[N]``."""
    rows = [x.detach().cpu().reshape(len(states), -1).contiguous() for x in to_tensors(states).values()]
    table = torch.cat([row.view(torch.uint8) for row in rows], 1).numpy()
    return torch.tensor([fingerprint(row.tobytes()) for row in table], dtype=torch.long)


def fingerprint(content: bytes) -> int:
    """64 bits of a hash, as a signed number."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little", signed=True)
