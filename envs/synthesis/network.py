"""The reaction network: molecules joined by labelled edges, found out as far as it is walked."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import rdkit
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.synthesis import chemistry
from envs.synthesis.blocks import Library
from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.graphs import Graph
from envs.synthesis.molecules import Molecule, Molecules
from envs.synthesis.retrosynthesis import Origin
from envs.synthesis.templates import Template
from envs.synthesis.workers import Subject, Workers
from gfn.storage import cache_directory

Reaction = tuple[str, int, int]  # SMILES of the molecule, move, block


class NetworkError(ValueError):
    """A library and templates between which nothing can happen."""


class ReactionNetwork:
    """What reactions make of molecules, and what molecules are made from.

    Args:
        library: building blocks.
        templates: reactions.
        chemoselective: respect the groups that templates forbid.
        stereo: keep stereochemistry.
        single: a block alone is a product, so all of them may begin a synthesis; otherwise only those
            that some reaction takes further.
        workers: processes that answer questions about molecules.
        cache: folder in which to keep what is computed of a library; None for the user's.

    Attributes:
        molecules: all that are in use.
        blocks: the library's molecules.
        own, partner: for each move the slots of the molecule and of the block (−1 for none), long ``[n_moves]``.
        members: for each slot, the blocks that fit, ascending.
        startable: which blocks may begin a synthesis, bool ``[n_blocks]``.

    Raises:
        NetworkError: if there are no blocks or templates, or none of the blocks takes part in any reaction.
    """

    def __init__(
        self,
        library: Library,
        templates: Sequence[Template],
        chemoselective: bool = False,
        stereo: bool = False,
        single: bool = False,
        workers: int = 0,
        cache: Path | None = None,
    ):
        if not library.blocks or not templates:
            raise NetworkError(
                f"a reaction network needs blocks and templates, got {len(library.blocks)} of {library.name} "
                f"({len(library.rejections)} rejected) and {len(templates)}"
            )
        self.library, self.templates = library, tuple(templates)
        self.molecules = Molecules()
        self.blocks = [self.molecules(block.smiles) for block in library.blocks]
        smiles = tuple(block.smiles for block in library.blocks)
        subject = Subject(self.templates, smiles, (), tuple(self.prices), chemoselective, stereo)
        self.workers = Workers(subject, workers)
        self.moves = self.workers.expert.chemistry.moves
        self.own = np.array([-1 if move is None else move.own for move in self.moves])
        self.partner = np.array([-1 if move is None else move.partner for move in self.moves])
        fits, reacts = self._surveyed(cache)
        for block, row in zip(self.blocks, fits, strict=True):
            block.fits = row
        self.members = [column.nonzero()[0] for column in fits.T]
        if not reacts.any():
            raise NetworkError(
                f"none of the {len(smiles)} blocks of {library.name} takes part in any of the {len(templates)} "
                "reactions together with another; choose more blocks (env.blocks, env.size) or other env.templates"
            )
        self.startable = np.ones(len(smiles), dtype=bool) if single else reacts
        start = tuple(self.startable.nonzero()[0].tolist())
        self.workers.close()
        self.workers = Workers(replace(subject, startable=start), workers)

    def __getstate__(self) -> dict[str, Any]:
        """All but molecules, which each process has its own of; what is known of the blocks goes along."""
        fits = np.stack([block.fits for block in self.blocks if block.fits is not None])
        return {k: v for k, v in vars(self).items() if k not in ("blocks", "block_index")} | {"fits of blocks": fits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fits = state.pop("fits of blocks")
        vars(self).update(state)
        self.blocks = [self.molecules(block.smiles) for block in self.library.blocks]
        for block, row in zip(self.blocks, fits, strict=True):
            block.fits = row

    @cached_property
    def block_index(self) -> dict[Molecule, int]:
        """Number of each block."""
        return {molecule: i for i, molecule in enumerate(self.blocks)}

    @cached_property
    def fitting(self) -> list[Tensor]:
        """For each slot, and last for the beginning, the blocks that fit, ascending, long."""
        return [torch.from_numpy(blocks) for blocks in (*self.members, self.startable.nonzero()[0])]

    @cached_property
    def slot_mask(self) -> Tensor:
        """The same as a mask, bool ``[n_slots + 1, n_blocks]``."""
        mask = torch.zeros(len(self.members) + 1, len(self.blocks), dtype=torch.bool)
        for slot, blocks in enumerate(self.fitting):
            mask[slot, blocks] = True
        return mask

    @property
    def idle(self) -> list[str]:
        """Names of the templates with a slot that no block fits."""
        pairs = zip(self.moves, self.partner.tolist(), strict=True)
        return sorted({move.template.name for move, slot in pairs if move and slot >= 0 and self.dead[slot]})

    @cached_property
    def dead(self) -> NDArray[np.bool_]:
        """Slots that no block fits, bool ``[n_slots]``; there are reactions that never happen."""
        return np.array([len(blocks) == 0 for blocks in self.members])

    def _surveyed(self, cache: Path | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Slots that each block fits, and whether any reaction takes it further; kept in a file."""
        place = (cache_directory() if cache is None else cache) / f"network-{self.digest}.npz"
        try:
            with np.load(place, allow_pickle=False) as stored:
                return stored["fits"], stored["reacts"]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
            pass  # not there, or damaged
        fits = np.stack(self.workers.ask("fits", [(block.smiles,) for block in self.blocks]))
        members = [column.nonzero()[0].tolist() for column in fits.T]
        choices = [(block.smiles, self._choices(row, members)) for block, row in zip(self.blocks, fits, strict=True)]
        reacts = np.array(self.workers.ask("reacts", choices), dtype=bool)
        _store(place, fits, reacts)
        return fits, reacts

    def _choices(self, fits: NDArray[np.bool_], members: list[list[int]]) -> tuple[tuple[int, int], ...]:
        """Moves with a block each: one is enough, since a reaction between molecules that fit hardly ever fails."""
        found: list[tuple[int, int]] = []
        for move, (own, partner) in enumerate(zip(self.own.tolist(), self.partner.tolist(), strict=True)):
            if own >= 0 and fits[own]:
                found += [(move, block) for block in ([-1] if partner < 0 else members[partner][:8])]
        return tuple(found)

    @cached_property
    def digest(self) -> str:
        """A name for everything that what is computed of the blocks depends on."""
        subject = self.workers.subject
        code = Path(str(chemistry.__file__)).read_text(encoding="utf-8")
        content = [code, rdkit.__version__, self.library.digest, str(subject.chemoselective), str(subject.stereo)]
        content += [f"{t.name} {t.forward} {t.forbid}" for t in self.templates]
        return hashlib.blake2b("\n".join(content).encode(), digest_size=12).hexdigest()

    def fits(self, molecules: Sequence[Molecule]) -> NDArray[np.bool_]:
        """Which slots molecules fit, bool ``[N, n_slots]``."""
        unknown = [m for m in dict.fromkeys(molecules) if m.fits is None]
        for molecule, row in zip(unknown, self.workers.ask("fits", [(m.smiles,) for m in unknown]), strict=True):
            molecule.fits = row
        rows = [m.fits for m in molecules if m.fits is not None]
        return np.stack(rows) if rows else np.zeros((0, len(self.members)), dtype=bool)

    def graphs(self, molecules: Sequence[Molecule]) -> list[Graph]:
        """Graphs of molecules."""
        unknown = [m for m in dict.fromkeys(molecules) if m.graph is None]
        for molecule, graph in zip(unknown, self.workers.ask("graph", [(m.smiles,) for m in unknown]), strict=True):
            molecule.graph = graph
        return [m.graph for m in molecules]

    def bits(self, molecules: Sequence[Molecule]) -> list[NDArray[np.int64]]:
        """Fingerprints of molecules, as numbers of bits."""
        unknown = [m for m in dict.fromkeys(molecules) if m.bits is None]
        for molecule, bits in zip(unknown, self.workers.ask("bits", [(m.smiles,) for m in unknown]), strict=True):
            molecule.bits = bits
        return [m.bits for m in molecules if m.bits is not None]

    def outcomes(self, reactions: Sequence[Reaction]) -> list[tuple[str, ...]]:
        """Every product of each of the reactions."""
        return self.workers.ask("outcomes", reactions)

    def origins(self, smiles: Sequence[str], depths: Sequence[int]) -> list[tuple[Origin, ...]]:
        """Every edge into each molecule at its depth of at least 1, from parents within reach."""
        return self.workers.ask("origins", list(zip(smiles, depths, strict=True)))

    def proposed(self, smiles: Sequence[str]) -> list[tuple[Origin, ...]]:
        """Every edge into each molecule, from parents that may be out of reach."""
        return self.workers.ask("candidates", [(text,) for text in smiles])

    def reachable(self, smiles: Sequence[str], depths: Sequence[int]) -> list[bool]:
        """Whether each molecule can be made with so many reactions."""
        return self.workers.ask("reachable", list(zip(smiles, depths, strict=True)))

    @cached_property
    def prices(self) -> list[float]:
        """Price of each block as a multiple of the mean; 1 where none is known."""
        known = [block.price for block in self.library.blocks if block.price is not None]
        mean = sum(known) / len(known) if known else 1.0
        return [1.0 if block.price is None else block.price / max(mean, 1e-12) for block in self.library.blocks]

    def costs(self, smiles: Sequence[str], depths: Sequence[int], step_cost: float) -> list[float]:
        """Cost of the cheapest synthesis of each molecule with so many reactions: blocks, and each reaction."""
        return self.workers.ask("cost", [(text, depth, step_cost) for text, depth in zip(smiles, depths, strict=True)])

    def applicable(self, fits: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Reactions that the slots of molecules allow and some block can take part in, bool ``[N, n_moves]``."""
        allowed = fits[:, self.own] & ((self.partner < 0) | ~self.dead[self.partner])
        allowed[:, [STOP, FIRST]] = False
        return allowed


def _store(place: Path, fits: NDArray[np.bool_], reacts: NDArray[np.bool_]) -> None:
    """Keep the survey of a library for the next time, if the disk lets us."""
    part = place.with_name(f"{place.name}.{os.getpid()}.npz")
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(part, fits=fits, reacts=reacts)
        os.replace(part, place)
