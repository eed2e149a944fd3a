"""Environments: batched, pure, deterministic transition systems with a log-reward."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from gfn.states import States

S = TypeVar("S", bound=States)
S_out = TypeVar("S_out", bound=States, covariant=True)


class RewardError(ValueError):
    """A reward is not a number a target distribution can be made of.

    Attributes:
        states: the terminal states that rewards were asked for, where they are known.
    """

    states: Any = None


class TooManyStatesError(ValueError):
    """An environment has more states than it is willing to list."""


class Environment(ABC, Generic[S]):
    """A pointed directed acyclic multigraph over batches of states.

    An environment holds constants only: every method is a pure function of its arguments, and none
    changes a batch it was given. Actions are tensors ``[N, ...]``; one action names one edge, so
    the action that leads from ``s`` to ``s'`` is also the one that undoes it.

    Attributes:
        max_steps: upper bound on the number of steps of a trajectory.
        device: where :meth:`reset` puts its states.
        masks: whether a log-reward may be NaN, that is, not known, as where a user's reward failed; nothing is
            learned from such a trajectory.
    """

    max_steps: int
    device: torch.device = torch.device("cpu")
    masks: bool = False

    @abstractmethod
    def reset(self, n: int, generator: torch.Generator | None = None) -> S:
        """Return ``n`` initial states; a condition (prompt, label, temperature) is drawn here."""

    @abstractmethod
    def step(self, states: S, actions: Tensor) -> S:
        """Follow one edge forward from each state; an action that is not allowed raises ValueError."""

    @abstractmethod
    def undo(self, states: S, actions: Tensor) -> S:
        """Follow the same edges backward: ``undo(step(s, a), a) == s``."""

    @abstractmethod
    def is_initial(self, states: S) -> Tensor:
        """Which states are initial, bool ``[N]``."""

    @abstractmethod
    def is_terminal(self, states: S) -> Tensor:
        """Which states are terminal, bool ``[N]``."""

    @abstractmethod
    def log_reward(self, states: S) -> Tensor:
        """Log-reward of terminal states, float ``[N]``; ``-inf`` (zero reward) is legal, +inf not, NaN if it masks."""

    def describe(self, states: S) -> list[str]:
        """One short line of text for each state, for messages and sample files."""
        return [" ".join(repr(states[i : i + 1]).split()) for i in range(len(states))]

    def to(self, device: torch.device | str) -> Self:
        """A copy of this environment whose tensors, and the states it makes, live on ``device``."""
        moved = copy.copy(self)
        moved.device = torch.device(device)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(moved, name, value.to(device))
        return moved


class DiscreteEnvironment(Environment[S]):
    """An environment whose actions are ``0 … n_actions − 1``, with dense masks and features.

    Attributes:
        n_actions: number of action names; which of them a state allows is told by the masks.
        n_features: width of :meth:`encode`.
    """

    n_actions: int
    n_features: int

    @abstractmethod
    def forward_mask(self, states: S) -> Tensor:
        """Actions allowed in each state, bool ``[N, n_actions]``; a pure function of the state."""

    @abstractmethod
    def backward_mask(self, states: S) -> Tensor:
        """Actions that lead into each state, bool ``[N, n_actions]``."""

    @abstractmethod
    def encode(self, states: S) -> Tensor:
        """Features for a neural network, float ``[N, n_features]``."""

    def edges(self, states: S) -> tuple[Tensor, Tensor]:
        """Every edge out of non-terminal ``states``: the row it leaves, long ``[E]``, and its action ``[E]``."""
        rows, actions = self.forward_mask(states).nonzero(as_tuple=True)
        return rows, actions

    def require_allowed(self, states: S, actions: Tensor, mask: Tensor, verb: str) -> None:
        """Raise ValueError, naming a state and what it allows, unless ``mask`` ``[N, A]`` allows all actions."""
        named = (actions >= 0) & (actions < self.n_actions)
        allowed = named & mask.gather(1, actions.where(named, 0).unsqueeze(1)).squeeze(1)
        if bool(allowed.all()):
            return
        first = int((~allowed).nonzero()[0, 0])
        some = mask[first].nonzero().flatten()[:20].tolist()
        raise ValueError(
            f"{type(self).__name__}.{verb}: action {int(actions[first])} is not allowed in state "
            f"{self.describe(states[first : first + 1])[0]}; allowed are {some}"
            + (" and more" if len(some) < int(mask[first].sum()) else "")
        )


@runtime_checkable
class Enumerable(Protocol[S_out]):
    """An environment small enough to list; it buys exact evaluation (:mod:`gfn.exact`) and exact tests.

    ``edges`` comes for free with :class:`DiscreteEnvironment`.
    """

    def enumerate(self) -> S_out:
        """Every state once, parents before children; raises TooManyStatesError rather than fill the memory."""
        ...

    def index(self, states: Any, /) -> Tensor:
        """Position of each state in :meth:`enumerate`, long ``[N]``."""
        ...

    def edges(self, states: Any, /) -> tuple[Tensor, Tensor]:
        """Every edge out of non-terminal states: rows ``[E]`` and actions ``[E, ...]``."""
        ...


@runtime_checkable
class Multimodal(Protocol):
    """An environment that says what its modes are, under one or several definitions.

    Attributes:
        mode_counts: for each definition, how many modes there are; None where that is not known.
    """

    @property
    def mode_counts(self) -> Mapping[str, int | None]: ...

    def modes(self, states: Any, /) -> Mapping[str, Tensor]:
        """For each definition, the mode each terminal state belongs to, long ``[N]``; −1 where it is in none."""
        ...


@runtime_checkable
class Tested(Protocol):
    """An environment with a published set of terminal states on which probabilities are compared with rewards."""

    def benchmark_states(self, generator: torch.Generator | None = None, /) -> Any:
        """The terminal states of the test set; random choices in it are drawn from ``generator``."""
        ...


@runtime_checkable
class Measured(Protocol):
    """An environment that knows how far apart terminal states are."""

    def distance(self, first: Any, second: Any, /) -> Tensor:
        """Distance of two batches row by row, ``[N]``."""
        ...


@runtime_checkable
class Summarised(Protocol):
    """An environment that has numbers of its own to report about trajectories."""

    def summary(self, t: Any, /) -> Mapping[str, float]:
        """Numbers about trajectories, by names that evaluation does not use itself."""
        ...


def as_discrete(env: Environment[S]) -> DiscreteEnvironment[S] | None:
    """``env`` itself if its actions have dense masks, else None."""
    return env if isinstance(env, DiscreteEnvironment) else None


def as_enumerable(env: Environment[S]) -> Enumerable[S] | None:
    """``env`` itself if it can list its states, else None."""
    return cast("Enumerable[S]", env) if isinstance(env, Enumerable) else None


def as_multimodal(env: Environment[Any]) -> Multimodal | None:
    """``env`` itself if it knows its modes, else None."""
    return env if isinstance(env, Multimodal) else None


def as_tested(env: Environment[Any]) -> Tested | None:
    """``env`` itself if it has a test set, else None."""
    return env if isinstance(env, Tested) else None


def as_measured(env: Environment[Any]) -> Measured | None:
    """``env`` itself if it has a distance, else None."""
    return env if isinstance(env, Measured) else None


def as_summarised(env: Environment[Any]) -> Summarised | None:
    """``env`` itself if it summarises trajectories, else None."""
    return env if isinstance(env, Summarised) else None


def checked_log_reward(env: Environment[S], states: S, *, masked: bool = False) -> Tensor:
    """Log-rewards of terminal states ``[N]``, or a :class:`RewardError` that names the first bad state.

    With ``masked``, NaN is no bad one where the environment masks.
    """
    try:
        return _checked(env, states, env.log_reward(states), masked and env.masks)
    except RewardError as error:
        error.states = states
        raise


def _checked(env: Environment[S], states: S, log_reward: Tensor, masked: bool) -> Tensor:
    if log_reward.shape != (len(states),):
        raise RewardError(
            f"{type(env).__name__}.log_reward returned shape {tuple(log_reward.shape)} for {len(states)} states; "
            f"expected ({len(states)},)"
        )
    bad = log_reward == torch.inf if masked else ~(log_reward < torch.inf)
    if bad.any():
        first = int(bad.nonzero()[0, 0])
        state = env.describe(states[first : first + 1])[0]
        raise RewardError(
            f"{type(env).__name__}: log-reward of state {state} is {log_reward[first].item()} "
            f"({int(bad.sum())} of {len(states)} states are bad); it must be finite, or -inf for reward zero"
        )
    return log_reward
