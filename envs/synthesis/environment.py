"""Synthesis of molecules: take a building block, react it, perhaps with further blocks, and stop.

A state is a molecule and the number of reactions it took; that number makes the graph acyclic, and
masks and limits functions of the state. A finished synthesis is its molecule alone, whatever the
number of reactions, so what is sampled is a distribution over molecules.

An action ``[move, block, outcome, parent]`` names one edge of a labelled multigraph:

=====================  =========================  ==============  ====================
move                   block                      outcome         parent
=====================  =========================  ==============  ====================
``STOP``               reactions used             0               key of the molecule
``FIRST``              the block to begin with    0               0
a reaction             the other reactant, or −1  which product   key of the molecule
=====================  =========================  ==============  ====================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import NDArray
from torch import Tensor

from envs.synthesis import diversity, metrics
from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.listing import Listing
from envs.synthesis.molecules import Molecule, Syntheses
from envs.synthesis.network import ReactionNetwork
from envs.synthesis.rewards import Reward
from envs.synthesis.rewards.reward import on_failure
from gfn.environment import Environment, RewardError
from gfn.states import fingerprint
from gfn.trajectories import Trajectories

REMEMBERED = 200_000  # rewards kept
LABEL = 2**63 - 1  # bits of a hash that make a label, which is not negative


class Synthesis(Environment[Syntheses]):
    """Molecules made from blocks by at most ``max_reactions`` reactions, with the target R(x)^β.

    Args:
        network: blocks and reactions.
        reward: R of molecules, not negative.
        max_reactions: number of reactions K of a synthesis, at most.
        min_reactions: 1, or 0 if a block alone is a product.
        exponent: β; with several, each synthesis draws one, and the policy is told which.
        listed: list all states, for exact evaluation; only for a handful of blocks.
        mode_threshold: R, before the exponent, from which on a molecule is a good one; such molecules, and
            their scaffolds, are the modes.

    Raises:
        ValueError: if a number is out of its range.
    """

    def __init__(
        self,
        network: ReactionNetwork,
        reward: Reward,
        max_reactions: int = 3,
        min_reactions: int = 1,
        exponent: float | Sequence[float] = 1.0,
        listed: bool = False,
        mode_threshold: float = 0.5,
    ):
        exponents = [exponent] if isinstance(exponent, int | float) else list(exponent)
        if min_reactions not in (0, 1) or max_reactions < max(1, min_reactions):
            raise ValueError(
                f"Synthesis: needs max_reactions >= 1 and min_reactions 0 or 1, got {max_reactions=} {min_reactions=}"
            )
        if not exponents or not all(0 < value < math.inf for value in exponents):
            raise ValueError(f"Synthesis: exponents must be positive and finite, got {exponents}")
        self.network, self.reward, self.masks = network, reward, on_failure(reward) == "mask"
        self.max_reactions, self.min_reactions = max_reactions, min_reactions
        self.max_steps = max_reactions + 2
        self.n_moves = len(network.moves)
        self.exponents = torch.tensor(exponents, dtype=torch.float64)
        self.mode_threshold = mode_threshold
        self._rewards: LRUCache[str, float] = LRUCache(REMEMBERED)
        if listed:  # an environment that has these methods is evaluated exactly
            listing = Listing(network, max_reactions, min_reactions, len(exponents))
            self.enumerate, self.index, self.edges = listing.enumerate, listing.index, listing.edges

    def reset(self, n: int, generator: torch.Generator | None = None) -> Syntheses:
        condition = torch.zeros(n, dtype=torch.long, device=self.device)
        if len(self.exponents) > 1:
            condition = torch.randint(len(self.exponents), (n,), generator=generator, device=self.device)
        nothing = torch.zeros(n, dtype=torch.long, device=self.device)
        molecules = self.network.molecules
        return Syntheses(molecules, (molecules.start,) * n, nothing, nothing.bool(), condition)

    def is_initial(self, states: Syntheses) -> Tensor:
        start = [molecule is states.molecules.start for molecule in states.molecule]
        return torch.tensor(start, dtype=torch.bool, device=self.device)

    def is_terminal(self, states: Syntheses) -> Tensor:
        return states.stopped

    def move_mask(self, states: Syntheses) -> Tensor:
        """Moves that are allowed in unfinished states, bool ``[N, n_moves]``."""
        depth, start = states.depth.cpu().numpy(), self.is_initial(states).cpu().numpy()
        open_ = ~start & (depth < self.max_reactions) & ~states.stopped.cpu().numpy()
        mask = np.zeros((len(states), self.n_moves), dtype=bool)
        rows = open_.nonzero()[0]
        mask[rows] = self.network.applicable(self.network.fits([states.molecule[row] for row in rows.tolist()]))
        mask[:, STOP] = ~start & (depth >= self.min_reactions) & ~states.stopped.cpu().numpy()
        mask[:, FIRST] = start
        return torch.from_numpy(mask).to(self.device)

    def step(self, states: Syntheses, actions: Tensor) -> Syntheses:
        allowed = self.move_mask(states).cpu().numpy()
        rows, reactions = self.reactions(states.molecule, actions)
        products = dict(zip(rows, self.network.outcomes(reactions), strict=True))
        following = list[Molecule]()
        for row, action in enumerate(actions.tolist()):
            molecule, depth = states.molecule[row], int(states.depth[row])
            named = 0 <= action[0] < self.n_moves and allowed[row, action[0]] and action[3] == molecule.key
            after = self._after(molecule, depth, action, products.get(row, ())) if named else None
            if after is None:
                raise ValueError(
                    f"{type(self).__name__}.step: action {self.name_of(action)} is not allowed in state "
                    f"{self.describe(states[row : row + 1])[0]}"
                )
            following.append(after)
        move = actions[:, 0]
        depth = (states.depth + (move > FIRST)).where(move != STOP, 0)
        return Syntheses(states.molecules, tuple(following), depth, move == STOP, states.condition)

    def reactions(self, molecules: Sequence[Molecule], actions: Tensor) -> tuple[list[int], list[tuple[str, int, int]]]:
        """The rows whose action is a reaction, and these reactions; those that name none are left out."""
        rows, reactions = list[int](), list[tuple[str, int, int]]()
        n_blocks, partner = len(self.network.blocks), self.network.partner
        for row, (move, block, _, _) in enumerate(actions.tolist()):
            if FIRST < move < self.n_moves and molecules[row].smiles:
                right = block == -1 if partner[move] < 0 else 0 <= block < n_blocks
                if right:
                    rows.append(row)
                    reactions.append((molecules[row].smiles, move, block))
        return rows, reactions

    def _after(self, molecule: Molecule, depth: int, action: list[int], products: Sequence[str]) -> Molecule | None:
        """The molecule after a move that is allowed, or None if the rest of the action is not."""
        move, block, outcome, _ = action
        if move == STOP:
            return molecule if (block, outcome) == (depth, 0) else None
        if move == FIRST:
            fine = 0 <= block < len(self.network.blocks) and self.network.startable[block] and outcome == 0
            return self.network.blocks[block] if fine else None
        partner = self.network.partner[move]
        if partner >= 0 and not self.fits_slot(block, int(partner)):
            return None
        return self.network.molecules(products[outcome]) if 0 <= outcome < len(products) else None

    def fits_slot(self, block: int, slot: int) -> bool:
        """Whether a block fits a slot."""
        fits = self.network.blocks[block].fits if 0 <= block < len(self.network.blocks) else None
        return fits is not None and bool(fits[slot])

    def undo(self, states: Syntheses, actions: Tensor) -> Syntheses:
        before, depths = list[Molecule](), list[int]()
        for row, action in enumerate(actions.tolist()):
            parent, depth = self._before(states, row, action)
            before.append(parent)
            depths.append(depth)
        depth = torch.tensor(depths, dtype=torch.long, device=self.device)
        earlier = Syntheses(states.molecules, tuple(before), depth, torch.zeros_like(states.stopped), states.condition)
        again = self.step(earlier, actions)  # an edge that goes back goes forth, or it is none
        for row, (came, wanted) in enumerate(zip(again.molecule, states.molecule, strict=True)):
            if came is not wanted:
                self._refuse(states, row, actions[row].tolist())
        return earlier

    def _before(self, states: Syntheses, row: int, action: list[int]) -> tuple[Molecule, int]:
        move, block, _, key = action
        depth = int(states.depth[row])
        right = bool(states.stopped[row]) == (move == STOP) and (move != FIRST or depth == 0)
        if not right or (move > FIRST and depth == 0):
            self._refuse(states, row, action)
        if move == STOP:
            possible = self.min_reactions <= block <= self.max_reactions
            return (states.molecule[row], block) if possible else self._refuse(states, row, action)
        parent = self._named(key, states.molecule[row])
        return (parent, depth - (move > FIRST)) if parent is not None else self._refuse(states, row, action)

    def _named(self, key: int, child: Molecule) -> Molecule | None:
        """The molecule with a key, which is known, or else is among the parents of ``child``."""
        with suppress(KeyError):
            return self.network.molecules.named(key)
        parents = (self.network.molecules(origin.parent) for origin in self.network.proposed([child.smiles])[0])
        return next((parent for parent in parents if parent.key == key), None)

    def _refuse(self, states: Syntheses, row: int, action: list[int]) -> Any:
        where = self.describe(states[row : row + 1])[0]
        raise ValueError(f"{type(self).__name__}.undo: action {self.name_of(action)} does not lead to state {where}")

    def log_reward(self, states: Syntheses) -> Tensor:
        with np.errstate(divide="ignore"):
            log_reward = torch.from_numpy(np.log(self.rewards(states))).to(self.device)
        return self.exponents.to(self.device)[states.condition] * log_reward

    def rewards(self, states: Syntheses) -> NDArray[np.float64]:
        """R itself, before the exponent, float64 ``[N]``: finite numbers from 0 on, or NaN where the reward masks."""
        return np.array([self._rewards[m.smiles] for m in self._rewarded(states.molecule)], dtype=np.float64)

    def _rewarded(self, molecules: Sequence[Molecule]) -> Sequence[Molecule]:
        """The same molecules, once their rewards are known."""
        new = list(dict.fromkeys(m.smiles for m in molecules if m.smiles not in self._rewards))
        if new:
            found = dict(zip(new, np.asarray(self.reward(new), dtype=np.float64).tolist(), strict=True))
            bad = {s: v for s, v in found.items() if not 0 <= v < math.inf and not (self.masks and math.isnan(v))}
            if bad:
                first, value = next(iter(bad.items()))
                raise RewardError(
                    f"reward {self.reward.name} of {first} is {value} ({len(bad)} of {len(new)} are bad); "
                    "expected a finite number that is not negative"
                )
            self._rewards.update(found)
        return molecules

    def distance(self, first: Syntheses, second: Syntheses) -> Tensor:
        """1 − Tanimoto similarity of Morgan fingerprints (radius 2, without chirality), row by row, ``[N]``."""
        return torch.tensor(diversity.distance(first.smiles, second.smiles), dtype=torch.float64, device=self.device)

    @property
    def mode_counts(self) -> Mapping[str, int | None]:
        """Definitions of modes; how many there are is not known."""
        return {"good_scaffolds": None, "good_molecules": None}

    def modes(self, states: Syntheses) -> Mapping[str, Tensor]:
        """Which scaffold and which molecule each good molecule is, 63 bits of a hash, long ``[N]``; −1 for none."""
        molecules = [text if good else "" for text, good in zip(states.smiles, self._good(states), strict=True)]
        scaffolds = [diversity.scaffold(text) if text else "" for text in molecules]
        return {"good_scaffolds": self._labels(scaffolds), "good_molecules": self._labels(molecules)}

    def _good(self, states: Syntheses) -> list[bool]:
        return (self.rewards(states) >= self.mode_threshold).tolist()

    def _labels(self, texts: Sequence[str]) -> Tensor:
        labels = [fingerprint(text.encode()) & LABEL if text else -1 for text in texts]
        return torch.tensor(labels, dtype=torch.long, device=self.device)

    def summary(self, t: Trajectories[Syntheses]) -> dict[str, float]:
        """Figures of the molecules and routes of trajectories, by name (:func:`envs.synthesis.metrics.summary`)."""
        return metrics.summary(self, t)

    def export(self, t: Trajectories[Syntheses], directory: Path, log_p: Tensor | None = None) -> list[Path]:
        """Write files for chemists about trajectories (:func:`envs.synthesis.export.export`); returns them."""
        from envs.synthesis.export import export  # drawing takes libraries that training can do without

        return export(self, t, directory, log_p)

    def records(self, states: Syntheses, facts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """SDF of each terminal state, with facts about it (:func:`envs.synthesis.export.records`)."""
        from envs.synthesis.export import records

        return records(states, facts)

    def describe(self, states: Syntheses) -> list[str]:
        """SMILES and the number of reactions, or that it is finished, and the exponent if there are several."""
        lines = list[str]()
        for molecule, depth, stopped, condition in zip(
            states.molecule, states.depth.tolist(), states.stopped.tolist(), states.condition.tolist(), strict=True
        ):
            stage = "" if stopped or not molecule.smiles else f" after {depth} reaction{'s' * (depth != 1)}"
            given = f" | exponent {float(self.exponents[condition]):g}" if len(self.exponents) > 1 else ""
            lines.append(f"{molecule}{stage}{given}")
        return lines

    def name_of(self, action: Sequence[int]) -> str:
        """An action in words."""
        move, block, outcome, _ = action
        if move == STOP:
            return "stop"
        known = 0 <= block < len(self.network.blocks)
        text = self.network.blocks[block].smiles if known else str(block)
        if move == FIRST:
            return f"begin with {text}"
        way = self.network.moves[move] if 0 <= move < self.n_moves else None
        if way is None:
            return str(list(action))
        other = f" with {text} in slot {1 - way.role}" if way.partner >= 0 else ""
        return f"{way.template.name}{other}, product {outcome}"
