"""Building blocks: cleaning what a catalogue lists, and saying why the rest cannot be used.

Cleaning is a fixed point: a cleaned SMILES, cleaned again, is the same text, so that a molecule has one name
wherever it turns up.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rdkit import Chem, rdBase
from rdkit.Chem import rdMolDescriptors
from rdkit.Chem.MolStandardize import rdMolStandardize

ELEMENTS = frozenset(("H", "B", "C", "N", "O", "F", "Si", "P", "S", "Cl", "Se", "Br", "I"))
LISTED = 20  # rejections that an error lists
ROUNDS = 5  # of cleaning that a molecule may need until nothing changes; two are the rule

# acids, bases and solvents that molecules crystallise with: one of them is the block only where nothing else is
# there, for many a small amine is lighter than its acid
_COMPANIONS = """
    O=CO CC(=O)O O=C(O)C(F)(F)F O=C(O)C(=O)O O=C(O)CC(=O)O O=C(O)CCC(=O)O O=C(O)C=CC(=O)O O=C(O)CC(O)C(=O)O
    O=C(O)C(O)C(O)C(=O)O O=C(O)CC(O)(CC(=O)O)C(=O)O CC(O)C(=O)O O=C(O)c1ccccc1 CS(=O)(=O)O CCS(=O)(=O)O
    O=S(=O)(O)C(F)(F)F O=S(=O)(O)c1ccccc1 Cc1ccc(S(=O)(=O)O)cc1 O=[N+]([O-])c1cc([N+](=O)[O-])c(O)c([N+](=O)[O-])c1
    CCN(CC)CC NC1CCCCC1 C1CCC(NC2CCCCC2)CC1 NC(CO)(CO)CO
    CO CCO CC(C)O CC(C)=O CC#N CN(C)C=O CS(C)=O CCOCC C1CCOC1 C1COCCO1 CCOC(C)=O ClCCl ClC(Cl)Cl Cc1ccccc1
"""
COMPANIONS = frozenset(_COMPANIONS.split())
# only protons move: a carbocation is no salt, and adding a hydride would make it another compound
CHARGES = rdMolStandardize.Uncharger(canonicalOrder=True, force=False, protonationOnly=True)


class BlockError(ValueError):
    """Building blocks cannot be used; the message says which, where they stand and why."""


@dataclass(frozen=True)
class Record:
    """What a source lists, before cleaning.

    Attributes:
        line: 1-based line, or number in a list.
        text: what stands there.
        smiles: as written.
        id: the source's name for it.
        source: file or package.
        cas: CAS registry number.
        price: in the source's currency and quantity.
        problem: why the reader already knows that it cannot be used; empty if it may be.
    """

    line: int
    text: str
    smiles: str
    id: str
    source: str
    cas: str | None = None
    price: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Block:
    """A building block: canonical SMILES (RDKit), the source's id for it and, where known, CAS number and price."""

    smiles: str
    id: str
    source: str
    cas: str | None = None
    price: float | None = None


@dataclass(frozen=True)
class Rejection:
    """A line of a source (1-based), the text there, why it is no block of the library, and the source."""

    line: int
    text: str
    reason: str
    source: str = ""

    def __str__(self) -> str:
        text = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        return f"{self.source or 'list'}, line {self.line}: {text!r} {self.reason}"


