"""Every state and edge of a reaction network with few blocks, for exact evaluation and exact tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.molecules import Molecule, Syntheses
from envs.synthesis.network import ReactionNetwork
from gfn.environment import TooManyStatesError

MAX_LISTED = 200_000

Place = tuple[Molecule, int, bool]  # molecule, reactions used, finished


class Listing:
    """All states that blocks and at most ``max_reactions`` reactions lead to, and the edges between them.

    Args:
        network: blocks and reactions.
        max_reactions, min_reactions: of a synthesis.
        conditions: number of conditions, each of which has all the states.
    """

    def __init__(self, network: ReactionNetwork, max_reactions: int, min_reactions: int, conditions: int):
        self.network, self.conditions = network, conditions
        self.max_reactions, self.min_reactions = max_reactions, min_reactions

    def __getstate__(self) -> dict[str, Any]:
        """Without the states, which are found again: molecules do not travel between processes."""
        return {name: value for name, value in vars(self).items() if name != "_place"}

    def enumerate(self) -> Syntheses:
        """Every state once, by the number of reactions, finished ones last; each condition after the other.

        Raises:
            TooManyStatesError: if there are more than 200 000.
        """
        places = list(self._place)
        n = len(places)
        condition = torch.arange(self.conditions).repeat_interleave(n)
        return Syntheses(
            self.network.molecules,
            tuple(molecule for molecule, _, _ in places) * self.conditions,
            torch.tensor([depth for _, depth, _ in places]).repeat(self.conditions),
            torch.tensor([stopped for _, _, stopped in places]).repeat(self.conditions),
            condition,
        )

    def index(self, states: Syntheses) -> Tensor:
        """Position in :meth:`enumerate`, long ``[N]``."""
        rows = zip(states.molecule, states.depth.tolist(), states.stopped.tolist(), strict=True)
        place = torch.tensor([self._place[row] for row in rows], dtype=torch.long, device=states.depth.device)
        return states.condition * len(self._place) + place

    def edges(self, states: Syntheses) -> tuple[Tensor, Tensor]:
        """Every edge out of unfinished states: rows ``[E]`` and actions ``[E, 4]``."""
        listed = [
            (row, action)
            for row, (molecule, depth) in enumerate(zip(states.molecule, states.depth.tolist(), strict=True))
            for action, _ in self._edges_of(molecule, depth)
        ]
        device = states.depth.device
        rows = torch.tensor([row for row, _ in listed], dtype=torch.long, device=device)
        return rows, torch.tensor([a for _, a in listed], dtype=torch.long, device=device).reshape(-1, 4)

    @cached_property
    def _place(self) -> dict[Place, int]:
        """Positions of all states of one condition."""
        start = self.network.molecules.start
        level, found = [start], [(start, 0, False)]
        ends = dict[Molecule, None]()
        for depth in range(self.max_reactions + 1):
            later = dict[Molecule, None]()
            for molecule in level:
                ends_here = (end for action, end in self._edges_of(molecule, max(depth - 1, 0)) if action[0] != STOP)
                later |= dict.fromkeys(ends_here)
                if len(found) + len(ends) + len(later) > MAX_LISTED:
                    raise TooManyStatesError(
                        f"more than {MAX_LISTED} states with {len(self.network.blocks)} blocks and {depth} reactions: "
                        "take fewer blocks or reactions, or evaluate by samples (env.listed=false)"
                    )
            level = sorted(later, key=lambda m: m.smiles)
            found += [(m, depth, False) for m in level]
            if depth >= self.min_reactions:
                ends |= dict.fromkeys(level)
        return {place: i for i, place in enumerate([*found, *((m, 0, True) for m in ends)])}

    def _edges_of(self, molecule: Molecule, depth: int) -> Iterator[tuple[list[int], Molecule]]:
        """Every action in an unfinished state, and the molecule it leads to."""
        network = self.network
        if molecule is network.molecules.start:
            for block in network.startable.nonzero()[0].tolist():
                yield [FIRST, block, 0, molecule.key], network.blocks[block]
            return
        if depth >= self.min_reactions:
            yield [STOP, depth, 0, molecule.key], molecule
        if depth == self.max_reactions:
            return
        moves = network.applicable(network.fits([molecule]))[0].nonzero()[0].tolist()
        pairs = [(move, block) for move in moves for block in self._blocks_for(move)]
        outcomes = network.outcomes([(molecule.smiles, move, block) for move, block in pairs])
        for (move, block), products in zip(pairs, outcomes, strict=True):
            for number, smiles in enumerate(products):
                yield [move, block, number, molecule.key], network.molecules(smiles)

    def _blocks_for(self, move: int) -> list[int]:
        partner = int(self.network.partner[move])
        return [-1] if partner < 0 else self.network.members[partner].tolist()
