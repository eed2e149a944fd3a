"""Desirabilities: how welcome a value is, from 0 to 1, which makes a reward of any score."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envs.synthesis.rewards.reward import Score, Values, require_values


@dataclass(frozen=True)
class Range:
    """1 from ``low`` to ``high``, falling on both sides of it.

    Args:
        low: lower end; default, none.
        high: upper end; default, none.
        width: in the units of the value. ``linear``: distance from the range at which 0 is reached;
            ``gaussian``: standard deviation of the tails, which never reach 0.
        shape: of the tails. A reward of 0 is legal, but gives training no direction.

    Raises:
        ValueError: if the ends are in the wrong order or not numbers, or the width is not positive.
    """

    low: float = -math.inf
    high: float = math.inf
    width: float = 1.0
    shape: Literal["linear", "gaussian"] = "gaussian"

    def __post_init__(self) -> None:
        if not self.low <= self.high or self.low == math.inf or self.high == -math.inf:
            raise ValueError(f"Range: expected low ≤ high, got low={self.low}, high={self.high}")
        if not 0 < self.width < math.inf:
            raise ValueError(f"Range: expected a width > 0, got width={self.width}")
        if self.shape not in ("linear", "gaussian"):
            raise ValueError(f"Range: expected the shape linear or gaussian, got {self.shape!r}")

    def __call__(self, values: Values) -> Values:
        outside = (values - np.clip(values, self.low, self.high)) / self.width
        return np.exp(-(outside**2) / 2) if self.shape == "gaussian" else np.maximum(1 - np.abs(outside), 0.0)


@dataclass(frozen=True)
class Rescaled:
    """Linear from 0 at ``worst`` to 1 at ``best``, and constant beyond them; ``worst=10, best=1`` suits ``sa``.

    Raises:
        ValueError: if the two are equal or not finite.
    """

    worst: float
    best: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.worst) and math.isfinite(self.best) and self.worst != self.best):
            raise ValueError(f"Rescaled: expected two different numbers, got worst={self.worst}, best={self.best}")

    def __call__(self, values: Values) -> Values:
        return np.clip((values - self.worst) / (self.best - self.worst), 0.0, 1.0)


@dataclass(frozen=True)
class Desired:
    """The desirability of a score, as a reward.

    Args:
        score: any score or reward.
        desirability: from float64 ``[N]`` to numbers ≥ 0, such as :class:`Range` and :class:`Rescaled`.
        name: default, that of the score and ``_desirability``.

    Raises:
        ValueError: if the name is that of the score, which reports could not tell apart.
        RewardError: when called, if the score is not finite or the desirability negative or not finite.
    """

    score: Score
    desirability: Callable[[Values], Values]
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or f"{self.score.name}_desirability")
        if self.name == self.score.name:
            raise ValueError(f"Desired: expected another name than that of the score, got {self.name!r}")

    def __call__(self, smiles: Sequence[str]) -> Values:
        return self._of(self.score(smiles), smiles)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        parts = self.score.terms(smiles)
        return {**parts, self.name: self._of(parts[self.score.name], smiles)}

    def _of(self, scores: Values, smiles: Sequence[str]) -> Values:
        finite = require_values(self.score.name, scores, smiles, signed=True)
        return require_values(self.name, self.desirability(finite), smiles)
