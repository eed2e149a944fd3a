"""Figures of sampled molecules and routes, each with its definition and the number of things it was computed from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rdkit import Chem
from torch import Tensor

from envs.synthesis import diversity
from envs.synthesis.molecules import Syntheses
from envs.synthesis.rewards.properties import FUNCTIONS
from envs.synthesis.routes import Route, routes_of
from gfn.metrics import pearson, spearman
from gfn.trajectories import Trajectories

if TYPE_CHECKING:
    from envs.synthesis.environment import Synthesis

PROPERTIES: Mapping[str, str] = {
    "qed": "drug-likeness QED (Bickerton et al. 2012), 0 to 1",
    "sa": "synthetic accessibility (Ertl and Schuffenhauer 2009), 1 easy to 10 hard",
    "weight": "molecular weight in g/mol",
    "logp": "Crippen logP",
}
LEVELS = (1.0, 1.2, 1.4, 1.6)  # of scaffolds, as multiples of the threshold: 5, 6, 7 and 8 if that is 5
SIMILARITIES = {"05": 0.5, "065": 0.65}
TOP = 100
SUMMARISED = 256  # molecules of which a summary computes properties, which take most of the time


@dataclass(frozen=True)
class Figure:
    """A number, from how many things it was computed, and its definition; NaN if there was nothing to compute from."""

    value: float
    n: int
    definition: str


def sample_figures(smiles: Sequence[str]) -> dict[str, Figure]:
    """How many of the sampled SMILES are molecules, and how many differ."""
    n = len(smiles)
    valid = sum(diversity.parsed(text) is not None for text in smiles)
    return {
        "valid_rate": Figure(valid / n, n, "samples whose SMILES RDKit can read / samples"),
        "unique_rate": Figure(len(set(smiles)) / n, n, "distinct SMILES / samples"),
    }


def reward_figures(smiles: Sequence[str], rewards: Sequence[float], top: int = TOP) -> dict[str, Figure]:
    """Mean rewards, of R itself, before any exponent."""
    best = sorted(dict(zip(smiles, rewards, strict=True)).values(), reverse=True)[:top]
    text = f"mean of the largest rewards of distinct molecules, {top} at most"
    return {
        "reward_mean": Figure(_mean(rewards), len(rewards), "mean reward of all samples, repeated ones included"),
        f"reward_top{top}": Figure(_mean(best), len(best), text),
    }


def diversity_figures(smiles: Sequence[str], rewards: Sequence[float], threshold: float) -> dict[str, Figure]:
    """Modes, scaffolds and mean distance of distinct molecules."""
    n, figures = len(smiles), dict[str, Figure]()
    for radius in (2, 3):
        for name, limit in SIMILARITIES.items():
            found = len(diversity.modes(smiles, rewards, threshold, radius, limit))
            text = (
                f"greedy by reward among distinct molecules with reward >= {threshold:g}: Morgan radius {radius}, "
                f"{diversity.N_BITS} bits, no chirality, Tanimoto < {limit:g} to every better mode, "
                f"at most {diversity.MOST_MODES}"
            )
            figures[f"modes_r{radius}_{name}"] = Figure(found, n, text)
    for level in LEVELS:
        found = len(diversity.scaffolds(smiles, rewards, level * threshold))
        text = f"distinct Murcko scaffolds with rings, of distinct molecules with reward >= {level * threshold:g}"
        figures["scaffolds" if level == 1 else f"scaffolds_at_{level:g}x"] = Figure(found, n, text)
    text = f"mean Tanimoto distance over all pairs of distinct molecules: Morgan radius 2, {diversity.N_BITS} bits"
    return figures | {"distance_mean": Figure(diversity.mean_distance(smiles), n, f"{text}, no chirality")}


@lru_cache(100_000)
def properties(smiles: str) -> dict[str, float]:
    """The PROPERTIES of a molecule."""
    mol = diversity.molecule(smiles)
    return {name: float(FUNCTIONS[name](mol)) for name in PROPERTIES}


def property_figures(smiles: Sequence[str]) -> dict[str, Figure]:
    """Means of properties over molecules as they come, repeated ones included."""
    values = [properties(text) for text in smiles]
    return {
        f"{name}_mean": Figure(_mean([v[name] for v in values]), len(values), f"mean over samples of {text}")
        for name, text in PROPERTIES.items()
    }


def route_figures(routes: Sequence[Route]) -> dict[str, Figure]:
    """What the routes of all samples are made of; prices are in the unit of the library."""
    n = len(routes)
    steps = [step for route in routes for step in route.steps]
    blocks = {block.smiles for route in routes for block in route.blocks}
    prices = [route.price for route in routes if route.price is not None]
    figures = {
        "reactions_mean": Figure(_mean([len(route.steps) for route in routes]), n, "mean reactions of a route"),
        "blocks_distinct": Figure(len(blocks), n, "distinct building blocks in the routes of all samples"),
        "templates_distinct": Figure(len({step.template for step in steps}), n, "distinct templates in all routes"),
    }
    if prices:
        text = "mean sum of block prices, each as often as used, of the routes whose prices are all known"
        figures["route_price_mean"] = Figure(_mean(prices), len(prices), text)
    return figures


def template_figures(routes: Iterable[Route]) -> dict[str, Figure]:
    """Share of each template in all reactions, the most frequent first."""
    counts = Counter(step.template for route in routes for step in route.steps)
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = "share of this template in the reactions of all routes"
    return {f"template_{name}": Figure(count / total, total, text) for name, count in ordered}


def novelty_figure(smiles: Iterable[str], known: Collection[str]) -> dict[str, Figure]:
    """Share of distinct molecules that are not among ``known`` canonical SMILES."""
    found = set(smiles)
    share = len(found - set(known)) / len(found) if found else math.nan
    return {
        "novelty": Figure(share, len(found), f"distinct molecules not among {len(known)} known ones / all distinct")
    }


def known_molecules(path: Path, stereo: bool = False) -> frozenset[str]:
    """Canonical SMILES of a file with one SMILES a line, whatever follows it after a space or tab; for novelty.

    Args:
        path: of the file; empty lines do not count.
        stereo: keep stereochemistry, if the sampled molecules have theirs.

    Raises:
        ValueError: with the number of every line (of the first 20) that RDKit cannot read.
    """
    found, bad = set[str](), list[str]()
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if line.strip():
            mol = diversity.parsed(line.split()[0])
            if mol is None:
                bad.append(f"line {number}: {line.split()[0]!r}")
            else:
                found.add(Chem.MolToSmiles(mol, isomericSmiles=stereo))
    if bad:
        more = f" and {len(bad) - 20} more" if len(bad) > 20 else ""
        raise ValueError(
            f"{path}: expected a SMILES on each line, got {', '.join(bad[:20])}{more}; correct or remove them"
        )
    return frozenset(found)


def correlation_figures(log_p: Tensor, log_reward: Tensor) -> dict[str, Figure]:
    """How log-probabilities of distinct molecules go with their log-rewards, ``[N]`` each; entries may be infinite."""
    n = int((log_p.isfinite() & log_reward.isfinite()).sum())
    text = "of the estimated log p(x) with the log-reward (exponent included), over distinct molecules"
    return {
        "log_p_pearson": Figure(pearson(log_p, log_reward), n, f"Pearson correlation {text}, finite ones"),
        "log_p_spearman": Figure(spearman(log_p, log_reward), len(log_p), f"Spearman correlation {text}"),
    }


def figures(
    env: Synthesis,
    t: Trajectories[Syntheses],
    log_p: Tensor | None = None,
    known: Collection[str] | None = None,
    most: int | None = None,
) -> dict[str, Figure]:
    """Every figure of sampled trajectories.

    Args:
        env: the environment.
        t: trajectories, one for each sample.
        log_p: estimates of log p(x) of each final state, float ``[B]``; those of several exponents are not compared.
        known: canonical SMILES of molecules that are nothing new (:func:`known_molecules`).
        most: compute properties of so many samples at most, the first ones.
    """
    final = t.final
    smiles, rewards = final.smiles, env.rewards(final)
    sound = [i for i, text in enumerate(smiles) if diversity.parsed(text) is not None]
    valid, worth = [smiles[i] for i in sound], [float(rewards[i]) for i in sound]
    first = {text: i for i, text in reversed(list(enumerate(valid)))}
    distinct = sorted(first)
    routes = routes_of(env, t)
    result = {
        **sample_figures(smiles),
        **reward_figures(valid, worth),
        **diversity_figures(distinct, [worth[first[text]] for text in distinct], env.mode_threshold),
        **property_figures(valid[:most]),
        **route_figures(routes),
    }
    if known is not None:
        result |= novelty_figure(distinct, known)
    if log_p is not None and len(final.condition.unique()) == 1:
        rows = [sound[first[text]] for text in distinct]
        result |= correlation_figures(log_p[rows], t.log_reward[rows])
    return result | template_figures(routes)


def summary(env: Synthesis, t: Trajectories[Syntheses]) -> dict[str, float]:
    """The figures for the log of a run, without those of single templates and those that are not defined."""
    found = figures(env, t, most=SUMMARISED)
    skipped = tuple(name for name in found if name.startswith(("template_", "scaffolds_at_")))
    return {name: float(f.value) for name, f in found.items() if name not in skipped and math.isfinite(f.value)}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else math.nan
