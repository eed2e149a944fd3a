"""Molecules as numbers for networks: graphs of atoms and bonds, and circular fingerprints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from torch import Tensor

ELEMENTS = (6, 7, 8, 16, 9, 17, 35, 53, 15, 5, 14, 34)  # C N O S F Cl Br I P B Si Se; any other counts as one more
BONDS = {t: i for i, t in enumerate((Chem.BondType.SINGLE, Chem.BondType.DOUBLE, Chem.BondType.TRIPLE))}
STEREO = {Chem.BondStereo.STEREOE: 1, Chem.BondStereo.STEREOZ: 2}
ATOM_SIZES = (13, 6, 5, 5, 3, 2, 2)  # element, neighbours, hydrogens, charge, chirality, aromatic, in a ring
BOND_SIZE = 24  # order × conjugated × stereo
N_BITS = 2048

_morgan = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=N_BITS, includeChirality=True)
_element = {number: i for i, number in enumerate(ELEMENTS)}
_offset = np.cumsum((0, *ATOM_SIZES[:-1]))
N_ATOM_CODES = sum(ATOM_SIZES)


@dataclass(frozen=True)
class Graph:
    """A molecule.

    Attributes:
        atoms: for each atom one code of each property, all different, int16 ``[A, 7]``.
        bonds: both directions of each bond as a pair of atoms, int16 ``[2, E]``.
        orders: code of each direction, int16 ``[E]``.
    """

    atoms: NDArray[np.int16]
    bonds: NDArray[np.int16]
    orders: NDArray[np.int16]


def graph_of(mol: Any) -> Graph:
    """The graph of a molecule in RDKit's form."""
    rows = [
        (
            _element.get(a.GetAtomicNum(), len(ELEMENTS)),
            min(a.GetDegree(), 5),
            min(a.GetTotalNumHs(), 4),
            min(max(a.GetFormalCharge(), -2), 2) + 2,
            min(int(a.GetChiralTag()), 2),
            int(a.GetIsAromatic()),
            int(a.IsInRing()),
        )
        for a in map(mol.GetAtomWithIdx, range(mol.GetNumAtoms()))  # quicker than GetAtoms
    ]
    ends, codes = list[tuple[int, int]](), list[int]()
    for bond in map(mol.GetBondWithIdx, range(mol.GetNumBonds())):
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        code = (BONDS.get(bond.GetBondType(), 3) * 2 + bond.GetIsConjugated()) * 3 + STEREO.get(bond.GetStereo(), 0)
        ends += [(i, j), (j, i)]
        codes += [code, code]
    return Graph(
        (np.array(rows, dtype=np.int16) + _offset).astype(np.int16),
        np.array(ends, dtype=np.int16).reshape(-1, 2).T,
        np.array(codes, dtype=np.int16),
    )


def bits_of(mol: Any) -> NDArray[np.int64]:
    """Numbers of the bits of the Morgan fingerprint (radius 2, 2048 bits, with chirality)."""
    return np.array(_morgan.GetFingerprint(mol).GetOnBits(), dtype=np.int64)


@dataclass(frozen=True)
class GraphBatch:
    """Graphs of M molecules laid side by side.

    Attributes:
        atoms: codes, long ``[A, 7]``.
        bonds: long ``[2, E]``.
        orders: long ``[E]``.
        owner: molecule of each atom, long ``[A]``.
        size: number of molecules M.
    """

    atoms: Tensor
    bonds: Tensor
    orders: Tensor
    owner: Tensor
    size: int


def batch_of(graphs: Sequence[Graph], device: torch.device | str = "cpu") -> GraphBatch:
    """Lay graphs side by side."""
    counts = np.array([len(g.atoms) for g in graphs])
    shift = np.repeat(np.cumsum(counts) - counts, [g.bonds.shape[1] for g in graphs])
    bonds = np.concatenate([g.bonds for g in graphs], 1).astype(np.int64) + shift
    return GraphBatch(
        torch.from_numpy(np.concatenate([g.atoms for g in graphs]).astype(np.int64)).to(device),
        torch.from_numpy(bonds).to(device),
        torch.from_numpy(np.concatenate([g.orders for g in graphs]).astype(np.int64)).to(device),
        torch.from_numpy(np.repeat(np.arange(len(graphs)), counts)).to(device),
        len(graphs),
    )
