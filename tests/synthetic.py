"""Small synthesis environments that several tests share, and the same reactions carried out by plain RDKit."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from rdkit import Chem, rdBase
from rdkit.Chem import rdChemReactions
from torch import Tensor, nn

from envs.synthesis.blocks import Library
from envs.synthesis.chemistry import FIRST, STOP
from envs.synthesis.environment import Synthesis
from envs.synthesis.libraries import library
from envs.synthesis.molecules import Syntheses
from envs.synthesis.network import ReactionNetwork
from envs.synthesis.policy import UniformSynthesis
from envs.synthesis.rewards import Property
from envs.synthesis.rewards.reward import Reward, Values
from envs.synthesis.templates import Template, load
from gfn.distributions import RaggedCategorical
from gfn.policies import Policy
from gfn.sampling import rollout
from gfn.trajectories import Trajectories

CONFIG = Path(__file__).parents[1] / "configs" / "experiment" / "synthesis" / "tiny.yaml"
TINY: list[str] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["env"]["blocks"]
TEMPLATES = load()
_FOLDER = tempfile.TemporaryDirectory()  # of this process, so that no test depends on what another one left
CACHE = Path(_FOLDER.name)
ACID, AMINE, BOC = "O=C(O)c1ccccc1", "NCc1ccccc1", "CC(C)(C)OC(=O)N1CCNCC1"
AMIDE = "O=C(NCc1ccccc1)c1ccccc1"


@dataclass(frozen=True)
class Hashed:
    """A reward without chemistry, at no cost: 1 to 8, as a hash of the SMILES says."""

    name: str = "hashed"

    def __call__(self, smiles: Sequence[str]) -> Values:
        return np.array([1.0 + blake2b(text.encode(), digest_size=1).digest()[0] % 8 for text in smiles])

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}


def synthesis(
    blocks: Library | Sequence[str] = TINY,
    max_reactions: int = 2,
    min_reactions: int = 1,
    reward: Reward | None = None,
    exponent: float | Sequence[float] = 1.0,
    listed: bool = True,
    templates: Sequence[Template] = TEMPLATES,
    stereo: bool = False,
    **settings: Any,
) -> Synthesis:
    """An environment from SMILES or a library; ``settings`` are those of its network."""
    chosen = blocks if isinstance(blocks, Library) else library(list(blocks), stereo=stereo, cache=CACHE)
    settings = {"cache": CACHE, "stereo": stereo, "single": min_reactions == 0} | settings
    network = ReactionNetwork(chosen, templates, **settings)
    return Synthesis(network, reward or Hashed(), max_reactions, min_reactions, exponent, listed)


@cache
def tiny(max_reactions: int = 2) -> Synthesis:
    """Sixteen blocks and this project's templates, every molecule listed; one for the whole process."""
    return synthesis(max_reactions=max_reactions)


@cache
def drug_like(blocks: int = 16) -> Synthesis:
    """The same, or fewer blocks, with drug-likeness to the power of 8 as the reward."""
    return synthesis(TINY[:blocks], reward=Property("qed"), exponent=8.0)


@dataclass(frozen=True, order=True)
class Step:
    """A reaction of a molecule: its name, the molecule's slot, the block (or none), which product, and that product."""

    template: str
    role: int
    block: str
    outcome: int
    product: str


