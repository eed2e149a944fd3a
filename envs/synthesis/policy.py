"""P_F of syntheses: a network that sees molecules as graphs and scores blocks by their fingerprints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from envs.synthesis.actions import Barren, Even, ReactionDistribution
from envs.synthesis.chemistry import FIRST
from envs.synthesis.encoders import Fingerprints
from envs.synthesis.environment import Synthesis
from envs.synthesis.graphs import batch_of
from envs.synthesis.molecules import Molecule, Syntheses
from gfn.policies import Policy, Stepper


class MoleculeEncoder(nn.Module):
    """Vectors of molecules.

    Args:
        env: the environment.
        network: from graphs of molecules to vectors (:mod:`envs.synthesis.encoders`).
        fingerprint: add a learned projection of the molecule's fingerprint.
    """

    def __init__(self, env: Synthesis, network: nn.Module, fingerprint: bool = True):
        super().__init__()
        self.env, self.network = env, network
        self.width = int(cast(Any, network).width)
        self.fingerprint = Fingerprints(self.width) if fingerprint else None

    def forward(self, listed: Sequence[Molecule]) -> Tensor:
        """Vectors of molecules, none of which is the start, ``[M, width]``."""
        weight = next(self.parameters())
        if not listed:
            return weight.new_zeros(0, self.width)
        vectors = self.network(batch_of(self.env.network.graphs(listed), weight.device))
        if self.fingerprint is not None:
            vectors = vectors + self.fingerprint(*ragged(self.env.network.bits(listed), weight.device))
        return vectors


class StateEncoder(nn.Module):
    """Vectors of unfinished syntheses: of the molecule, the number of reactions and the condition."""

    def __init__(self, env: Synthesis, molecules: MoleculeEncoder):
        super().__init__()
        self.molecules, width = molecules, molecules.width
        self.start = nn.Parameter(torch.zeros(width))
        self.depth = nn.Embedding(env.max_reactions + 1, width)
        self.condition = nn.Embedding(len(env.exponents), width)
        self.mix = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())

    def forward(self, states: Syntheses) -> tuple[Tensor, Tensor]:
        """Vectors of the different states, ``[U, width]``, and which of them each state is, long ``[N]``."""
        rows = zip(states.molecule, states.depth.tolist(), states.condition.tolist(), strict=True)
        places: dict[tuple[Molecule, int, int], int] = {}
        which = [places.setdefault(row, len(places)) for row in rows]
        listed = list(dict.fromkeys(m for m, _, _ in places if m.smiles))
        number = {molecule: i + 1 for i, molecule in enumerate(listed)}
        vectors = torch.cat([self.start.unsqueeze(0), self.molecules(listed)])
        own = torch.tensor([number.get(m, 0) for m, _, _ in places], dtype=torch.long, device=vectors.device)
        numbers = torch.tensor([place[1:] for place in places], dtype=torch.long, device=vectors.device).reshape(-1, 2)
        mixed = self.mix(vectors[own] + self.depth(numbers[:, 0]) + self.condition(numbers[:, 1]))
        return mixed, torch.tensor(which, dtype=torch.long, device=vectors.device)


def ragged(bits: Sequence[np.ndarray[Any, np.dtype[np.int64]]], device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Bits of molecules one after the other, and where those of each start."""
    sizes = np.array([len(one) for one in bits])
    joined = torch.from_numpy(np.concatenate(bits)).to(device)
    return joined, torch.from_numpy(np.cumsum(sizes) - sizes).to(device)


@dataclass(frozen=True)
class Learned:
    """Logits from the vectors of states and the keys of blocks.

    Attributes:
        policy: whose heads are used.
        vectors: of different states, ``[U, width]``.
        which: the vector of each row, long ``[N]``; rows that have no choice have none, and share the number U.
        keys: of the blocks, ``[n_blocks, d]``.
    """

    policy: SynthesisPolicy
    vectors: Tensor
    which: Tensor
    keys: Tensor

    def _of(self, rows: Tensor) -> Tensor:
        blank = self.vectors.new_zeros(1, self.vectors.shape[1])
        return torch.cat([self.vectors, blank])[self.which[rows]]

    def moves(self, rows: Tensor) -> Tensor:
        return self.policy.move_head(self._of(rows))

    def _query(self, rows: Tensor, moves: Tensor) -> Tensor:
        return self.policy.query(self._of(rows) + self.policy.move_vector(moves))

    def blocks(self, rows: Tensor, moves: Tensor, candidates: Tensor | None) -> Tensor:
        keys, bias = self.keys, self.policy.block_bias
        if candidates is not None:
            keys, bias = keys[candidates], bias[candidates]
        return self._query(rows, moves) @ keys.T + bias

    def block(self, rows: Tensor, moves: Tensor, blocks: Tensor) -> Tensor:
        known = blocks.clamp(0, len(self.keys) - 1)
        return (self._query(rows, moves) * self.keys[known]).sum(1) + self.policy.block_bias[known]

    def products(self, rows: Tensor, moves: Tensor, smiles: Sequence[str], owner: Tensor) -> Tensor:
        network = self.policy.env.network
        bits = network.bits([network.molecules(text) for text in smiles])
        keys = self.policy.fingerprint(*ragged(bits, owner.device))
        queries = self.policy.product_query(self._of(rows) + self.policy.move_vector(moves))
        return (queries[owner] * keys).sum(1)


