"""Priorities: which of the stored trajectories to draw, as a weight for each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gfn.schedules import Number, Schedule, value_at


class Priority(Protocol):
    """From what is known of stored trajectories to the weights they are drawn with."""

    def __call__(self, log_reward: Tensor, age: Tensor, step: int) -> Tensor:
        """Log-weight of each trajectory, up to a constant, float64 ``[M]``.

        Args:
            log_reward: of each, float64 ``[M]``.
            age: training steps since each was stored, long ``[M]``.
            step: the training step, for schedules.
        """
        ...


def normalised(log_weight: Tensor) -> Tensor:
    """Log-probabilities in proportion to weights; uniform where all weights are zero."""
    uniform = torch.zeros_like(log_weight)
    return torch.where((log_weight == -torch.inf).all(), uniform, log_weight).log_softmax(0)


@dataclass(frozen=True)
class Uniform:
    """All alike."""

    def __call__(self, log_reward: Tensor, age: Tensor, step: int) -> Tensor:
        return torch.zeros_like(log_reward)


@dataclass(frozen=True)
class ByReward:
    """In proportion to R to the power ``inverse_temperature``.

    Raises:
        ValueError: if a constant ``inverse_temperature`` is negative.
    """

    inverse_temperature: Number = 1.0

    def __post_init__(self) -> None:
        require_in(self, "inverse_temperature", self.inverse_temperature, 0, math.inf)

    def __call__(self, log_reward: Tensor, age: Tensor, step: int) -> Tensor:
        return powered(log_reward, value_at(self.inverse_temperature, step))


@dataclass(frozen=True)
class ByRank:
    """In proportion to 1 / (k·M + rank), the best of M having rank 0 (Tripp et al. 2020, arXiv:2006.09191).

    Small ``k`` draws the best almost only, large ``k`` all alike; the scale of the rewards does not matter.

    Raises:
        ValueError: if a constant ``k`` is not positive.
    """

    k: Number = 0.01

    def __post_init__(self) -> None:
        require_in(self, "k", self.k, 1e-12, math.inf)

    def __call__(self, log_reward: Tensor, age: Tensor, step: int) -> Tensor:
        rank = log_reward.argsort(descending=True, stable=True).argsort().double()
        return -(value_at(self.k, step) * len(rank) + rank).log()


@dataclass(frozen=True)
class Recent:
    """Half as likely for every ``half_life`` training steps of age.

    Raises:
        ValueError: if a constant ``half_life`` is not positive.
    """

    half_life: Number = 100.0

    def __post_init__(self) -> None:
        require_in(self, "half_life", self.half_life, 1e-12, math.inf)

    def __call__(self, log_reward: Tensor, age: Tensor, step: int) -> Tensor:
        return age.double() * (-math.log(2) / value_at(self.half_life, step))


@dataclass(frozen=True)
class Mixed:
    """By ``second`` with probability ``weight``, by ``first`` otherwise.

    Raises:
        ValueError: if a constant ``weight`` is outside [0, 1].
    """

    first: Priority
    second: Priority
    weight: Number = 0.5

    def __post_init__(self) -> None:
        require_in(self, "weight", self.weight, 0, 1)

    def __call__(self, log_reward: Tensor, age: Tensor, step: int) -> Tensor:
        weight = torch.tensor(value_at(self.weight, step), dtype=torch.float64)
        first = normalised(self.first(log_reward, age, step)) + (1 - weight).log()
        return torch.logaddexp(first, normalised(self.second(log_reward, age, step)) + weight.log())


def powered(log_reward: Tensor, exponent: float) -> Tensor:
    """Log of R to a power, where a reward of zero to the power zero is one."""
    return log_reward.double() * exponent if exponent != 0 else torch.zeros_like(log_reward, dtype=torch.float64)


def require_in(owner: object, name: str, number: Number, low: float, high: float) -> None:
    """Raise ValueError if a plain number is not finite or lies outside [low, high]; a schedule is let through."""
    if not isinstance(number, Schedule) and not (low <= number <= high and number < math.inf):
        bounds = f"lie in [{low:g}, {high:g}]" if high < math.inf else f"be finite and at least {low:g}"
        raise ValueError(f"{type(owner).__name__}: {name} must {bounds}, got {number}")


def draw(
    log_weight: Tensor,
    condition: Tensor,
    groups: int,
    size: int,
    generator: torch.Generator | None = None,
    replacement: bool = True,
) -> Tensor:
    """Positions of ``groups`` times ``size`` items; a group is of one condition.

    Conditions are drawn by the weights of their items together, first among those with at least
    ``size`` items, then items by theirs; with one condition, that is by the weights alone.

    Args:
        log_weight: of each item, ``[M]``.
        condition: items with equal numbers may be in a group together, long ``[M]``.
        replacement: whether conditions and items may come again; if not, they do only where there are too few.

    Returns:
        long ``[groups * size]``, one group after another.
    """
    probability = normalised(log_weight.double()).exp()
    _, place, count = condition.unique(return_inverse=True, return_counts=True)
    if len(count) == 1:
        several = replacement or _enough(probability, groups * size)
        parts = [groups * size] if several else [size] * groups
        return torch.cat([_drawn(probability, part, replacement, generator) for part in parts])
    mass = torch.zeros_like(count, dtype=torch.float64).index_add(0, place, probability)
    enough = mass * (count >= size)
    chosen = _drawn(enough if bool(enough.any()) else mass, groups, replacement, generator)
    drawn: list[Tensor] = []
    for one in chosen.tolist():
        items = (place == one).nonzero().squeeze(-1)
        drawn.append(items[_drawn(probability[items], size, replacement, generator)])
    return torch.cat(drawn)


def _enough(probability: Tensor, n: int) -> bool:
    return int((probability > 0).sum()) >= n


def _drawn(probability: Tensor, n: int, replacement: bool, generator: torch.Generator | None) -> Tensor:
    again = replacement or not _enough(probability, n)
    return torch.multinomial(probability, n, replacement=again, generator=generator)
