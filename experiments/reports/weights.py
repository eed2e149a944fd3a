"""What stands for P_B on the edges of a small library, if one does it right and with each of several shortcuts.

Every function here returns the log of a number for each edge, float64 ``[E]``; −inf where an edge is never used.
What trajectory balance makes of them is in :mod:`experiments.reports.shortcuts`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from rdkit import Chem
from torch import Tensor

from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Syntheses
from envs.synthesis.templates import reaction
from gfn import exact


@dataclass(frozen=True)
class Listed:
    """Every state and labelled edge of a small library.

    Attributes:
        env: the environment.
        graph: its states and edges.
    """

    env: Synthesis
    graph: exact.StateGraph[Syntheses]

    @property
    def move(self) -> Tensor:
        """Move of each edge, long ``[E]``."""
        return self.graph.action[:, 0]

    @cached_property
    def template(self) -> Tensor:
        """Number of each edge's template, long ``[E]``; −1 for stopping and −2 for beginning, which have none."""
        number = {template.name: i for i, template in enumerate(self.env.network.templates)}
        of_move = [-1, -2, *(number[move.template.name] for move in self.env.network.moves if move is not None)]
        return torch.tensor(of_move)[self.move]

    def even(self, kept: Tensor) -> Tensor:
        """Log of one over the number of edges into the same state, ``[E]``; −inf for edges that are not kept."""
        count = torch.bincount(self.graph.target[kept], minlength=self.graph.n)
        return (-count.double().log())[self.graph.target].where(kept, -torch.inf)

    def distinct(self, label: Tensor) -> Tensor:
        """Log of one over the number of different labels among the edges into the same state, ``[E]``."""
        pairs = torch.stack([self.graph.target, label], 1).unique(dim=0)
        return -torch.bincount(pairs[:, 0], minlength=self.graph.n).double().log()[self.graph.target]


def labelled_edges(listed: Listed) -> Tensor:
    """Each labelled edge counts, and undoing Stop chooses the number of reactions."""
    return listed.even(torch.ones_like(listed.move, dtype=torch.bool))


def depth_in_the_end(listed: Listed) -> Tensor:
    """A finished molecule carries its number of reactions, and each such pair is given the molecule's reward."""
    return labelled_edges(listed).masked_fill(listed.move == STOP, 0.0)


def distinct_parents(listed: Listed) -> Tensor:
    """P_B counts parents while P_F counts edges, of which several may join the same two molecules."""
    return listed.distinct(listed.graph.source)


def used_templates(listed: Listed) -> Tensor:
    """P_B is uniform over the templates that some edge into the state belongs to."""
    return listed.distinct(listed.template).where(listed.move > FIRST, labelled_edges(listed))


def matching_templates(listed: Listed) -> Tensor:
    """P_B is uniform over the templates whose product pattern the molecule matches."""
    patterns = [[_pattern(smirks) for smirks in template.retro] for template in listed.env.network.templates]
    parse = listed.env.network.workers.expert.chemistry.parse
    smiles = [molecule.smiles for molecule in listed.graph.states.molecule]
    made = {smiles[state] for state in listed.graph.target[listed.move > FIRST].tolist()}
    count = {text: sum(any(map(parse(text).HasSubstructMatch, some)) for some in patterns) for text in sorted(made)}
    of_state = torch.tensor([count.get(text, 1) for text in smiles], dtype=torch.float64)
    return (-of_state.log())[listed.graph.target].where(listed.move > FIRST, labelled_edges(listed))


def _pattern(smirks: str) -> Any:
    rxn = reaction(smirks)
    return Chem.Mol(rxn.GetReactantTemplate(0))  # a copy, since the pattern dies with its reaction


def first_product(listed: Listed) -> Tensor:
    """Of several products of a reaction only the one that RDKit lists first is kept."""
    chosen = dict[tuple[str, int, int], int]()
    source, kept = listed.graph.source.tolist(), list[bool]()
    for state, (move, block, outcome, _) in zip(source, listed.graph.action.tolist(), strict=True):
        question = (listed.graph.states.molecule[state].smiles, move, block)
        if move > FIRST and question not in chosen:
            chosen[question] = _first(listed.env, *question)
        kept.append(move <= FIRST or outcome == chosen[question])
    wanted = torch.tensor(kept)
    passable = torch.zeros(len(kept), dtype=torch.float64).masked_fill(~wanted, -torch.inf)
    reached = exact.forward_sum(listed.graph, passable, torch.zeros(1)).isfinite()
    return listed.even(wanted & reached[listed.graph.source])


def _first(env: Synthesis, smiles: str, move: int, block: int) -> int:
    """Which outcome the first sound product of a reaction is."""
    chemistry, way = env.network.workers.expert.chemistry, env.network.moves[move]
    assert way is not None
    outcomes = env.network.outcomes([(smiles, move, block)])[0]
    if len(outcomes) == 1:
        return 0
    reactants = [chemistry.parse(smiles)]
    if way.partner >= 0:
        reactants.insert(1 - way.role, chemistry.parse(env.network.blocks[block].smiles))
    written = (chemistry.canonical(raw) for (raw,) in reaction(way.template.forward).RunReactants(reactants))
    return next(outcomes.index(text) for text in written if text in outcomes)


def last_dropped(listed: Listed) -> Tensor:
    """A reaction in the last step only ends the trajectory: its product is not looked at, its P_F counts."""
    deepest, depth = listed.env.max_reactions, listed.graph.states.depth[listed.graph.source]
    ending = (depth == deepest - 1) & (listed.move > FIRST)
    stop, kept = listed.move == STOP, ~ending & (depth < deepest)
    ways = 1 + torch.bincount(listed.graph.source[ending], minlength=listed.graph.n)  # to end: to stop, or any reaction
    return listed.even(kept) + ways[listed.graph.source].double().log().where(stop & kept, 0.0)


def routes(listed: Listed) -> Tensor:
    """A state is the whole route, so that it has one parent and P_B = 1."""
    return torch.zeros(len(listed.move), dtype=torch.float64)