class SynthesisPolicy(Policy[Syntheses]):
    """P_F: a move, then a block for it by the product of two vectors, then one of the products likewise.

    Args:
        env: the environment.
        network: from graphs of molecules to vectors, such as ``envs.synthesis.encoders.GINE``.
        key_width: width of the vectors of blocks.
        fingerprint: show the network the molecule's fingerprint beside its graph.
        subsample: in training, score so many random blocks of a slot beside the chosen one, and weigh
            them up to the whole; None scores all. The estimate of the normaliser is unbiased, that of its
            logarithm is not (low on average). Sampling always has all blocks to choose from.

    Raises:
        ValueError: if a number is not positive.
    """

    def __init__(
        self,
        env: Synthesis,
        network: nn.Module,
        key_width: int = 64,
        fingerprint: bool = True,
        subsample: int | None = None,
    ):
        super().__init__()
        if key_width < 1 or (subsample is not None and subsample < 1):
            raise ValueError(f"SynthesisPolicy: numbers must be positive, got {key_width=} {subsample=}")
        self.env, self.subsample = env, subsample
        self.encoder = StateEncoder(env, MoleculeEncoder(env, network, fingerprint))
        width = self.encoder.molecules.width
        self.move_head = nn.Linear(width, env.n_moves)
        self.move_vector = nn.Embedding(env.n_moves, width)
        self.query = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, key_width))
        self.product_query = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, key_width))
        self.fingerprint = Fingerprints(key_width)
        self.block_bias = nn.Parameter(torch.zeros(len(env.network.blocks)))
        bits, starts = ragged(env.network.bits(env.network.blocks), "cpu")
        self.bits, self.starts = nn.Buffer(bits, persistent=False), nn.Buffer(starts, persistent=False)
        self.barren = Barren()
        for head in (self.move_head, self.query[-1], self.product_query[-1]):
            nn.init.normal_(cast(nn.Linear, head).weight, std=0.01)  # begin near the uniform policy

    def keys(self) -> Tensor:
        """Vectors of the blocks, ``[n_blocks, key_width]``."""
        return self.fingerprint(self.bits, self.starts)

    def distribution(self, states: Syntheses) -> ReactionDistribution:
        return self._distribution(states, self.keys())

    def _distribution(self, states: Syntheses, keys: Tensor) -> ReactionDistribution:
        choice = self.env.move_mask(states)[:, FIRST:].any(1)  # there is nothing to choose where all one can do is stop
        vectors, which = self.encoder(states[choice])
        numbers = torch.full((len(states),), len(vectors), device=which.device).masked_scatter(choice, which)
        barren = self.barren if self.training else self.barren.copy()  # looking at a policy does not change it
        rows = torch.arange(len(states), device=which.device)
        subsample = self.subsample if torch.is_grad_enabled() else None  # where nothing is learned, all are scored
        scorer = Learned(self, vectors, numbers, keys)
        return ReactionDistribution(self.env, states, scorer, rows, barren, subsample=subsample)

    def stepper(self) -> Stepper[Syntheses]:
        """Vectors of blocks are computed once for a rollout."""
        keys = self.keys()
        return lambda states, kept: self._distribution(states, keys)

    def get_extra_state(self) -> dict[str, list[tuple[int, int]]]:
        """The reactions known to give nothing."""
        return {smiles: sorted(pairs) for smiles, pairs in self.barren.found.items()}

    def set_extra_state(self, state: dict[str, list[tuple[int, int]]]) -> None:
        """Take over what another run has found."""
        self.barren.found = {smiles: {(move, block) for move, block in pairs} for smiles, pairs in state.items()}


class UniformSynthesis(Policy[Syntheses]):
    """P_F: every move, every block for it and every product equally likely; nothing is learned."""

    def __init__(self, env: Synthesis):
        super().__init__()
        self.env, self.barren = env, Barren()

    def distribution(self, states: Syntheses) -> ReactionDistribution:
        rows = torch.arange(len(states), device=self.env.device)
        even = Even(self.env.n_moves, len(self.env.network.blocks), torch.zeros(0, device=self.env.device))
        return ReactionDistribution(self.env, states, even, rows, self.barren)