@dataclass(frozen=True)
class Library:
    """Building blocks, sorted by SMILES and unique, with what was rejected in the order of the source."""

    name: str
    blocks: tuple[Block, ...]
    rejections: tuple[Rejection, ...] = ()

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that only the SMILES decide, in the same way on every machine."""
        return blake2b("\n".join(block.smiles for block in self.blocks).encode(), digest_size=16).hexdigest()

    def write_report(self, path: Path) -> None:
        """Write every rejection, duplicates with the id that was kept among them, as a CSV file."""
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(("source", "line", "text", "reason"))
            table.writerows((r.source, r.line, r.text, r.reason) for r in self.rejections)

    def subset(self, size: int, seed: int = 0) -> Library:
        """The ``size`` blocks that come first in an order drawn by ``seed``; all if there are no more.

        The order of two blocks depends on them and the seed alone: subsets of one seed are nested, and a
        catalogue that gains or loses some blocks keeps the places of the others.
        """

        def place(block: Block) -> bytes:
            return blake2b(f"{seed} {block.smiles}".encode(), digest_size=16).digest()

        kept = sorted(self.blocks, key=place)[:size]
        return replace(self, blocks=tuple(sorted(kept, key=lambda block: block.smiles)))


def clean(
    records: Iterable[Record],
    *,
    name: str = "blocks",
    stereo: bool = False,
    max_atoms: int = 30,
    min_atoms: int = 2,
    strict: bool = False,
) -> Library:
    """Building blocks that can be used: one neutral organic molecule each, written canonically, none of them twice.

    Of a salt, solvate or mixture one fragment stays: the largest organic one that is none of the COMPANIONS if
    there is any, counting heavy atoms. Protons balance its charges, and atom maps go. What then
    contains other elements than ELEMENTS, an isotope, a radical, a net charge or no carbon is rejected, like
    what is no molecule at all or too small or too large. Of duplicates the first stays.

    Args:
        records: what the source lists.
        name: of the library.
        stereo: keep stereochemistry; by default it is removed everywhere, and stereoisomers are duplicates.
        max_atoms: heavy atoms at most.
        min_atoms: heavy atoms at least.
        strict: raise on what cannot be used, other than duplicates, instead of going on without it.

    Raises:
        BlockError: if ``strict``, with the first LISTED rejections and the number of all.
        ValueError: for limits that nothing can meet.
    """
    if not 1 <= min_atoms <= max_atoms:
        raise ValueError(f"blocks: needs 1 <= min_atoms <= max_atoms, got {min_atoms=} {max_atoms=}")
    found: dict[str, Block] = {}
    rejections: list[Rejection] = []
    wrong: list[Rejection] = []
    for record in records:
        smiles, reason = (
            ("", record.problem) if record.problem else _cleaned(record.smiles, stereo, min_atoms, max_atoms)
        )
        repeats = not reason and smiles in found
        if repeats:
            reason = f"is a duplicate of {found[smiles].id} ({found[smiles].source})"
        if reason:
            rejections.append(Rejection(record.line, record.text, reason, record.source))
            wrong += [] if repeats else rejections[-1:]
        else:
            found[smiles] = Block(smiles, record.id, record.source, record.cas, record.price)
    if strict and wrong:
        raise BlockError(listed(name, wrong))
    return Library(name, tuple(found[smiles] for smiles in sorted(found)), tuple(rejections))


def listed(name: str, rejections: Sequence[Rejection]) -> str:
    """The text of an error: the first LISTED rejections, and the number of all."""
    more = [f"and {len(rejections) - LISTED} more"] if len(rejections) > LISTED else []
    lines = [str(rejection) for rejection in rejections[:LISTED]] + more
    return "\n  ".join([f"{name}: {len(rejections)} that cannot be used:", *lines])


def complaints(mol: Any) -> str:
    """What RDKit finds wrong with a molecule that was read without sanitisation, on one line."""
    return "; ".join(problem.Message() for problem in Chem.DetectChemistryProblems(mol)) or "cannot be sanitised"


def _cleaned(text: str, stereo: bool, fewest: int, most: int) -> tuple[str, str]:
    """The canonical SMILES of what is left after cleaning, or why nothing is: one of the two is empty."""
    with rdBase.BlockLogs():  # RDKit's reasons are for the report, not for the terminal
        mol, reason = _parsed(text.strip())
        if reason:
            return "", reason
        mol = _standard(mol, stereo)
        reason = _fault(mol, fewest, most)
        if reason:
            return "", reason
        smiles = _settled(mol, stereo)
        return smiles, "" if smiles else "has no canonical SMILES that RDKit reads back as the same molecule"


def _parsed(text: str) -> tuple[Any, str]:
    if not text:
        return None, "is empty"
    if not (text.isascii() and text.isprintable()):  # RDKit stops at a null and cannot take some of the others
        return None, "is no SMILES: it has characters other than printable ASCII"
    options = Chem.SmilesParserParams()
    options.parseName = options.allowCXSMILES = False
    mol: Any = Chem.MolFromSmiles(text, options)
    if mol is not None:
        return mol, "" if mol.GetNumAtoms() else "is empty"
    options.sanitize = False
    raw: Any = Chem.MolFromSmiles(text, options)
    return None, "is no SMILES" if raw is None else f"is no molecule: {complaints(raw)}"


def _standard(mol: Any, stereo: bool) -> Any:
    if len(Chem.GetMolFrags(mol)) > 1:
        mol = max(Chem.GetMolFrags(mol, asMols=True), key=_importance)
    if any(atom.GetFormalCharge() for atom in mol.GetAtoms()):
        mol = CHARGES.uncharge(mol)
    for atom in mol.GetAtoms():
        atom.SetAtomMapNum(0)  # reactions use map numbers of their own
    if not stereo:
        Chem.RemoveStereochemistry(mol)
    return mol


def _importance(fragment: Any) -> tuple[bool, bool, int, float, str]:
    """The fragment of a mixture for which this is largest is the molecule, however all are written."""
    neutral = CHARGES.uncharge(fragment)
    organic = any(atom.GetSymbol() == "C" for atom in neutral.GetAtoms())
    flat = Chem.MolToSmiles(neutral, isomericSmiles=False)
    size = neutral.GetNumHeavyAtoms()
    return organic, flat not in COMPANIONS, size, rdMolDescriptors.CalcExactMolWt(neutral), Chem.MolToSmiles(neutral)


def _fault(mol: Any, fewest: int, most: int) -> str:
    """The first reason why a standardised molecule is no building block; empty if there is none."""
    atoms: list[Any] = list(mol.GetAtoms())
    symbols = {atom.GetSymbol() for atom in atoms}
    charge = Chem.GetFormalCharge(mol)
    if symbols - ELEMENTS:
        return f"contains {', '.join(sorted(symbols - ELEMENTS))}; blocks are made of {' '.join(sorted(ELEMENTS))}"
    if "C" not in symbols:
        return "contains no carbon"
    if any(atom.GetIsotope() for atom in atoms):
        return "contains an isotope"
    if any(atom.GetNumRadicalElectrons() for atom in atoms):
        return "is a radical"
    if charge:
        return f"has a charge of {charge:+d} that protons cannot balance"
    if not fewest <= mol.GetNumHeavyAtoms() <= most:
        return f"has {mol.GetNumHeavyAtoms()} heavy atoms; expected {fewest} to {most}"
    return ""


def _settled(mol: Any, stereo: bool) -> str:
    """SMILES that cleaning leaves as they are; empty if there are none."""
    smiles = ""
    for _ in range(ROUNDS):
        before, smiles = smiles, Chem.MolToSmiles(mol)
        if smiles == before:
            return smiles
        mol = Chem.MolFromSmiles(smiles)
        if mol is None:
            return ""
        mol = _standard(mol, stereo)
    return ""
