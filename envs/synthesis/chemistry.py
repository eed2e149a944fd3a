"""What RDKit is asked: which slots a molecule fits, what a reaction makes of it, what it may be made from.

Molecules come and go as canonical SMILES, so answers do not depend on the order of atoms, and every
function is pure: the same question has the same answer in every process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, rdBase

from envs.synthesis.templates import Template, reaction

STOP, FIRST = 0, 1  # the first two moves; each way of taking part in a reaction follows
LONGEST = 512  # characters of the SMILES of a molecule
PARSED = 2_000  # molecules kept in RDKit's own form, at some 40 kB each
SETTLED = 20_000  # SMILES whose canonical form is kept


@dataclass(frozen=True)
class Move:
    """A way of taking part in a reaction.

    Attributes:
        template: the reaction.
        role: the slot that the molecule at hand takes; a building block takes the other, if there is one.
        own: number of the slot among all distinct ones.
        partner: number of the block's slot, or −1.
    """

    template: Template
    role: int
    own: int
    partner: int


@dataclass(frozen=True)
class Precursor:
    """A parent that a molecule may come from: by which move, with which block (−1 for none)."""

    move: int
    block: int
    parent: str


class Chemistry:
    """Templates put to use on SMILES.

    Args:
        templates: the reactions.
        blocks: canonical SMILES of the building blocks, by which walks back recognise them.
        chemoselective: respect what the templates forbid in each slot.
        stereo: keep stereochemistry; otherwise no molecule has any.

    Attributes:
        moves: every way of taking part in a reaction; None for ``STOP`` and ``FIRST``.
        n_slots: number of distinct slots.
        largest: number of heavy atoms of the largest block.
    """

    def __init__(
        self, templates: Sequence[Template], blocks: Sequence[str], chemoselective: bool = False, stereo: bool = False
    ):
        self.templates, self.stereo = tuple(templates), stereo
        self.block_index: Mapping[str, int] = {smiles: i for i, smiles in enumerate(blocks)}
        self.blocks = tuple(blocks)
        self._forward = [reaction(t.forward) for t in templates]
        self._retro = _by_pattern(templates)
        self._slots: dict[tuple[str, tuple[str, ...]], int] = {}
        self.moves: tuple[Move | None, ...] = (None, None, *self._ways(chemoselective))
        self.n_slots = len(self._slots)
        self._patterns = [(Chem.MolFromSmarts(want), [Chem.MolFromSmarts(p) for p in bar]) for want, bar in self._slots]
        self._number = {t.name: i for i, t in enumerate(templates)}
        self._geometries = [len(re.findall(r"[/\\]", t.forward.split(">>")[1])) // 2 for t in templates]
        self._moves_of = {t.name: [j for j, m in enumerate(self.moves) if m and m.template is t] for t in templates}
        self.largest = max(map(heavy_atoms, blocks), default=0)
        self.parse = lru_cache(PARSED)(_parsed)
        self.settled = lru_cache(SETTLED)(self._settled)

    def _ways(self, chemoselective: bool) -> Iterable[Move]:
        for template, rxn in zip(self.templates, self._forward, strict=True):
            numbers: list[int] = []
            for i in range(template.n_slots):
                pattern = Chem.MolToSmarts(_unmapped(rxn.GetReactantTemplate(i)))
                forbidden = template.forbid[i] if chemoselective and template.forbid else ()
                numbers.append(self._slots.setdefault((pattern, forbidden), len(self._slots)))
            for role, own in enumerate(numbers):
                yield Move(template, role, own, numbers[1 - role] if len(numbers) == 2 else -1)

    def fits(self, smiles: str) -> NDArray[np.bool_]:
        """Which slots a molecule fits, ``[n_slots]``."""
        mol = self.parse(smiles)
        matches = (
            mol.HasSubstructMatch(want) and not self._barred(mol, slot) for slot, (want, _) in enumerate(self._patterns)
        )
        return np.fromiter(matches, dtype=bool, count=self.n_slots)

    def _barred(self, mol: Any, slot: int) -> bool:
        """Whether a molecule has a group that the slot forbids."""
        return any(mol.HasSubstructMatch(pattern) for pattern in self._patterns[slot][1])

    def outcomes(self, parent: str, move: int, block: int) -> tuple[str, ...]:
        """Every product of a move, distinct, in the order of their SMILES; empty if nothing sound comes out.

        Reactants with a group that their slot forbids give nothing.
        Products that RDKit cannot sanitise, that fall apart, whose SMILES is too long, or that have lost or
        won a stereo mark other than of a double bond that the template writes (so that the way back could not
        tell which there was) do not count.
        """
        way = self.moves[move]
        assert way is not None
        number = self._number[way.template.name]
        reactants, slots = [self.parse(parent)], [way.own]
        if way.partner >= 0:
            reactants.insert(1 - way.role, self.parse(self.blocks[block]))
            slots.insert(1 - way.role, way.partner)
        if any(self._barred(mol, slot) for mol, slot in zip(reactants, slots, strict=True)):
            return ()
        with rdBase.BlockLogs():  # what cannot be sanitised is no outcome, and nothing to print
            raw = self._forward[number].RunReactants(reactants)
            found = {self.canonical(product) for (product,) in raw}
        sound = (smiles for smiles in found if smiles and len(smiles) <= LONGEST and "." not in smiles)
        if self.stereo:
            marks = sum(map(stereo_marks, reactants)) + self._geometries[number]
            sound = (smiles for smiles in sound if stereo_marks(self.parse(smiles)) == marks)
        return tuple(sorted(sound))

    def precursors(self, smiles: str, last: bool = False) -> tuple[Precursor, ...]:
        """What a molecule may be a product of, in a fixed order; each still to be confirmed by :meth:`outcomes`.

        Args:
            smiles: of the molecule.
            last: leave parents out that are larger than every block; those that are not blocks may remain.
        """
        mol, found = self.parse(smiles), set[tuple[int, int, str]]()
        with rdBase.BlockLogs():
            for pattern, uses in self._retro:
                if mol.HasSubstructMatch(pattern):
                    for name, rxn in uses:
                        for fragments in rxn.RunReactants((mol,)):
                            found |= set(self._assigned(name, fragments, last))
        return tuple(Precursor(*edge) for edge in sorted(found))

    def _assigned(self, name: str, fragments: tuple[Any, ...], last: bool) -> Iterable[tuple[int, int, str]]:
        """Each way in which one of the fragments is the parent and the other, if there is one, a block."""
        small = [fragment.GetNumAtoms() <= self.largest for fragment in fragments]
        if (last and not all(small)) or (len(fragments) == 2 and not any(small)):
            return
        written = [self.canonical(fragment) if few else None for fragment, few in zip(fragments, small, strict=True)]
        for move in self._moves_of[name]:
            way = self.moves[move]
            assert way is not None
            block = -1
            if way.partner >= 0:
                block = self.block_index.get(written[1 - way.role] or "", -1)
                if block < 0:
                    continue
            parent = written[way.role]
            if parent is None:
                parent = written[way.role] = self.canonical(fragments[way.role])
            if parent:
                yield move, block, parent

    def canonical(self, mol: Any) -> str:
        """Canonical SMILES of what a reaction made, or an empty text if it is no molecule."""
        if Chem.SanitizeMol(mol, catchErrors=True) != Chem.SanitizeFlags.SANITIZE_NONE:
            return ""
        return self.settled(self._written(mol))

    def _settled(self, text: str) -> str:
        """What SMILES become if they are read and written until that changes nothing; for most, they stay."""
        seen = [text]
        while True:
            mol = self.parse(seen[-1])
            if mol is None:
                return ""
            again = self._written(mol)
            if again in seen:
                return min(seen[seen.index(again) :])
            seen.append(again)

    def _written(self, mol: Any) -> str:
        return Chem.MolToSmiles(mol, isomericSmiles=self.stereo)


def stereo_marks(mol: Any) -> int:
    """Number of atoms and double bonds of which the geometry is given."""
    centres = sum(atom.GetChiralTag() != Chem.ChiralType.CHI_UNSPECIFIED for atom in mol.GetAtoms())
    return centres + sum(bond.GetStereo() > Chem.BondStereo.STEREOANY for bond in mol.GetBonds())


def heavy_atoms(smiles: str) -> int:
    """Number of heavy atoms of a SMILES, without reading it."""
    return len(re.findall(r"\[(?!\d*H)[^]]+\]|Br|Cl|[BCNOSPFIbcnosp]", smiles))


def _by_pattern(templates: Sequence[Template]) -> list[tuple[Any, list[tuple[str, Any]]]]:
    """Retro reactions by the pattern they begin from, which many share, each with its template's name."""
    found: dict[str, tuple[Any, list[tuple[str, Any]]]] = {}
    for template in templates:
        for smirks in template.retro:
            rxn = reaction(smirks)
            pattern = _unmapped(rxn.GetReactantTemplate(0))
            found.setdefault(Chem.MolToSmarts(pattern), (pattern, []))[1].append((template.name, rxn))
    return list(found.values())


def _parsed(smiles: str) -> Any:
    return Chem.MolFromSmiles(smiles)


def _unmapped(pattern: Any) -> Any:
    """A copy without atom map numbers, so that equal slots of different reactions look equal."""
    copy = Chem.Mol(pattern)
    for atom in copy.GetAtoms():
        atom.SetAtomMapNum(0)
    return copy
