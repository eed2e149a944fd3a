"""A few blocks and reactions of molecules, some of them with prices, that several tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from envs.synthesis.blocks import Record, clean
from envs.synthesis.environment import Synthesis
from envs.synthesis.molecules import Syntheses
from envs.synthesis.network import ReactionNetwork
from envs.synthesis.policy import UniformSynthesis
from envs.synthesis.rewards import Property
from envs.synthesis.templates import load
from gfn.sampling import rollout
from gfn.trajectories import Trajectories

TEMPLATES = ("amide_coupling", "boc_removal", "buchwald_hartwig", "suzuki_boronic_acid", "urea_from_isocyanate")
BLOCKS = {  # SMILES: id, CAS number, price
    "C1CNCCN1": ("piperazine", "110-85-0", 2.0),
    "CC(C)(C)OC(=O)N1CCNCC1": ("boc-piperazine", "57260-71-6", 3.5),
    "NCCN": ("<script>alert('ethylene & diamine')</script>", "107-15-3", 1.0),
    "NCc1ccccc1": ("benzylamine", None, None),
    "O=C(O)c1ccc(Br)cc1": ("bromobenzoic acid", "586-76-5", 4.0),
    "O=C(O)c1ccc(C(=O)O)cc1": ("terephthalic acid", None, 0.5),
    "OB(O)c1ccccc1": ("phenylboronic acid", "98-80-6", 5.0),
    "O=C=Nc1ccccc1": ("phenyl isocyanate", "103-71-9", 2.5),
}


def small_environment(cache: Path, **settings: Any) -> Synthesis:
    """Eight blocks, five templates, at most two reactions, R = QED."""
    named = enumerate(BLOCKS.items(), 1)
    records = [Record(i, smiles, smiles, id, "shelf", cas, price) for i, (smiles, (id, cas, price)) in named]
    single = settings.get("min_reactions") == 0
    network = ReactionNetwork(clean(records, strict=True), load(only=TEMPLATES), single=single, cache=cache)
    return Synthesis(network, Property("qed"), **{"max_reactions": 2, "exponent": 4.0, **settings})


def sampled(env: Synthesis, n: int = 200) -> Trajectories[Syntheses]:
    """Trajectories of the uniform policy."""
    generator = torch.Generator().manual_seed(0)
    return rollout(env, UniformSynthesis(env), env.reset(n, generator), generator=generator)
