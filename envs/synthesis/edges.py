"""Which edges lead into a state of a synthesis: all of them, or those that have been seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cachetools import LRUCache

from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Molecule, Molecules

REMEMBERED = 200_000  # states whose known edges are kept


@dataclass(frozen=True)
class Edge:
    """An edge into a state, as the four numbers of its action, with the molecule that it comes from."""

    move: int
    block: int
    outcome: int
    parent: Molecule

    @property
    def action(self) -> list[int]:
        """The numbers of the action."""
        return [self.move, self.block, self.outcome, self.parent.key]

    @property
    def label(self) -> Label:
        """The edge written down."""
        return self.move, self.block, self.outcome, self.parent.smiles


Label = tuple[int, int, int, str]
State = tuple[Molecule, int, bool]  # molecule, reactions used, finished


class EdgeSource(Protocol):
    """Says which edges lead into states."""

    def into(self, states: Sequence[State]) -> list[tuple[Edge, ...]]:
        """The edges into each of the states, in an order that depends on the state alone."""
        ...


class ExactEdges:
    """Every edge from a state that can be reached, so that every walk back ends at the start.

    Args:
        env: the environment.
        reach: leave parents out that cannot be reached. Without it the edges of a molecule are found
            several times faster, and walks back may be lost.
    """

    def __init__(self, env: Synthesis, reach: bool = True):
        self.env, self.reach = env, reach
        self._latest: list[tuple[Edge, ...]] = []  # keeps parents in use until a walk has gone back to one of them

    def into(self, states: Sequence[State]) -> list[tuple[Edge, ...]]:
        made = list(dict.fromkeys((m.smiles, k) for m, k, stopped in states if not stopped and k > 0))
        network = self.env.network
        if self.reach:
            origins = network.origins([s for s, _ in made], [k for _, k in made])
        else:
            origins = network.proposed([s for s, _ in made])
        found = dict(zip(made, origins, strict=True))
        stops = self._stops(list(dict.fromkeys(m for m, _, stopped in states if stopped)))
        edges = list[tuple[Edge, ...]]()
        for molecule, depth, stopped in states:
            if stopped:
                edges.append(tuple(Edge(STOP, k, 0, molecule) for k in stops[molecule]))
            elif depth == 0:
                edges.append(self._first(molecule))
            else:
                listed = found[molecule.smiles, depth]
                edges.append(tuple(Edge(o.move, o.block, o.outcome, network.molecules(o.parent)) for o in listed))
        self._latest = edges
        return edges

    def _first(self, molecule: Molecule) -> tuple[Edge, ...]:
        block = self.env.network.block_index.get(molecule)
        known = block is not None and self.env.network.startable[block]
        return (Edge(FIRST, block, 0, self.env.network.molecules.start),) if known and block is not None else ()

    def _stops(self, molecules: Sequence[Molecule]) -> Mapping[Molecule, list[int]]:
        """Numbers of reactions after which each molecule may have been finished."""
        depths = range(self.env.min_reactions, self.env.max_reactions + 1)
        if not self.reach:
            return {molecule: list(depths) for molecule in molecules}
        asked = [(molecule, k) for molecule in molecules for k in depths]
        answers = iter(self.env.network.reachable([m.smiles for m, _ in asked], [k for _, k in asked]))
        return {molecule: [k for k in depths if next(answers)] for molecule in molecules}


class KnownEdges:
    """The edges that training trajectories have used so far: cheap, and more of them as training goes on.

    A walk back along them ends at the start. The target of a balance changes whenever one is found.
    """

    def __init__(self, molecules: Molecules):
        self.molecules = molecules
        self.known: LRUCache[tuple[str, int, bool], frozenset[Label]] = LRUCache(REMEMBERED)
        self._latest: list[tuple[Edge, ...]] = []  # as in ExactEdges

    def into(self, states: Sequence[State]) -> list[tuple[Edge, ...]]:
        self._latest = [self._edges(self.known.get(_name(state), frozenset())) for state in states]
        return self._latest

    def including(self, states: Sequence[State], edges: Sequence[Edge]) -> list[tuple[Edge, ...]]:
        """The edges into each state, with one more where it is not known."""
        both = zip(states, edges, strict=True)
        return [self._edges(self.known.get(_name(state), frozenset()) | {edge.label}) for state, edge in both]

    def add(self, states: Sequence[State], edges: Sequence[Edge]) -> None:
        """Take note of an edge into each state."""
        for state, edge in zip(states, edges, strict=True):
            name = _name(state)
            self.known[name] = self.known.get(name, frozenset()) | {edge.label}

    def _edges(self, labels: frozenset[Label]) -> tuple[Edge, ...]:
        return tuple(
            Edge(move, block, outcome, self.molecules(parent)) for move, block, outcome, parent in sorted(labels)
        )


def _name(state: State) -> tuple[str, int, bool]:
    molecule, depth, stopped = state
    return molecule.smiles, depth, stopped
