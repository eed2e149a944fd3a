"""What a reward of molecules is, and the checks that every one of them shares."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from gfn.environment import RewardError

Values = NDArray[np.float64]
SHOWN = 5  # molecules named in one message


class Score(Protocol):
    """Numbers of molecules, of either sign: what a desirability turns into a reward.

    What it computes is a function of the molecule alone: neither the order nor the company of the
    molecules in a batch matters. Its ``repr`` states every parameter that its values depend on; caches
    tell scores apart by it.
    """

    @property
    def name(self) -> str:
        """What it is called in reports and messages."""
        ...

    def __call__(self, smiles: Sequence[str]) -> Values:
        """Value of each molecule, float64 ``[N]``, finite. Raises RewardError where there is none."""
        ...

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        """The values it is made of, each ``[N]``, for reports; its own, under :attr:`name`, among them."""
        ...


class Reward(Score, Protocol):
    """A score that is nowhere negative: R itself, not its logarithm. Zero is legal."""


def on_failure(score: Score) -> float | str | None:
    """What stands for a value where a score fails: a number, ``mask`` for NaN, or None, as it raises."""
    return getattr(score, "on_failure", None)


def require_values(
    name: str, values: Any, smiles: Sequence[str], *, signed: bool = False, unknown: bool = False
) -> Values:
    """``values`` as float64 ``[N]``, if they are as many finite numbers as molecules and, unless signed, ≥ 0.

    With ``unknown``, NaN may stand for a value that is not known.

    Raises:
        RewardError: with the function and every molecule (the first few of many) that has no legal value.
    """
    try:
        array = np.asarray(values)
        real = array.astype(np.float64) if array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):  # nested lists of unequal length
        real = None
    if real is None:
        shown = f"{values!r:.100}"
        raise RewardError(f"{name}: expected real numbers, got {shown} for {_some(smiles)}")
    if real.shape != (len(smiles),):
        raise RewardError(
            f"{name}: expected one number for each of {len(smiles)} molecules, got shape {list(real.shape)} "
            f"for {_some(smiles)}"
        )
    legal = np.isfinite(real) if signed else np.isfinite(real) & (real >= 0)
    if unknown:
        legal |= np.isnan(real)
    if not legal.all():
        bad = [f"{real[i]:g} for {smiles[i]}" for i in np.flatnonzero(~legal).tolist()]
        expected = (
            "finite numbers" if signed else "finite numbers ≥ 0 (a desirability makes a reward of a signed score)"
        )
        raise RewardError(f"{name}: expected {expected}, got {_some(bad)}")
    return real


def _some(items: Sequence[str]) -> str:
    more = len(items) - SHOWN
    return ", ".join(items[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def molecules(name: str, smiles: Sequence[str]) -> list[Any]:
    """RDKit molecules of SMILES.

    Args:
        name: who asks, for the message.
        smiles: ``[N]``.

    Raises:
        RewardError: naming every text (the first few of many) that is no molecule.
    """
    with rdBase.BlockLogs():  # the message below says it once, and for whom
        parsed: list[Any] = [Chem.MolFromSmiles(text) for text in smiles]
    bad = [repr(text) for text, mol in zip(smiles, parsed, strict=True) if mol is None or mol.GetNumAtoms() == 0]
    if bad:
        raise RewardError(f"{name}: expected SMILES that RDKit can read, of at least one atom, got {_some(bad)}")
    return parsed


def imported(module: str, extra: str, user: str) -> Any:
    """A module that comes with an optional extra of this package.

    Raises:
        ImportError: naming the extra to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{user} needs {module} ({error}); install it with: pip install 'fgfn[{extra}]'") from error
