"""A synthesis environment from the names of its parts, as configs give them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from envs.synthesis import templates as reactions
from envs.synthesis.environment import Synthesis
from envs.synthesis.libraries import library
from envs.synthesis.network import ReactionNetwork
from envs.synthesis.rewards import Reward

log = logging.getLogger(__name__)


def synthesis(
    reward: Reward,
    blocks: str | list[str] = "nci",
    size: int | None = None,
    library_seed: int = 0,
    max_atoms: int = 30,
    stereo: bool = False,
    strict: bool = False,
    rejected: Path | None = None,
    templates: Path | None = None,
    only: Sequence[str] | None = None,
    chemoselective: bool = False,
    max_reactions: int = 3,
    min_reactions: int = 1,
    exponent: float | list[float] = 1.0,
    listed: bool = False,
    mode_threshold: float = 0.5,
    workers: int = 0,
    cache: Path | None = None,
) -> Synthesis:
    """Molecules made from a library of building blocks by reaction templates, with the target R(x)^β.

    Args:
        reward: R of molecules.
        blocks: a library (``nci``, ``synspace``, ``chemicals``, ``all``), a file, or SMILES.
        size: number of blocks, chosen at random but the same for the same ``library_seed``; None for all.
        library_seed: of that choice.
        max_atoms: heavy atoms of a block, at most.
        stereo: keep stereochemistry; otherwise no molecule has any.
        strict: refuse a library with entries that cannot be used, rather than leave them out.
        rejected: a CSV file to write these entries into.
        templates: file or folder of reaction templates; None for this project's own.
        only: names of the templates to use; None for all.
        chemoselective: respect the groups that templates forbid in a reactant.
        max_reactions, min_reactions: of a synthesis.
        exponent: β; with several, each synthesis draws one.
        listed: list all states, for exact evaluation; only for a handful of blocks.
        mode_threshold: R, before the exponent, from which on a molecule, and its scaffold, is a mode.
        workers: processes that answer questions about molecules; 0 does it here.
        cache: folder for what is computed of a library; None for the user's.

    Raises:
        ValueError: if the parts do not go together.
    """
    chosen = library(blocks, size, library_seed, stereo, max_atoms, strict, cache)
    if chosen.rejections:
        hint = "env.rejected=FILE lists them" if rejected is None else f"they are listed in {rejected}"
        counts = len(chosen), chosen.name, len(chosen.rejections)
        log.info("%d blocks of %s; %d entries were left out (%s)", *counts, hint)
    if rejected is not None:
        chosen.write_report(rejected)
    network = ReactionNetwork(
        chosen, reactions.load(templates, only), chemoselective, stereo, min_reactions == 0, workers, cache
    )
    if network.idle:
        log.info("no block fits a slot of %s, which only molecules made before can take", ", ".join(network.idle))
    return Synthesis(network, reward, max_reactions, min_reactions, exponent, listed, mode_threshold)