class Bench:
    """What templates do, by RDKit alone and straight from their SMIRKS: what the environment must agree with."""

    def __init__(
        self, templates: Sequence[Template], blocks: Sequence[str], chemoselective: bool = False, stereo: bool = False
    ):
        self.blocks, self.stereo = list(blocks), stereo
        self.reactions: dict[str, Any] = {t.name: rdChemReactions.ReactionFromSmarts(t.forward) for t in templates}
        self.written = {t.name: t.forward.split(">>")[1].count("/") // 2 for t in templates}  # geometries of bonds
        self.slots: dict[str, list[Any]] = {}
        self.forbidden: dict[str, list[list[Any]]] = {}
        for t in templates:
            patterns = [Chem.MolFromSmarts(text) for text in t.forward.split(">>")[0].split(".")]
            self.slots[t.name] = patterns
            forbid = t.forbid if chemoselective and t.forbid else [()] * len(patterns)
            self.forbidden[t.name] = [[Chem.MolFromSmarts(text) for text in slot] for slot in forbid]
        self.fits = cache(self._fits)
        self.steps = cache(self._steps)

    def _fits(self, name: str, slot: int, smiles: str) -> bool:
        mol = Chem.MolFromSmiles(smiles)
        barred = any(mol.HasSubstructMatch(pattern) for pattern in self.forbidden[name][slot])
        return mol.HasSubstructMatch(self.slots[name][slot]) and not barred

    def products(self, name: str, reactants: Sequence[str]) -> list[str]:
        """Every sound product of reactants in the order of the slots, sorted."""
        found = set[str]()
        mols = [Chem.MolFromSmiles(text) for text in reactants]
        with rdBase.BlockLogs():
            for (product,) in self.reactions[name].RunReactants(mols):
                try:
                    Chem.SanitizeMol(product)
                except ValueError:
                    continue
                found.add(self.settled(Chem.MolToSmiles(product, isomericSmiles=self.stereo)))
        wanted = sum(map(marks, mols)) + self.written[name]
        kept = (not self.stereo or marks(Chem.MolFromSmiles(text)) == wanted for text in sorted(found))
        return [text for text, keep in zip(sorted(found), kept, strict=True) if keep and "." not in text]

    def settled(self, text: str) -> str:
        """SMILES read and written until it stays, or the first of those that it alternates between."""
        seen = list[str]()
        while text not in seen:
            seen.append(text)
            text = Chem.MolToSmiles(Chem.MolFromSmiles(text), isomericSmiles=self.stereo)
        return min(seen[seen.index(text) :])

    def carried_out(self, name: str, role: int, block: str, smiles: str) -> list[str]:
        """Products of a molecule in one slot and a block, if there is one, in the other."""
        return self.products(name, [smiles] if not block else [smiles, block] if role == 0 else [block, smiles])

    def _steps(self, smiles: str) -> list[Step]:
        """Every reaction of a molecule: all templates, roles, blocks and products are tried."""
        found = list[Step]()
        for name, slots in self.slots.items():
            for role in range(len(slots)):
                if not self.fits(name, role, smiles):
                    continue
                partners = [b for b in self.blocks if self.fits(name, 1 - role, b)] if len(slots) == 2 else [""]
                for block in partners:
                    products = self.carried_out(name, role, block, smiles)
                    found += [Step(name, role, block, i, product) for i, product in enumerate(products)]
        return sorted(found)

    def explored(self, max_reactions: int) -> list[dict[str, list[Step]]]:
        """For each number of reactions the molecules made by so many, each with what can be done with it next."""
        begin = [block for block in self.blocks if self.steps(block)]
        levels = [{smiles: self.steps(smiles) for smiles in begin}]
        while len(levels) < max_reactions:
            made = sorted({step.product for steps in levels[-1].values() for step in steps})
            levels.append({smiles: self.steps(smiles) for smiles in made})
        return levels


def bench_of(env: Synthesis, chemoselective: bool = False) -> Bench:
    """Plain RDKit with the blocks and templates of an environment."""
    blocks = [block.smiles for block in env.network.library.blocks]
    return Bench(env.network.templates, blocks, chemoselective, env.network.workers.subject.stereo)


def marks(mol: Any) -> int:
    """Number of stereo centres and double bonds whose geometry is written in the SMILES."""
    centres = re.findall("@+", Chem.MolToSmiles(mol))
    return len(centres) + sum(str(bond.GetStereo()) in ("STEREOE", "STEREOZ") for bond in mol.GetBonds())


def step_of(env: Synthesis, action: Sequence[int], product: str) -> Step:
    """A reaction in words."""
    move, block, outcome, _ = action
    way = env.network.moves[move]
    assert way is not None
    partner = env.network.blocks[block].smiles if block >= 0 else ""
    return Step(way.template.name, way.role, partner, outcome, product)


def of_kind(actions: Tensor) -> Tensor:
    """Which actions are reactions, bool ``[N]``."""
    return (actions[:, 0] != STOP) & (actions[:, 0] != FIRST)


def states_at(env: Synthesis, smiles: Sequence[str], depth: int) -> Syntheses:
    """Unfinished syntheses with these molecules after so many reactions."""
    molecules, nothing = env.network.molecules, torch.zeros(len(smiles), dtype=torch.long)
    return Syntheses(molecules, tuple(map(molecules, smiles)), nothing + depth, nothing.bool(), nothing)


def sampled(env: Synthesis, n: int, seed: int = 0) -> Trajectories[Any]:
    """Trajectories of the uniform policy."""
    generator = torch.Generator().manual_seed(seed)
    return rollout(env, UniformSynthesis(env), env.reset(n, generator), generator=generator)


def move_of(env: Synthesis, name: str, role: int = 0) -> int:
    return next(i for i, way in enumerate(env.network.moves) if way and (way.template.name, way.role) == (name, role))


def block_of(env: Synthesis, smiles: str) -> int:
    return [block.smiles for block in env.network.blocks].index(smiles)


def wrong_steps(env: Synthesis) -> dict[str, tuple[str, int, list[int]]]:
    """Actions that are refused, by what is wrong: the molecule, the number of reactions, and the action."""
    couple, deprotect = move_of(env, "amide_coupling"), move_of(env, "boc_removal")
    acid, amine, key = block_of(env, ACID), block_of(env, AMINE), {m: env.network.molecules(m).key for m in (ACID, BOC)}
    return {
        "begin where a molecule is": (ACID, 0, [FIRST, acid, 0, key[ACID]]),
        "no such move": (ACID, 0, [env.n_moves, -1, 0, key[ACID]]),
        "a negative move": (ACID, 0, [-1, -1, 0, key[ACID]]),
        "stop too early": (ACID, 0, [STOP, 0, 0, key[ACID]]),
        "stop with another number": (ACID, 1, [STOP, 2, 0, key[ACID]]),
        "stop with a product": (ACID, 1, [STOP, 1, 1, key[ACID]]),
        "a slot that does not fit": (BOC, 0, [couple, amine, 0, key[BOC]]),
        "a block that does not fit": (ACID, 0, [couple, acid, 0, key[ACID]]),
        "no such block": (ACID, 0, [couple, len(TINY), 0, key[ACID]]),
        "a block is missing": (ACID, 0, [couple, -1, 0, key[ACID]]),
        "a block too many": (BOC, 0, [deprotect, amine, 0, key[BOC]]),
        "no such product": (ACID, 0, [couple, amine, 1, key[ACID]]),
        "a negative product": (ACID, 0, [couple, amine, -1, key[ACID]]),
        "another molecule": (ACID, 0, [couple, amine, 0, key[BOC]]),
        "too many reactions": (ACID, 2, [couple, amine, 0, key[ACID]]),
        "begin in the middle of nothing": ("", 0, [couple, amine, 0, 0]),
        "stop before anything": ("", 0, [STOP, 0, 0, 0]),
        "begin with no block": ("", 0, [FIRST, len(TINY), 0, 0]),
        "begin with a negative block": ("", 0, [FIRST, -1, 0, 0]),
        "begin with a product": ("", 0, [FIRST, acid, 1, 0]),
    }


class TabularEdges(Policy[Syntheses]):
    """P_F with one logit for each edge of an environment that lists them: every policy can be written so."""

    def __init__(self, env: Synthesis):
        super().__init__()
        listed: Any = env
        self.index: Callable[[Syntheses], Tensor] = listed.index
        states = listed.enumerate()
        live = (~states.stopped).nonzero().squeeze(1)
        row, self.action = listed.edges(states[live])
        self.count = torch.zeros(len(states), dtype=torch.long).index_add(0, live[row], torch.ones_like(row))
        self.start = self.count.cumsum(0) - self.count  # edges are listed state by state, in order
        self.logits = nn.Parameter(torch.zeros(len(row)))

    def distribution(self, states: Syntheses) -> RaggedCategorical:
        place = self.index(states)
        count = self.count[place]
        row = torch.repeat_interleave(count)
        edge = self.start[place][row] + torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        return RaggedCategorical(self.logits[edge], self.action[edge], row, len(states))
