"""P_B of syntheses: distributions over the labelled edges into a molecule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.edges import Edge, EdgeSource, ExactEdges, KnownEdges, State
from envs.synthesis.encoders import Fingerprints
from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Syntheses
from envs.synthesis.policy import MoleculeEncoder, SynthesisPolicy, ragged
from gfn.distributions import RaggedCategorical
from gfn.policies import Policy
from gfn.trajectories import Trajectories

Edges = Literal["exact", "known", "retro"]


class OverEdges(Policy[Syntheses]):
    """P_B over edges from one of three sources.

    Args:
        env: the environment.
        edges: ``exact``, all that there are, found by retrosynthesis; ``known``, those that training
            trajectories have used so far; ``retro``, all from parents that may be out of reach, so that
            walks back may be lost (then the policy samples R·q/Z, where q is the chance that they are not).

    Raises:
        ValueError: if ``edges`` is none of these.
    """

    def __init__(self, env: Synthesis, edges: Edges = "exact"):
        super().__init__()
        if edges not in ("exact", "known", "retro"):
            raise ValueError(f"{type(self).__name__}: edges must be exact, known or retro, got {edges!r}")
        self.env = env
        self.known = KnownEdges(env.network.molecules) if edges == "known" else None
        self.source: EdgeSource = self.known or ExactEdges(env, reach=edges == "exact")

    @abstractmethod
    def logits(self, states: Sequence[State], edges: Sequence[Sequence[Edge]]) -> Tensor:
        """Logits of all edges into each of the states, one state after the other."""

    def stuck(self, states: Syntheses) -> Tensor:
        none = [not edges for edges in self.source.into(states_of(states))]
        return torch.tensor(none, dtype=torch.bool, device=self.env.device)

    def distribution(self, states: Syntheses) -> RaggedCategorical:
        listed = states_of(states)
        return self._over(listed, self.source.into(listed))

    def _over(self, states: Sequence[State], edges: Sequence[Sequence[Edge]]) -> RaggedCategorical:
        actions = [edge.action for row in edges for edge in row]
        count = torch.tensor([len(row) for row in edges], dtype=torch.long)
        listed = torch.tensor(actions, dtype=torch.long).reshape(-1, 4).to(self.env.device)
        rows = torch.repeat_interleave(count).to(self.env.device)
        return RaggedCategorical(self.logits(states, edges), listed, rows, len(edges))

    def log_prob_backward(self, t: Trajectories[Syntheses]) -> Tensor:
        if self.known is None:
            return super().log_prob_backward(t)
        targets, taken = states_of(t.targets), edges_of(t)
        if self.training:  # looking at a policy does not change it
            self.known.add(targets, taken)
        return self._over(targets, self.known.including(targets, taken)).log_prob(t.actions)

    def get_extra_state(self) -> list[Any]:
        """The edges known so far."""
        if self.known is None:
            return []
        return [(list(state), [list(label) for label in sorted(edges)]) for state, edges in self.known.known.items()]

    def set_extra_state(self, state: list[Any]) -> None:
        """Take over the edges that another run has seen."""
        if self.known is None:
            return
        self.known.known.clear()
        for name, labels in state:
            self.known.known[tuple(name)] = frozenset(tuple(label) for label in labels)


def states_of(states: Syntheses) -> list[State]:
    """The states of a batch, apart from their condition."""
    return list(zip(states.molecule, states.depth.tolist(), states.stopped.tolist(), strict=True))


def edges_of(t: Trajectories[Syntheses]) -> list[Edge]:
    """The edge of each step."""
    steps = zip(t.actions.tolist(), t.sources.molecule, strict=True)
    return [Edge(move, block, outcome, parent) for (move, block, outcome, _), parent in steps]


class UniformEdges(OverEdges):
    """Every edge into a state equally likely."""

    def logits(self, states: Sequence[State], edges: Sequence[Sequence[Edge]]) -> Tensor:
        return torch.zeros(sum(map(len, edges)), device=self.env.device)


class CheapestRoutes(OverEdges):
    """Edges in proportion to exp(−weight · cost of the cheapest synthesis through them).

    The cost of a synthesis is the price of its blocks, as a multiple of the mean price (1 where none
    is known), and ``step_cost`` for each reaction (in the spirit of Gaiński et al. 2025,
    arXiv:2506.19865, whose costs are learned).

    Args:
        weight: 0 is uniform; the larger, the more P_B keeps to the cheapest synthesis.
        step_cost: of a reaction.

    Raises:
        ValueError: if ``weight`` or ``step_cost`` is negative.
    """

    def __init__(self, env: Synthesis, weight: float = 1.0, step_cost: float = 1.0):
        super().__init__(env, "exact")
        if weight < 0 or step_cost < 0:
            raise ValueError(f"CheapestRoutes: numbers must not be negative, got {weight=} {step_cost=}")
        self.weight, self.step_cost = weight, step_cost

    def logits(self, states: Sequence[State], edges: Sequence[Sequence[Edge]]) -> Tensor:
        flat = [(depth, edge) for (_, depth, _), row in zip(states, edges, strict=True) for edge in row]
        asked = [
            (edge.parent.smiles, edge.block if edge.move == STOP else depth - 1)
            for depth, edge in flat
            if edge.move != FIRST
        ]
        before = iter(self.env.network.costs([s for s, _ in asked], [k for _, k in asked], self.step_cost))
        prices = self.env.network.prices
        costs = [
            (0.0 if edge.move == FIRST else next(before))
            + (prices[edge.block] if edge.move != STOP and edge.block >= 0 else 0.0)
            for _, edge in flat
        ]
        return -self.weight * torch.tensor(costs, dtype=torch.get_default_dtype(), device=self.env.device)


class LearnedEdges(OverEdges):
    """Edges scored by a network that sees both molecules, the block, the move and the number of reactions.

    Args:
        policy: the forward policy, whose network of molecules is shared when ``tied``; otherwise
            ``network`` is one of its own.
        network: from graphs of molecules to vectors; needed unless ``tied``.

    Raises:
        ValueError: if it is neither tied nor given a network.
    """

    def __init__(
        self,
        env: Synthesis,
        policy: SynthesisPolicy,
        network: nn.Module | None = None,
        tied: bool = False,
        edges: Edges = "known",
    ):
        super().__init__(env, edges)
        if not tied and network is None:
            raise ValueError("LearnedEdges: needs a network of its own, or tied=true to share that of the policy")
        self.encoder = policy.encoder.molecules if tied or network is None else MoleculeEncoder(env, network)
        width = self.encoder.width
        self.move_vector = nn.Embedding(env.n_moves, width)
        self.block = Fingerprints(width)
        self.depth = nn.Embedding(env.max_reactions + 1, width)
        self.head: nn.Module = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def logits(self, states: Sequence[State], edges: Sequence[Sequence[Edge]]) -> Tensor:
        zero = torch.zeros(sum(map(len, edges)), device=self.env.device)
        flat = [(state, edge) for state, row in zip(states, edges, strict=True) for edge in row]
        rivals = [len(row) > 1 for row in edges for _ in row]
        places = [i for i, several in enumerate(rivals) if several]  # an edge without rivals has probability one
        if not places:
            return zero + 0.0 * self.depth.weight.sum()  # so that there is a gradient, if only of zero
        scores = self._scores([flat[i] for i in places])
        return zero.to(scores.dtype).index_put((torch.tensor(places, device=scores.device),), scores)

    def _scores(self, pairs: Sequence[tuple[State, Edge]]) -> Tensor:
        listed = list(dict.fromkeys(m for (child, _, _), edge in pairs for m in (child, edge.parent)))
        number = {molecule: i for i, molecule in enumerate(listed)}
        vectors = self.encoder(listed)
        rows = [
            (number[child], number[edge.parent], edge.move, edge.block if edge.move == STOP else depth)
            for (child, depth, _), edge in pairs
        ]
        child, parent, move, depth = torch.tensor(rows, device=vectors.device).unbind(1)
        extra = self.move_vector(move) + self.depth(depth)
        with_block = [i for i, (_, edge) in enumerate(pairs) if edge.move != STOP and edge.block >= 0]
        if with_block:
            network = self.env.network
            bits = network.bits([network.blocks[pairs[i][1].block] for i in with_block])
            place = torch.tensor(with_block, device=vectors.device)
            extra = extra.index_add(0, place, self.block(*ragged(bits, vectors.device)))
        return self.head(torch.cat([vectors[child] + extra, vectors[parent]], 1).relu()).squeeze(1)
