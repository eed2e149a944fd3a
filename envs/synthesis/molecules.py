"""Molecules, each of which exists once, and batches of partial syntheses made of them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.synthesis.chemistry import LONGEST
from gfn.states import fingerprint

START = 0  # key of what there is before the first block


class Molecule:
    """A molecule and what has been found out about it; there is one object for each, so identity is equality.

    Attributes:
        smiles: canonical; empty before the first block.
        key: 64 bits of a hash of it, the same in every process, by which actions name it.
        fits: which slots it fits, bool ``[n_slots]``, once known.
        graph: atoms and bonds as numbers (:mod:`envs.synthesis.graphs`), once known.
        bits: numbers of the bits of its fingerprint, once known.
    """

    __slots__ = ("__weakref__", "bits", "fits", "graph", "key", "smiles")

    def __init__(self, smiles: str):
        self.smiles = smiles
        self.key = fingerprint(smiles.encode()) if smiles else START
        self.fits: NDArray[np.bool_] | None = None
        self.graph: Any = None
        self.bits: NDArray[np.int64] | None = None

    def __deepcopy__(self, memo: Any) -> Molecule:
        return self

    def __reduce__(self) -> tuple[type[Molecule], tuple[str]]:
        return Molecule, (self.smiles,)  # in another process it is another object

    def __repr__(self) -> str:
        return self.smiles or "(start)"


class Molecules:
    """All molecules in use, by SMILES and by key; those that nothing refers to any more go by themselves.

    Raises:
        ValueError: if two molecules have one key (a chance of 2⁻⁶⁴ for each pair).
    """

    def __init__(self) -> None:
        self._by_key: weakref.WeakValueDictionary[int, Molecule] = weakref.WeakValueDictionary()
        self._by_smiles: weakref.WeakValueDictionary[str, Molecule] = weakref.WeakValueDictionary()
        self.start = self("")

    def __call__(self, smiles: str) -> Molecule:
        """The molecule with this canonical SMILES."""
        known = self._by_smiles.get(smiles)
        if known is not None:
            return known
        new = Molecule(smiles)
        other = self._by_key.setdefault(new.key, new)
        if other is not new:
            raise ValueError(f"the molecules {new} and {other} have the same key {new.key}")
        self._by_smiles[smiles] = new
        return new

    def named(self, key: int) -> Molecule:
        """The molecule with this key.

        Raises:
            KeyError: if no state or cache holds it.
        """
        return self._by_key[key]

    def __len__(self) -> int:
        return len(self._by_smiles)

    def __deepcopy__(self, memo: Any) -> Molecules:
        return self

    def __reduce__(self) -> tuple[type[Molecules], tuple[()]]:
        return Molecules, ()


@dataclass(frozen=True)
class Syntheses:
    """A batch of N partial syntheses.

    Attributes:
        molecules: where the molecules are kept.
        molecule: of each state, N of them.
        depth: reactions used so far, long ``[N]``; 0 for finished ones, which are their molecule alone.
        stopped: whether it is finished, bool ``[N]``.
        condition: which of the reward's exponents applies, long ``[N]``.
    """

    molecules: Molecules
    molecule: tuple[Molecule, ...]
    depth: Tensor
    stopped: Tensor
    condition: Tensor

    def __len__(self) -> int:
        return len(self.depth)

    def __getitem__(self, index: Any) -> Self:
        rows = torch.arange(len(self), device=self.depth.device)[index].tolist()
        return replace(
            self,
            molecule=tuple(self.molecule[row] for row in rows),
            depth=self.depth[index],
            stopped=self.stopped[index],
            condition=self.condition[index],
        )

    def to(self, device: torch.device | str) -> Self:
        """The same states, numbers on ``device``."""
        return replace(
            self,
            depth=self.depth.to(device),
            stopped=self.stopped.to(device),
            condition=self.condition.to(device),
        )

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Join batches in order."""
        return cls(
            batches[0].molecules,
            tuple(molecule for b in batches for molecule in b.molecule),
            torch.cat([b.depth for b in batches]),
            torch.cat([b.stopped for b in batches]),
            torch.cat([b.condition for b in batches]),
        )

    @property
    def keys(self) -> Tensor:
        """Keys of the molecules, long ``[N]``."""
        return torch.tensor([m.key for m in self.molecule], dtype=torch.long, device=self.depth.device)

    @property
    def smiles(self) -> list[str]:
        """SMILES of the molecules."""
        return [m.smiles for m in self.molecule]

    def __reduce__(self) -> Any:
        rest = self.depth, self.stopped, self.condition
        return _unpickled, (type(self), self.molecules, self.smiles, *rest)  # a molecule exists once there, too

    def tensors(self) -> dict[str, Tensor]:
        """The states as tensors, SMILES as bytes ``[N, 512]`` that zeros fill up."""
        texts = np.array([m.smiles.encode() for m in self.molecule], dtype=f"S{LONGEST}")
        smiles = torch.from_numpy(texts.view(np.uint8).reshape(len(self), LONGEST).copy())
        return {
            "smiles": smiles.to(self.depth.device),
            "depth": self.depth,
            "stopped": self.stopped,
            "condition": self.condition,
        }

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The states that gave ``tensors``, their molecules kept where those of this batch are."""
        texts = tensors["smiles"].cpu().contiguous().numpy().view(f"S{LONGEST}").reshape(-1)
        rest = {name: tensors[name] for name in ("depth", "stopped", "condition")}
        return replace(self, molecule=tuple(self.molecules(text.decode()) for text in texts.tolist()), **rest)


def _unpickled(kind: type[Syntheses], molecules: Molecules, smiles: Sequence[str], *rest: Tensor) -> Syntheses:
    return kind(molecules, tuple(map(molecules, smiles)), *rest)
