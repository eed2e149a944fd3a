"""Every edge into a molecule: complete, and without one that does not exist.

Retro SMIRKS propose parents, a forward reaction confirms each, and only parents that can themselves
be reached from a building block with one reaction less count, so every walk back ends at the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from envs.synthesis.chemistry import Chemistry, Precursor

REMEMBERED = 50_000  # molecules whose origins are kept


@dataclass(frozen=True, order=True)
class Origin:
    """An edge into a molecule.

    Attributes:
        move: number of the move.
        block: number of the block that took part, or −1.
        outcome: which of the products of that move the molecule is.
        parent: SMILES of the molecule it came from.
    """

    move: int
    block: int
    outcome: int
    parent: str


class Retrosynthesis:
    """Edges into molecules at a depth, the number of reactions used.

    Args:
        chemistry: of the reactions.
        startable: SMILES of the blocks that a synthesis may start from, with their numbers.
        prices: of all blocks.
    """

    def __init__(self, chemistry: Chemistry, startable: Mapping[str, int], prices: Sequence[float] = ()):
        self.chemistry, self.startable, self.prices = chemistry, startable, prices
        self.precursors = lru_cache(REMEMBERED)(chemistry.precursors)
        self.outcomes = lru_cache(REMEMBERED)(chemistry.outcomes)
        self.reachable = lru_cache(REMEMBERED)(self._reachable)
        self.origins = lru_cache(REMEMBERED)(self._origins)
        self.cost = lru_cache(REMEMBERED)(self._cost)

    def _reachable(self, smiles: str, depth: int) -> bool:
        """Whether ``depth`` reactions lead from some block to this molecule."""
        if depth == 0:
            return smiles in self.startable
        return any(True for _ in self._edges(smiles, depth))

    def _origins(self, smiles: str, depth: int) -> tuple[Origin, ...]:
        """Every edge into the molecule at a depth of at least 1, in a fixed order."""
        return tuple(sorted(self._edges(smiles, depth)))

    def _cost(self, smiles: str, depth: int, step_cost: float) -> float:
        """Price of the blocks of the cheapest synthesis with ``depth`` reactions, and the cost of these; maybe inf."""
        if depth == 0:
            return self.prices[self.startable[smiles]] if smiles in self.startable else math.inf
        edges = self.origins(smiles, depth)
        added = [step_cost + (self.prices[edge.block] if edge.block >= 0 else 0.0) for edge in edges]
        before = [self.cost(edge.parent, depth - 1, step_cost) for edge in edges]
        return min((a + b for a, b in zip(added, before, strict=True)), default=math.inf)

    def candidates(self, smiles: str) -> tuple[Origin, ...]:
        """Every confirmed edge into the molecule, whether or not its parent can be reached."""
        return tuple(sorted(origin for p in self.precursors(smiles, False) if (origin := self._confirmed(smiles, p))))

    def _edges(self, smiles: str, depth: int) -> Iterator[Origin]:
        for precursor in self.precursors(smiles, depth == 1):
            if depth == 1 and precursor.parent not in self.startable:
                continue
            origin = self._confirmed(smiles, precursor)  # cheaper than finding out about the parent
            if origin and self.reachable(precursor.parent, depth - 1):
                yield origin

    def _confirmed(self, smiles: str, precursor: Precursor) -> Origin | None:
        products = self.outcomes(precursor.parent, precursor.move, precursor.block)
        if smiles not in products:
            return None
        return Origin(precursor.move, precursor.block, products.index(smiles), precursor.parent)
