"""Samples of molecules, as notebooks look at them: good ones that differ, and the building blocks they are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from envs.synthesis import diversity
from envs.synthesis.products import Product, products_of
from envs.synthesis.routes import Route, routes_of
from experiments.reports.curves import COLOURS, STYLES
from experiments.trials import Trial
from gfn.sampling import rollout


@dataclass(frozen=True)
class Sample:
    """What a policy makes.

    Attributes:
        routes: the route of each sample, as they came.
        products: the distinct molecules, the best first.
    """

    routes: Sequence[Route]
    products: Sequence[Product]

    @property
    def rewards(self) -> list[float]:
        """Reward of each sample, before any exponent."""
        of = {product.smiles: product.reward for product in self.products}
        return [of[route.product] for route in self.routes]

    def uses(self) -> list[tuple[str, int]]:
        """SMILES of the building blocks with how often they were used, the most frequent first."""
        return Counter(block.smiles for route in self.routes for block in route.blocks).most_common()


@torch.no_grad()
def sample(trial: Trial, n: int = 1000, seed: int = 0) -> Sample:
    """``n`` syntheses by the policy of a trial, from a generator of their own."""
    generator = torch.Generator(trial.env.device).manual_seed(seed)
    t = rollout(trial.env, trial.policy, trial.env.reset(n, generator), generator=generator)
    routes = routes_of(trial.env, t)
    return Sample(routes, products_of(trial.env, t, routes))


def modes(sample: Sample, n: int, threshold: float) -> int:
    """Good molecules among the first ``n`` samples that differ: each less similar than ½ to every better one."""
    smiles, rewards = [route.product for route in sample.routes[:n]], sample.rewards[:n]
    best = dict(zip(smiles, rewards, strict=True))
    return len(diversity.modes(list(best), list(best.values()), threshold))


def draw(samples: Mapping[str, Sample], threshold: float) -> Any:
    """Rewards, modes against the number of samples, and how evenly building blocks are used; a figure of matplotlib."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for i, (label, one) in enumerate(samples.items()):
        look = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i % len(STYLES)], "label": label}
        ordered, n = sorted(one.rewards), len(one.routes)
        axes[0].plot(ordered, [1 - k / n for k in range(n)], **look)
        counts = sorted({max(1, n * k // 10) for k in range(1, 11)})
        axes[1].plot(counts, [modes(one, k, threshold) for k in counts], **look)
        uses = [count for _, count in one.uses()]
        axes[2].plot(range(1, len(uses) + 1), torch.tensor(uses).cumsum(0).div(sum(uses)).numpy(), **look)
    axes[0].axvline(threshold, color="black", linewidth=0.5)
    axes[0].set(xlabel="reward", ylabel="share of samples with at least that reward", ylim=(0, 1.02))
    axes[1].set(xlabel="samples", ylabel=f"modes (reward ≥ {threshold:g}, similarity < 0.5)", ylim=(0, None))
    axes[2].set(xlabel="building blocks, the most used first", ylabel="share of all uses", xscale="log", ylim=(0, 1.02))
    axes[0].legend()
    return figure
