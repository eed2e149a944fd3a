"""Conditions in the state: one graph, several targets, and one policy that is told which.

The condition is drawn by ``reset``, lives in the state and never changes; ``encode`` shows it to
networks. An environment that can be listed is listed once for each condition, so that evaluation
is exact for each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gfn.environment import DiscreteEnvironment, as_enumerable, as_measured, as_multimodal
from gfn.flows import Potential, Stoppable
from gfn.states import States, cat, from_tensors, to_tensors

S = TypeVar("S", bound=States)


@dataclass(frozen=True)
class Conditioned(Generic[S]):
    """Attributes: ``inner``, the states of the environment conditioned; ``condition``, their numbers, long ``[N]``."""

    inner: S
    condition: Tensor

    def __len__(self) -> int:
        return len(self.condition)

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.inner[index], self.condition[index])

    def to(self, device: torch.device | str) -> Self:
        """The same states on ``device``."""
        return type(self)(self.inner.to(device), self.condition.to(device))

    @classmethod
    def cat(cls, batches: Sequence[Self]) -> Self:
        """Join batches in order."""
        return cls(cat([b.inner for b in batches]), torch.cat([b.condition for b in batches]))

    def tensors(self) -> dict[str, Tensor]:
        """Those of the environment's states, and the condition."""
        return {**{f"inner.{name}": x for name, x in to_tensors(self.inner).items()}, "condition": self.condition}

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> Self:
        """The states that gave ``tensors``, of the kind of this batch."""
        inner = {name.removeprefix("inner."): x for name, x in tensors.items() if name.startswith("inner.")}
        return type(self)(from_tensors(inner, self.inner), tensors["condition"])


class Conditional(DiscreteEnvironment[Conditioned[S]]):
    """An environment with one of C targets, drawn evenly by ``reset``; steps and masks are the environment's own.

    Where the environment lists states, names modes (here each of them once for each condition) or
    knows distances, potentials and an action that stops, so does this.

    Args:
        env: whose graph is walked.
        names: of the conditions, C of them, for messages.
    """

    def __init__(self, env: DiscreteEnvironment[S], names: Sequence[str]):
        self.env, self.names = env, tuple(names)
        self.n_conditions = len(self.names)
        self.n_actions, self.max_steps = env.n_actions, env.max_steps
        self.n_features = env.n_features + self.n_conditions
        self.device = env.device
        self._offer()

    def _offer(self) -> None:
        """Have the optional methods that the environment has, and no others."""
        if as_enumerable(self.env) is not None:
            self.enumerate, self.index = self._enumerate, self._index
        modal = as_multimodal(self.env)
        if modal is not None:
            self.mode_counts: Mapping[str, int | None] = {
                name: None if count is None else self.n_conditions * count for name, count in modal.mode_counts.items()
            }
            self.modes = self._modes
        if as_measured(self.env) is not None:
            self.distance = self._distance
        if all(isinstance(env, Potential) for env in self._rewarding()):
            self.log_potential = self._log_potential
        if isinstance(self.env, Stoppable):
            self.stop_action = self.env.stop_action

    def to(self, device: torch.device | str) -> Self:
        moved = super().to(device)
        moved.env = self.env.to(device)
        moved._offer()
        return moved

    def _rewarding(self) -> Sequence[DiscreteEnvironment[S]]:
        """The environments that rewards are made of."""
        return (self.env,)

    @abstractmethod
    def _combined(self, log_values: Sequence[Tensor], condition: Tensor) -> Tensor:
        """Log-reward under each condition from those of the environments rewards are made of, ``[N]`` each."""

    def reset(self, n: int, generator: torch.Generator | None = None) -> Conditioned[S]:
        condition = torch.randint(self.n_conditions, (n,), generator=generator, device=self.device)
        return Conditioned(self.env.reset(n, generator), condition)

    def step(self, states: Conditioned[S], actions: Tensor) -> Conditioned[S]:
        return Conditioned(self.env.step(states.inner, actions), states.condition)

    def undo(self, states: Conditioned[S], actions: Tensor) -> Conditioned[S]:
        return Conditioned(self.env.undo(states.inner, actions), states.condition)

    def is_initial(self, states: Conditioned[S]) -> Tensor:
        return self.env.is_initial(states.inner)

    def is_terminal(self, states: Conditioned[S]) -> Tensor:
        return self.env.is_terminal(states.inner)

    def log_reward(self, states: Conditioned[S]) -> Tensor:
        return self._combined([env.log_reward(states.inner).double() for env in self._rewarding()], states.condition)

    def forward_mask(self, states: Conditioned[S]) -> Tensor:
        return self.env.forward_mask(states.inner)

    def backward_mask(self, states: Conditioned[S]) -> Tensor:
        return self.env.backward_mask(states.inner)

    def encode(self, states: Conditioned[S]) -> Tensor:
        """Features of the environment, then the condition one-hot, ``[N, n_features]``."""
        inner = self.env.encode(states.inner)
        return torch.cat([inner, one_hot(states.condition, self.n_conditions).to(inner.dtype)], 1)

    def describe(self, states: Conditioned[S]) -> list[str]:
        """The environment's own words, and the name of the condition."""
        pairs = zip(self.env.describe(states.inner), states.condition.tolist(), strict=True)
        return [f"{text} | {self.names[condition]}" for text, condition in pairs]

    def _enumerate(self) -> Conditioned[S]:
        listed = as_enumerable(self.env)
        assert listed is not None
        states = listed.enumerate()
        condition = torch.arange(self.n_conditions, device=self.device).repeat_interleave(len(states))
        return Conditioned(cat([states] * self.n_conditions), condition)

    def _index(self, states: Conditioned[S]) -> Tensor:
        listed = as_enumerable(self.env)
        assert listed is not None
        return states.condition * self._size + listed.index(states.inner)

    @cached_property
    def _size(self) -> int:
        return len(self._enumerate()) // self.n_conditions

    def _modes(self, states: Conditioned[S]) -> Mapping[str, Tensor]:
        modal = as_multimodal(self.env)
        assert modal is not None
        labels = modal.modes(states.inner)
        return {k: (v * self.n_conditions + states.condition).where(v >= 0, -1) for k, v in labels.items()}

    def _distance(self, first: Conditioned[S], second: Conditioned[S]) -> Tensor:
        measured = as_measured(self.env)
        assert measured is not None
        return measured.distance(first.inner, second.inner)

    def _log_potential(self, states: Conditioned[S]) -> Tensor:
        potentials = [cast(Potential, env).log_potential(states.inner).double() for env in self._rewarding()]
        return self._combined(potentials, states.condition)


