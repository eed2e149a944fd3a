"""The distribution over what to do next with a molecule: a move, then a block for it, then one of its products.

Blocks are scored together for all rows that draw from the same slot, among the blocks of that slot
alone; rows in equal states that make equal moves share their scores.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Syntheses
from envs.synthesis.tables import BlockTable, position
from gfn.distributions import MaskedCategorical, RaggedCategorical

log = logging.getLogger(__name__)
DENSE = 8192  # libraries up to this size are scored whole, which is quicker than slot by slot


class Scorer(Protocol):
    """Logits of each stage for the rows of a batch; rows with equal numbers have equal logits."""

    def moves(self, rows: Tensor) -> Tensor:
        """Of every move, ``[n, n_moves]``."""
        ...

    def blocks(self, rows: Tensor, moves: Tensor, candidates: Tensor | None) -> Tensor:
        """Of the candidate blocks (None for all) for a move, ``[n, C]``."""
        ...

    def block(self, rows: Tensor, moves: Tensor, blocks: Tensor) -> Tensor:
        """Of one block for each row, ``[n]``."""
        ...

    def products(self, rows: Tensor, moves: Tensor, smiles: Sequence[str], owner: Tensor) -> Tensor:
        """Of products ``[M]``, each of the row ``rows[owner]``."""
        ...


@dataclass(frozen=True)
class Even:
    """Everything allowed is equally likely at each stage."""

    n_moves: int
    n_blocks: int
    like: Tensor

    def moves(self, rows: Tensor) -> Tensor:
        return self.like.new_zeros(len(rows), self.n_moves)

    def blocks(self, rows: Tensor, moves: Tensor, candidates: Tensor | None) -> Tensor:
        return self.like.new_zeros(len(rows), self.n_blocks if candidates is None else len(candidates))

    def block(self, rows: Tensor, moves: Tensor, blocks: Tensor) -> Tensor:
        return self.like.new_zeros(len(rows))

    def products(self, rows: Tensor, moves: Tensor, smiles: Sequence[str], owner: Tensor) -> Tensor:
        return self.like.new_zeros(len(smiles))


class Barren:
    """Reactions that fit by their slots and give no product: molecules, and what fails with them."""

    def __init__(self) -> None:
        self.found: dict[str, set[tuple[int, int]]] = {}

    def add(self, smiles: str, move: int, block: int) -> None:
        """Take note of one."""
        self.found.setdefault(smiles, set()).add((move, block))

    def copy(self) -> Barren:
        """The same, apart."""
        other = Barren()
        other.found = {smiles: set(pairs) for smiles, pairs in self.found.items()}
        return other

    def __len__(self) -> int:
        return sum(map(len, self.found.values()))


@dataclass(frozen=True)
class ReactionDistribution:
    """P(action | state) for a batch of unfinished syntheses.

    Attributes:
        env: the environment.
        states: N unfinished syntheses.
        scorer: of a batch of rows.
        rows: which of them these are, long ``[N]``.
        barren: reactions known to give nothing, which are left out; sampling adds to it.
        temperature: by which logits are divided.
        subsample: number of blocks of a slot by which scores are normalised; None for all.
    """

    env: Synthesis
    states: Syntheses
    scorer: Scorer
    rows: Tensor
    barren: Barren
    temperature: float = 1.0
    subsample: int | None = None
    _drawn: list[tuple[Tensor, Tensor]] = field(default_factory=list[tuple[Tensor, Tensor]], repr=False)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """Actions ``[N, 4]``. A reaction that turns out to give nothing is noted and drawn again without it."""
        actions = torch.zeros(len(self.states), 4, dtype=torch.long, device=self.rows.device)
        actions[:, 3] = self.states.keys
        waiting = torch.arange(len(self.states), device=self.rows.device)
        while len(waiting):
            part = self if len(waiting) == len(self.states) else self[waiting]
            move = part.moves().sample(generator)
            actions[waiting, 0] = move
            actions[waiting, 1] = torch.where(move == STOP, part.states.depth, -1)
            for table in part.block_tables(move):
                actions[waiting[table.rows], 1] = table.sample(generator)
            waiting = waiting[part.failed(actions[waiting])]
        for rows, choice in self.ambiguous(actions):
            actions[rows, 2] = choice.sample(generator)
        self._drawn[:] = [(actions, self._log_prob(actions))]
        return actions

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of an action for each row, ``[N]``; −inf for one that is not allowed."""
        drawn = [log_prob for known, log_prob in self._drawn if known is actions]
        return drawn[0] if drawn else self._log_prob(actions)

    def _log_prob(self, actions: Tensor) -> Tensor:
        move, block, outcome, key = actions.unbind(1)
        result = self.moves().log_prob(move.clamp(0, self.env.n_moves - 1))
        for rows, log_prob in self._block_log_prob(move, block):
            result = result.index_add(0, rows, log_prob)
        count = self._products(actions)
        plain = torch.where(move == STOP, block == self.states.depth, (move == FIRST) | (count > 0))
        allowed = (key == self.states.keys) & plain & (outcome >= 0) & (outcome < count.clamp(min=1))
        for rows, choice in self.ambiguous(actions):
            result = result.index_add(0, rows, choice.log_prob(outcome[rows]))
        return result.masked_fill(~allowed, -torch.inf)

    def moves(self) -> MaskedCategorical:
        """The first stage."""
        mask = self.env.move_mask(self.states)
        for row, molecule in enumerate(self.states.molecule):
            for move, failing in self._failing(molecule.smiles):
                slot = int(self.env.network.partner[move])
                mask[row, move] &= slot >= 0 and len(failing) < len(self.env.network.members[slot])
        return MaskedCategorical(self.scorer.moves(self.rows) / self.temperature, mask)

    def _failing(self, smiles: str) -> Iterator[tuple[int, list[int]]]:
        """Moves that fail with a molecule, with the blocks they fail with."""
        pairs = self.barren.found.get(smiles, ())
        for move in {move for move, _ in pairs}:
            yield move, [block for other, block in pairs if other == move]

    def block_tables(self, move: Tensor) -> Iterator[BlockTable]:
        """The second stage, for the rows whose move takes a block."""
        slots = self._slots(move)
        if len(self.env.network.blocks) <= DENSE:
            yield from self._table(move, slots, slots >= 0, None)
            return
        for slot in np.unique(slots[slots >= 0]).tolist():
            yield from self._table(move, slots, slots == slot, self.env.network.fitting[slot].to(move.device))

    def _slots(self, move: Tensor) -> NDArray[np.int64]:
        """The slot that the block of each row's move must fit, −1 for none."""
        network, moves = self.env.network, move.cpu().numpy()
        known = (moves >= 0) & (moves < self.env.n_moves)
        slots = np.where(known, network.partner[np.where(known, moves, 0)], -1)
        slots[moves == FIRST] = len(network.members)  # a slot of its own: the blocks that may come first
        return slots

    def _block_log_prob(self, move: Tensor, block: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows and the log-probabilities of their blocks, by all blocks of the slot or by a part of them."""
        if self.subsample is None:
            for table in self.block_tables(move):
                yield table.rows, table.log_prob(block[table.rows])
            return
        slots = self._slots(move)
        for slot in np.unique(slots[slots >= 0]).tolist():
            every = self.env.network.fitting[slot].to(move.device)
            some = every[torch.randperm(len(every))[: self.subsample].sort().values.to(move.device)]
            for table in self._table(move, slots, slots == slot, some):
                chosen = block[table.rows]
                own = self.scorer.block(self.rows[table.rows], move[table.rows], chosen) / self.temperature
                yield table.rows, table.estimated_log_prob(chosen, own, every)

    def _table(
        self, move: Tensor, slots: NDArray[np.int64], chosen: NDArray[np.bool_], candidates: Tensor | None
    ) -> Iterator[BlockTable]:
        rows = torch.from_numpy(chosen.nonzero()[0]).to(self.rows.device)
        if len(rows) == 0:
            return
        asked = self.rows[rows] * self.env.n_moves + move[rows]
        unique, pair = asked.unique(return_inverse=True)
        first = torch.zeros_like(unique).scatter_(0, pair, torch.arange(len(pair), device=pair.device))
        some = rows[first]  # one row of the batch for each pair
        logits = self.scorer.blocks(self.rows[some], move[some], candidates) / self.temperature
        if candidates is None:
            mask = self.env.network.slot_mask[torch.from_numpy(slots[some.cpu().numpy()])].to(move.device)
            logits = logits.masked_fill(~mask, -torch.inf)
        yield BlockTable(rows, pair, self._without_barren(logits, some, move, candidates), candidates)

    def _without_barren(self, logits: Tensor, some: Tensor, move: Tensor, candidates: Tensor | None) -> Tensor:
        """Logits without the blocks that are known to fail with a row's molecule and move."""
        failing = [
            (place, block)
            for place, row in enumerate(some.tolist())
            for other, blocks in self._failing(self.states.molecule[row].smiles)
            if other == int(move[row])
            for block in blocks
        ]
        if not failing:
            return logits
        place, block = torch.tensor(failing, device=logits.device).unbind(1)
        column, known = position(block, candidates, logits.shape[1])
        mask = torch.zeros_like(logits, dtype=torch.bool)
        mask[place[known], column[known]] = True
        return logits.masked_fill(mask, -torch.inf)

    def _outcomes(self, actions: Tensor) -> list[tuple[int, tuple[str, ...]]]:
        """The rows whose action is a reaction, each with its products."""
        rows, reactions = self.env.reactions(self.states.molecule, actions)
        return list(zip(rows, self.env.network.outcomes(reactions), strict=True))

    def failed(self, actions: Tensor) -> Tensor:
        """Rows whose reaction gives nothing, long; they are noted."""
        lost = [row for row, products in self._outcomes(actions) if not products]
        for row in lost:
            smiles, (move, block) = self.states.molecule[row].smiles, actions[row, :2].tolist()
            self.barren.add(smiles, move, block)
            name = self.env.name_of([move, block, 0, 0])
            log.info("%s gives nothing with %s and is left out (the %dth such case)", smiles, name, len(self.barren))
        return torch.tensor(lost, dtype=torch.long, device=self.rows.device)

    def _products(self, actions: Tensor) -> Tensor:
        """Number of products of each row's reaction, long ``[N]``; 0 where there is none."""
        counts = {row: len(products) for row, products in self._outcomes(actions)}
        return torch.tensor(
            [counts.get(row, 0) for row in range(len(actions))], dtype=torch.long, device=self.rows.device
        )

    def ambiguous(self, actions: Tensor) -> Iterator[tuple[Tensor, RaggedCategorical]]:
        """The third stage: rows with several products, if there are any, and the choice among them."""
        several = [(row, products) for row, products in self._outcomes(actions) if len(products) > 1]
        if not several:
            return
        device = self.rows.device
        row = torch.tensor([row for row, _ in several], device=device)
        count = torch.tensor([len(products) for _, products in several], device=device)
        owner = torch.repeat_interleave(count)
        smiles = [text for _, products in several for text in products]
        logits = self.scorer.products(self.rows[row], actions[row, 0], smiles, owner) / self.temperature
        number = torch.arange(len(smiles), device=device) - (count.cumsum(0) - count)[owner]
        yield row, RaggedCategorical(logits, number, owner, len(row))

    def __getitem__(self, rows: Tensor) -> ReactionDistribution:
        return replace(self, states=self.states[rows], rows=self.rows[rows], _drawn=[])

    def uniform(self) -> ReactionDistribution:
        """Uniform at each stage (which is not uniform over whole actions)."""
        even = Even(self.env.n_moves, len(self.env.network.blocks), torch.zeros(0, device=self.rows.device))
        return replace(self, scorer=even, temperature=1.0, _drawn=[])

    def tempered(self, temperature: float) -> ReactionDistribution:
        """Tempered at each stage."""
        return replace(self, temperature=self.temperature * temperature, _drawn=[])
