"""How different molecules are: fingerprints, scaffolds and modes. What was found out about a molecule is remembered.

Fingerprints are Morgan fingerprints of 2048 bits without chirality, similarity is that of Tanimoto.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from rdkit import Chem, DataStructs, rdBase
from rdkit.Chem import rdFingerprintGenerator
from rdkit.Chem.Scaffolds import MurckoScaffold

N_BITS = 2048
MOST_MODES = 5000
_generators = {r: rdFingerprintGenerator.GetMorganGenerator(radius=r, fpSize=N_BITS) for r in (1, 2, 3, 4)}


@lru_cache(2_000)  # some 40 kB each
def parsed(smiles: str) -> Any:
    """The molecule in RDKit's form, or None if RDKit cannot read it."""
    with rdBase.BlockLogs():  # what is no molecule is counted, not printed
        return Chem.MolFromSmiles(smiles) if smiles else None


def molecule(smiles: str) -> Any:
    """The molecule in RDKit's form.

    Raises:
        ValueError: if RDKit cannot read it.
    """
    mol = parsed(smiles)
    if mol is None:
        raise ValueError(f"expected the SMILES of a molecule, got {smiles!r}; leave out what is not valid")
    return mol


@lru_cache(100_000)
def fingerprint(smiles: str, radius: int = 2) -> Any:
    """Morgan fingerprint, for RDKit's similarities."""
    return _generators[radius].GetFingerprint(molecule(smiles))


@lru_cache(100_000)
def scaffold(smiles: str) -> str:
    """SMILES of the Murcko scaffold (rings and what joins them) without stereochemistry; empty if there is no ring."""
    return Chem.MolToSmiles(MurckoScaffold.GetScaffoldForMol(molecule(smiles)), isomericSmiles=False)


def distance(first: Sequence[str], second: Sequence[str], radius: int = 2) -> list[float]:
    """1 − similarity of two lists of molecules, row by row."""
    pairs = zip(first, second, strict=True)
    return [1 - DataStructs.TanimotoSimilarity(fingerprint(a, radius), fingerprint(b, radius)) for a, b in pairs]


def mean_distance(smiles: Sequence[str], radius: int = 2) -> float:
    """Mean of 1 − similarity over all pairs; NaN if there are none."""
    marks = [fingerprint(text, radius) for text in smiles]
    pairs = len(marks) * (len(marks) - 1) / 2
    total = sum(sum(DataStructs.BulkTanimotoSimilarity(mark, marks[:i])) for i, mark in enumerate(marks))
    return 1 - total / pairs if pairs else float("nan")


def modes(
    smiles: Sequence[str],
    rewards: Sequence[float],
    threshold: float,
    radius: int = 2,
    similarity: float = 0.5,
    most: int = MOST_MODES,
) -> list[int]:
    """Numbers of the molecules that are modes, the best first.

    Molecules are taken from the best on, equally good ones by their SMILES; one whose reward is at least
    ``threshold`` is a mode if it is less similar than ``similarity`` to every mode before it. The search
    ends with ``most`` modes.
    """
    good = [i for i, reward in enumerate(rewards) if reward >= threshold]
    found, marks = list[int](), list[Any]()
    for i in sorted(good, key=lambda i: (-rewards[i], smiles[i])):
        if len(found) == most:
            break
        mark = fingerprint(smiles[i], radius)
        if max(DataStructs.BulkTanimotoSimilarity(mark, marks), default=0.0) < similarity:
            found.append(i)
            marks.append(mark)
    return found


def scaffolds(smiles: Sequence[str], rewards: Sequence[float], threshold: float) -> set[str]:
    """Scaffolds of the molecules with a reward of at least ``threshold``; those without a ring have none."""
    return {scaffold(text) for text, reward in zip(smiles, rewards, strict=True) if reward >= threshold} - {""}