class RewardExponents(Conditional[S]):
    """The exponent β as a condition: targets R(x)^β, one for each exponent (a temperature is its inverse).

    Args:
        env: an environment, whose log-reward is multiplied.
        exponents: the values that β may take.

    Raises:
        ValueError: unless there is an exponent, and all are positive and finite.
    """

    def __init__(self, env: DiscreteEnvironment[S], exponents: Sequence[float]):
        if not exponents or not all(0 < value < torch.inf for value in exponents):
            raise ValueError(f"RewardExponents: needs exponents that are positive and finite, got {list(exponents)}")
        super().__init__(env, [f"exponent {value:g}" for value in exponents])
        self.exponents = torch.tensor(exponents, dtype=torch.float64)

    def _combined(self, log_values: Sequence[Tensor], condition: Tensor) -> Tensor:
        return self.exponents[condition] * log_values[0]


class Preferences(Conditional[S]):
    """Preference weights w as a condition: targets made of the rewards of several environments on one graph.

    Args:
        envs: environments that differ in nothing but the reward; the first one is walked.
        weights: the values that w may take, each one number for each environment, not negative.
        combine: ``product`` for Π R_i^w_i, ``sum`` for Σ w_i R_i.

    Raises:
        ValueError: if the numbers do not fit together.
    """

    def __init__(
        self,
        envs: Sequence[DiscreteEnvironment[S]],
        weights: Sequence[Sequence[float]],
        combine: Literal["product", "sum"] = "product",
    ):
        fit = all(len(row) == len(envs) and all(0 <= w < torch.inf for w in row) and sum(row) > 0 for row in weights)
        if not envs or not weights or not fit:
            raise ValueError(
                f"Preferences: each of the weights needs {len(envs)} numbers that are not negative, one for each "
                f"environment, and not all zero; got {[list(row) for row in weights]}"
            )
        if combine not in ("product", "sum"):
            raise ValueError(f"Preferences: combine must be product or sum, got {combine!r}")
        self.envs, self.combine = tuple(envs), combine
        super().__init__(envs[0], ["weights " + " ".join(f"{w:g}" for w in row) for row in weights])
        self.weights = torch.tensor([list(row) for row in weights], dtype=torch.float64)

    def to(self, device: torch.device | str) -> Self:
        moved = super().to(device)
        moved.envs = tuple(env.to(device) for env in self.envs)
        return moved

    def _rewarding(self) -> Sequence[DiscreteEnvironment[S]]:
        return self.envs

    def _combined(self, log_values: Sequence[Tensor], condition: Tensor) -> Tensor:
        each = torch.stack(list(log_values), 1)
        weight = self.weights[condition]
        if self.combine == "sum":
            return (each + weight.log()).logsumexp(1)
        return torch.where(weight > 0, weight * each, 0.0).sum(1)  # a weight of zero forgives a reward of zero
