"""Distinct products of sampled trajectories: what is written about each molecule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.synthesis.metrics import properties
from envs.synthesis.molecules import Syntheses
from envs.synthesis.routes import Route
from gfn.trajectories import Trajectories

if TYPE_CHECKING:
    from envs.synthesis.environment import Synthesis


@dataclass(frozen=True)
class Product:
    """A molecule that was sampled.

    Attributes:
        id: its rank by reward, such as ``M0001``, by which all files of an export call it.
        smiles: canonical.
        reward: R itself, before any exponent.
        terms: what the reward is made of, by name.
        times: how often it was sampled.
        route: the best of the sampled ways to make it: of fewest reactions, then the cheapest whose price is known.
        routes: how many different ones were sampled.
        log_p: estimate of its log-probability, if there is one.
    """

    id: str
    smiles: str
    reward: float
    terms: dict[str, float]
    times: int
    route: Route
    routes: int
    log_p: float | None

    @property
    def properties(self) -> dict[str, float]:
        """QED, SA, molecular weight and logP."""
        return properties(self.smiles)

    @property
    def title(self) -> str:
        """A line above a drawing of its route."""
        n = len(self.route.steps)
        price = "" if self.route.price is None else f", blocks {self.route.price:g}"
        return f"{self.id}, reward {self.reward:.3g}, {n} reaction{'s' * (n != 1)}{price}"

    @property
    def facts(self) -> dict[str, Any]:
        """What a line of a table says about it, by column; None where something is not known."""
        own: dict[str, Any] = {"id": self.id, "smiles": self.smiles, "reward": self.reward, "times_sampled": self.times}
        if self.log_p is not None:
            own["log_p"] = self.log_p
        made: dict[str, Any] = {
            "reactions": len(self.route.steps),
            "routes_sampled": self.routes,
            "route": str(self.route),
            "blocks": "|".join(block.id for block in self.route.blocks),
            "price": self.route.price,
        }
        taken = {*own, *made}  # a term of the reward may have any name
        terms = {f"{name}_term" if name in taken else name: value for name, value in self.terms.items()}
        return {**own, **self.properties, **terms, **made}


def products_of(
    env: Synthesis, t: Trajectories[Syntheses], routes: Sequence[Route], log_p: Sequence[float] | None = None
) -> list[Product]:
    """The distinct products of trajectories, those with the largest rewards first, equal ones by SMILES.

    Args:
        env: the environment.
        t: trajectories.
        routes: the route of each.
        log_p: estimates for each of them; the first one of a molecule counts.
    """
    rows = dict[str, list[int]]()
    for row, route in enumerate(routes):
        rows.setdefault(route.product, []).append(row)
    rewards = env.rewards(t.final).tolist()
    ordered = sorted(rows, key=lambda smiles: (-rewards[rows[smiles][0]], smiles))
    terms = {name: values.tolist() for name, values in env.reward.terms(ordered).items()}
    width = max(4, len(str(len(ordered))))
    return [
        Product(
            f"M{number:0{width}}",
            smiles,
            rewards[rows[smiles][0]],
            {name: values[number - 1] for name, values in terms.items()},
            len(rows[smiles]),
            min((routes[row] for row in rows[smiles]), key=_effort),
            len({str(routes[row]) for row in rows[smiles]}),
            None if log_p is None else log_p[rows[smiles][0]],
        )
        for number, smiles in enumerate(ordered, 1)
    ]


def _effort(route: Route) -> tuple[int, float, str]:
    return len(route.steps), float("inf") if route.price is None else route.price, str(route)
