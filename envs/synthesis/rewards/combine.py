"""Rewards made of rewards: products, powers, sums and means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.synthesis.rewards.reward import Reward, Values, require_values


@dataclass(frozen=True)
class Power:
    """A reward to a power.

    Args:
        reward: R.
        exponent: > 0. It changes the reward for good; the exponent of a target distribution, which
            may follow a schedule or be drawn anew, belongs to the environment.
        name: default, such as ``qed^2``.
    """

    reward: Reward
    exponent: float
    name: str = ""

    def __post_init__(self) -> None:
        _require_positive("Power", "exponent", (self.exponent,))
        object.__setattr__(self, "name", self.name or f"{self.reward.name}^{self.exponent:g}")
        _require_distinct("Power", (self.reward.name, self.name))

    def __call__(self, smiles: Sequence[str]) -> Values:
        return self._of({self.reward.name: self.reward(smiles)}, smiles)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        parts = self.reward.terms(smiles)
        return {**parts, self.name: self._of(parts, smiles)}

    def _of(self, parts: Mapping[str, Values], smiles: Sequence[str]) -> Values:
        values = require_values(self.reward.name, parts[self.reward.name], smiles)
        return require_values(self.name, _raised(values, self.exponent), smiles)


@dataclass(frozen=True)
class Product:
    """The product of rewards, each to its exponent: a molecule has to satisfy all of them.

    Args:
        rewards: with distinct names.
        exponents: one > 0 for each; default, 1. With exponents that add to 1 it is the geometric mean.
        name: in reports.
    """

    rewards: Sequence[Reward]
    exponents: Sequence[float] | None = None
    name: str = "product"

    def __post_init__(self) -> None:
        _prepare(self, "exponents", self.exponents)

    def __call__(self, smiles: Sequence[str]) -> Values:
        return self._of({reward.name: reward(smiles) for reward in self.rewards}, smiles)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        parts = _terms(self.rewards, smiles)
        return {**parts, self.name: self._of(parts, smiles)}

    def _of(self, parts: Mapping[str, Values], smiles: Sequence[str]) -> Values:
        product = np.ones(len(smiles))
        for reward, exponent in zip(self.rewards, self.exponents or (), strict=True):
            product = product * _raised(require_values(reward.name, parts[reward.name], smiles), exponent)
        return require_values(self.name, product, smiles)


@dataclass(frozen=True)
class Sum:
    """The weighted sum of rewards: any of them will do.

    Args:
        rewards: with distinct names.
        weights: one > 0 for each; default, 1.
        name: in reports.
    """

    rewards: Sequence[Reward]
    weights: Sequence[float] | None = None
    name: str = "sum"

    def __post_init__(self) -> None:
        _prepare(self, "weights", self.weights)

    def __call__(self, smiles: Sequence[str]) -> Values:
        return self._of({reward.name: reward(smiles) for reward in self.rewards}, smiles)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        parts = _terms(self.rewards, smiles)
        return {**parts, self.name: self._of(parts, smiles)}

    def _of(self, parts: Mapping[str, Values], smiles: Sequence[str]) -> Values:
        total = np.zeros(len(smiles))
        for reward, weight in zip(self.rewards, self.weights or (), strict=True):
            total = total + weight * require_values(reward.name, parts[reward.name], smiles)
        return require_values(self.name, total, smiles)


def mean(rewards: Sequence[Reward], weights: Sequence[float] | None = None, name: str = "mean") -> Sum:
    """The weighted mean of rewards: their sum with ``weights``, by default equal ones, that are made to add to 1."""
    given = [1.0] * len(rewards) if weights is None else list(weights)
    _require_positive("mean", "weights", given)
    return Sum(rewards, [weight / math.fsum(given) for weight in given], name)


def _prepare(combination: Product | Sum, field: str, numbers: Sequence[float] | None) -> None:
    """Check the fields of a combination and make tuples of its lists."""
    owner, count = type(combination).__name__, len(combination.rewards)
    if count == 0:
        raise ValueError(f"{owner}: expected at least one reward, got none")
    given = (1.0,) * count if numbers is None else tuple(numbers)
    if len(given) != count:
        raise ValueError(f"{owner}: expected one of the {field} for each of {count} rewards, got {len(given)}")
    _require_positive(owner, field, given)
    _require_distinct(owner, [*(reward.name for reward in combination.rewards), combination.name])
    object.__setattr__(combination, "rewards", tuple(combination.rewards))
    object.__setattr__(combination, field, given)


def _terms(rewards: Sequence[Reward], smiles: Sequence[str]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for reward in rewards:
        for name, values in reward.terms(smiles).items():
            if name in found and not np.array_equal(found[name], values, equal_nan=True):
                raise ValueError(
                    f"two different terms are called {name!r}, one of them a part of {reward.name}; rename one"
                )
            found[name] = values
    return found


def _raised(values: Values, exponent: float) -> Values:
    with np.errstate(over="ignore"):  # what overflows is told as a RewardError that names the molecule
        return values**exponent


def _require_positive(owner: str, field: str, numbers: Sequence[float]) -> None:
    if not all(0 < number < math.inf for number in numbers):
        raise ValueError(f"{owner}: expected {field} > 0 and finite, got {', '.join(map(str, numbers))}")


def _require_distinct(owner: str, names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"{owner}: expected distinct names, its own among them, got {', '.join(names)}; give name=")
