"""Exploration: change the distribution actions are drawn from, never the policy.

The log-probabilities of training are the policy's own; what was really drawn from is remembered
as ``Trajectories.behaviour_log_prob``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gfn.distributions import ActionDistribution, Gaussian, Mixture
from gfn.schedules import Number, Schedule, value_at


class Exploration(Protocol):
    """From the policy's distribution to the one actions are drawn from at a training step."""

    def __call__(self, distribution: ActionDistribution, step: int) -> ActionDistribution: ...

    def settings(self, step: int) -> dict[str, float]:
        """The values in force, for the log."""
        ...


@dataclass(frozen=True)
class NoExploration:
    """Draw from the policy itself."""

    def __call__(self, distribution: ActionDistribution, step: int) -> ActionDistribution:
        return distribution

    def settings(self, step: int) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class EpsilonUniform:
    """With probability ``epsilon``, at each step, draw uniformly among the allowed actions instead.

    Raises:
        ValueError: if a constant ``epsilon`` is outside [0, 1].
    """

    epsilon: Number = 0.05

    def __post_init__(self) -> None:
        if not isinstance(self.epsilon, Schedule) and not 0 <= self.epsilon <= 1:
            raise ValueError(f"EpsilonUniform: epsilon must lie in [0, 1], got {self.epsilon}")

    def __call__(self, distribution: ActionDistribution, step: int) -> ActionDistribution:
        epsilon = value_at(self.epsilon, step)
        if epsilon <= 0:
            return distribution
        if epsilon >= 1:
            return distribution.uniform()
        return Mixture(distribution, distribution.uniform(), epsilon)

    def settings(self, step: int) -> dict[str, float]:
        return {"epsilon": value_at(self.epsilon, step)}


@dataclass(frozen=True)
class Tempered:
    """Draw from the policy's probabilities to the power ``1 / temperature``; above 1 explores."""

    temperature: Number = 2.0

    def __post_init__(self) -> None:
        if not isinstance(self.temperature, Schedule) and self.temperature <= 0:
            raise ValueError(f"Tempered: temperature must be positive, got {self.temperature}")

    def __call__(self, distribution: ActionDistribution, step: int) -> ActionDistribution:
        return distribution.tempered(value_at(self.temperature, step))

    def settings(self, step: int) -> dict[str, float]:
        return {"temperature": value_at(self.temperature, step)}


@dataclass(frozen=True)
class Noise:
    """Add Gaussian noise of standard deviation ``std`` to continuous actions."""

    std: Number = 0.1

    def __call__(self, distribution: ActionDistribution, step: int) -> ActionDistribution:
        if not isinstance(distribution, Gaussian):
            raise TypeError(
                f"Noise needs Gaussian actions, got {type(distribution).__name__}; "
                "use EpsilonUniform or Tempered for discrete ones"
            )
        return distribution.noisier(value_at(self.std, step))

    def settings(self, step: int) -> dict[str, float]:
        return {"noise_std": value_at(self.std, step)}
