"""Routes: how the molecules of trajectories are made, in the words of a chemist."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envs.synthesis.blocks import Block
from envs.synthesis.molecules import Syntheses
from gfn.trajectories import Trajectories

if TYPE_CHECKING:
    from envs.synthesis.environment import Synthesis


@dataclass(frozen=True)
class Step:
    """A reaction of a route.

    Attributes:
        template: name.
        family: kind of reaction.
        reactants: SMILES in the order of the template's slots.
        blocks: for each reactant the building block that it is; None for what the steps before it made.
        outcome: which of the products that the reaction could give was taken, from 0, in the order of their SMILES.
        outcomes: how many there are.
        product: SMILES.
    """

    template: str
    family: str
    reactants: tuple[str, ...]
    blocks: tuple[Block | None, ...]
    outcome: int
    outcomes: int
    product: str

    def __str__(self) -> str:
        """Reaction SMILES."""
        return f"{'.'.join(self.reactants)}>>{self.product}"


@dataclass(frozen=True)
class Route:
    """A synthesis: the block that it begins with, its steps, and what comes out (the block, if there are none)."""

    first: Block
    steps: tuple[Step, ...]

    @property
    def product(self) -> str:
        """SMILES of the molecule made."""
        return self.steps[-1].product if self.steps else self.first.smiles

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks in the order of their use, one for each time it is used."""
        if not self.steps:
            return (self.first,)
        return tuple(block for step in self.steps for block in step.blocks if block is not None)

    @property
    def price(self) -> float | None:
        """Sum of the prices of the blocks, each as often as it is used; None if one of them is not known."""
        prices = [block.price for block in self.blocks if block.price is not None]
        return sum(prices) if len(prices) == len(self.blocks) else None

    def __str__(self) -> str:
        """Reaction SMILES of the steps, joined by ``|``; empty for a block alone."""
        return "|".join(map(str, self.steps))


def routes_of(env: Synthesis, t: Trajectories[Syntheses]) -> list[Route]:
    """The route of each trajectory."""
    before, after = t.sources.smiles, t.targets.smiles
    rows, reactions = env.reactions(t.sources.molecule, t.actions)
    outcomes = dict(zip(rows, map(len, env.network.outcomes(reactions)), strict=True))
    actions: list[list[int]] = t.actions.tolist()
    begins: list[int] = (t.lengths.cumsum(0) - t.lengths).tolist()
    routes = list[Route]()
    for begin, length in zip(begins, t.lengths.tolist(), strict=True):
        first = env.network.library.blocks[actions[begin][1]]
        steps = list[Step]()
        for row in range(begin + 1, begin + length - 1):  # what follows the first block, up to the stop
            present = None if steps else first
            steps.append(_step(env, before[row], present, actions[row], outcomes[row], after[row]))
        routes.append(Route(first, tuple(steps)))
    return routes


def _step(
    env: Synthesis, smiles: str, present: Block | None, action: Sequence[int], outcomes: int, product: str
) -> Step:
    move, block, outcome, _ = action
    way = env.network.moves[move]
    assert way is not None
    reactants, blocks = [smiles], [present]
    if way.partner >= 0:
        partner = env.network.library.blocks[block]
        reactants.insert(1 - way.role, partner.smiles)
        blocks.insert(1 - way.role, partner)
    template = way.template
    return Step(template.name, template.family, tuple(reactants), tuple(blocks), outcome, outcomes, product)
