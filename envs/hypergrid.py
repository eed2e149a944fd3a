"""The hypergrid of Bengio et al. 2021 (arXiv:2106.04399): grow one of D coordinates by one, or stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from gfn.environment import DiscreteEnvironment, RewardError, TooManyStatesError
from gfn.states import TensorStates

MAX_LISTED = 4_194_304  # terminal states that enumerate is willing to list


@dataclass(frozen=True)
class GridStates(TensorStates):
    """Attributes: ``coords``, long ``[N, D]``; ``stopped``, bool ``[N]``."""

    coords: Tensor
    stopped: Tensor


class GridReward(Protocol):
    """Reward of grid points, and which of them are modes."""

    def __call__(self, coords: Tensor, side: int) -> Tensor:
        """Reward R ≥ 0 of coordinates ``[N, D]``, float64 ``[N]``."""
        ...

    def is_mode(self, coords: Tensor, side: int) -> Tensor:
        """Which coordinates are mode states, bool ``[N]``."""
        ...


def _beyond(coords: Tensor, side: int, tenths: int) -> Tensor:
    """|x/(H−1) − ½| > tenths/10 for each coordinate, decided by integers: floats err on the boundary."""
    return 5 * (2 * coords - (side - 1)).abs() > tenths * (side - 1)


def _in_band(coords: Tensor, side: int) -> Tensor:
    """0.3 < |x/(H−1) − ½| < 0.4 for every coordinate, an open interval."""
    twice = 5 * (2 * coords - (side - 1)).abs()
    return ((twice > 3 * (side - 1)) & (twice < 4 * (side - 1))).all(-1)


def _require_rewards(name: str, **values: float) -> None:
    bad = {key: value for key, value in values.items() if not 0 <= value < torch.inf}
    if bad:
        raise ValueError(f"{name}: rewards must be finite and not negative, got {bad}")


@dataclass(frozen=True)
class Classic:
    """R0 + R1·[every |x/(H−1)−½| > ¼] + R2·[every one in (0.3, 0.4)]: high in the 2^D corners (Bengio et al. 2021)."""

    r0: float = 0.1
    r1: float = 0.5
    r2: float = 2.0

    def __post_init__(self) -> None:
        _require_rewards("Classic", r0=self.r0, r1=self.r1, r2=self.r2)

    def __call__(self, coords: Tensor, side: int) -> Tensor:
        outer = (2 * (2 * coords - (side - 1)).abs() > side - 1).all(-1)
        return self.r0 + self.r1 * outer.double() + self.r2 * _in_band(coords, side).double()

    def is_mode(self, coords: Tensor, side: int) -> Tensor:
        return _in_band(coords, side)


@dataclass(frozen=True)
class Cosine:
    """R0 + R1·Π (1 + cos 50u)·φ(5u), u = |x/(H−1)−½| and φ the normal density (torchgfn's ``CosineReward``).

    Modes are the points with at least 80% of the largest value on the grid.
    """

    r0: float = 0.1
    r1: float = 0.5

    def __post_init__(self) -> None:
        _require_rewards("Cosine", r0=self.r0, r1=self.r1)

    @staticmethod
    def _factor(coords: Tensor, side: int) -> Tensor:
        u = (coords.double() / (side - 1) - 0.5).abs()
        return (1 + (50 * u).cos()) * (-0.5 * (5 * u).square()).exp() / (2 * torch.pi) ** 0.5

    def __call__(self, coords: Tensor, side: int) -> Tensor:
        return self.r0 + self.r1 * self._factor(coords, side).prod(-1)

    def is_mode(self, coords: Tensor, side: int) -> Tensor:
        best = self._factor(torch.arange(side, device=coords.device), side).max() ** coords.shape[-1]
        return self(coords, side) >= self.r0 + 0.8 * self.r1 * best


@dataclass(frozen=True)
class Sparse:
    """1 where every coordinate is 1 or H−2 and not all are 1; ``floor`` elsewhere (Pan et al., arXiv:2210.03308)."""

    floor: float = 1e-4

    def __post_init__(self) -> None:
        _require_rewards("Sparse", floor=self.floor)

    def __call__(self, coords: Tensor, side: int) -> Tensor:
        mode = self.is_mode(coords, side)
        return mode.double().masked_fill(~mode, self.floor)

    def is_mode(self, coords: Tensor, side: int) -> Tensor:
        corner = ((coords == 1) | (coords == side - 2)).all(-1)
        return corner & ~(coords == 1).all(-1)


@dataclass(frozen=True)
class Deceptive:
    """R0 + R1·[not every u > 0.1] + R2·[every u in (0.3, 0.4)]: a lure in the middle.

    Kim et al. 2025 (arXiv:2410.01432); the intervals follow the authors' code, not the paper's equation 9.
    """

    r0: float = 1e-5
    r1: float = 0.1
    r2: float = 2.0

    def __post_init__(self) -> None:
        _require_rewards("Deceptive", r0=self.r0, r1=self.r1, r2=self.r2)

    def __call__(self, coords: Tensor, side: int) -> Tensor:
        ring = _beyond(coords, side, 1).all(-1)
        return self.r0 + self.r1 * (~ring).double() + self.r2 * _in_band(coords, side).double()

    def is_mode(self, coords: Tensor, side: int) -> Tensor:
        return _in_band(coords, side)


@dataclass(frozen=True)
class UserReward:
    """A reward of your own: ``function(coords) -> rewards``, long ``[N, D]`` to float ``[N]``.

    Modes are the states with a reward of at least ``mode_threshold``; without one there are none.
    """

    function: Callable[[Tensor], Tensor]
    mode_threshold: float | None = None

    def __call__(self, coords: Tensor, side: int) -> Tensor:
        return self.function(coords).double()

    def is_mode(self, coords: Tensor, side: int) -> Tensor:
        if self.mode_threshold is None:
            return torch.zeros(len(coords), dtype=torch.bool, device=coords.device)
        return self.function(coords) >= self.mode_threshold


class Hypergrid(DiscreteEnvironment[GridStates]):
    """States {0, …, side−1}^ndim, from the origin; action i < ndim adds one to coordinate i, action ndim stops.

    Args:
        side: points along each axis, H.
        ndim: number of axes, D.
        reward: reward of grid points; default, :class:`Classic`.

    Raises:
        ValueError: if ``side`` < 2 or ``ndim`` < 1.
    """

    def __init__(self, side: int = 8, ndim: int = 2, reward: GridReward | None = None):
        if side < 2 or ndim < 1:
            raise ValueError(f"Hypergrid: needs side >= 2 and ndim >= 1, got side={side} ndim={ndim}")
        self.side, self.ndim = side, ndim
        self.reward: GridReward = reward if reward is not None else Classic()
        self.n_actions = ndim + 1
        self.n_features = ndim * side
        self.max_steps = ndim * (side - 1) + 1
        self.stop_action = ndim
        self._place = side ** torch.arange(ndim).flip(0)

    def reset(self, n: int, generator: torch.Generator | None = None) -> GridStates:
        coords = torch.zeros(n, self.ndim, dtype=torch.long, device=self.device)
        return GridStates(coords, torch.zeros(n, dtype=torch.bool, device=self.device))

    def step(self, states: GridStates, actions: Tensor) -> GridStates:
        self.require_allowed(states, actions, self.forward_mask(states), "step")
        return GridStates(states.coords + self._move(actions), actions == self.ndim)

    def undo(self, states: GridStates, actions: Tensor) -> GridStates:
        self.require_allowed(states, actions, self.backward_mask(states), "undo")
        return GridStates(states.coords - self._move(actions), torch.zeros_like(states.stopped))

    def _move(self, actions: Tensor) -> Tensor:
        return one_hot(actions, self.n_actions)[:, : self.ndim]

    def is_initial(self, states: GridStates) -> Tensor:
        return (states.coords == 0).all(1) & ~states.stopped

    def is_terminal(self, states: GridStates) -> Tensor:
        return states.stopped

    def forward_mask(self, states: GridStates) -> Tensor:
        grow = pad(states.coords < self.side - 1, (0, 1), value=True)
        return grow & ~states.stopped.unsqueeze(1)

    def backward_mask(self, states: GridStates) -> Tensor:
        stopped = states.stopped.unsqueeze(1)
        return torch.cat([(states.coords > 0) & ~stopped, stopped], 1)

    def encode(self, states: GridStates) -> Tensor:
        """One-hot coordinates, ``[N, D·H]``."""
        return one_hot(states.coords, self.side).flatten(1).to(torch.get_default_dtype())

    def log_potential(self, states: GridStates) -> Tensor:
        """log R of the grid point of any state, stopped or not, float64 ``[N]``."""
        return self.log_reward(states)

    def log_reward(self, states: GridStates) -> Tensor:
        """log R, float64 ``[N]``; raises RewardError for a negative reward, naming the state."""
        reward = self.reward(states.coords, self.side)
        negative = reward < 0
        if bool(negative.any()):
            first = int(negative.nonzero()[0, 0])
            raise RewardError(
                f"Hypergrid: reward of state {self.describe(states[first : first + 1])[0]} is {float(reward[first])}; "
                "rewards must not be negative"
            )
        return reward.log()

    def describe(self, states: GridStates) -> list[str]:
        """Coordinates joined by spaces; a trailing ``stop`` marks terminal states."""
        rows = zip(states.coords.tolist(), states.stopped.tolist(), strict=True)
        return [" ".join(map(str, coords)) + (" stop" if stopped else "") for coords, stopped in rows]

    def enumerate(self) -> GridStates:
        """All 2·H^D states: the grid in lexicographic order, then its stopped copy.

        Raises:
            TooManyStatesError: if the grid has more than MAX_LISTED points.
        """
        if self.side**self.ndim > MAX_LISTED:
            raise TooManyStatesError(
                f"Hypergrid: {self.side}^{self.ndim} = {self.side**self.ndim} points are too many to list "
                f"(at most {MAX_LISTED}); evaluate by samples instead (evaluator.exact=false)"
            )
        point = torch.arange(self.side**self.ndim, device=self.device)
        coords = point.unsqueeze(1) // self._place % self.side
        stopped = torch.arange(2 * len(point), device=self.device) >= len(point)
        return GridStates(coords.repeat(2, 1), stopped)

    def index(self, states: GridStates) -> Tensor:
        """Position in :meth:`enumerate`, long ``[N]``."""
        return (states.coords * self._place).sum(1) + states.stopped * self.side**self.ndim

    @cached_property
    def mode_counts(self) -> Mapping[str, int]:
        """``regions``: corners that hold a mode state; ``mode_states``: mode states, where the grid can be listed."""
        if self.side**self.ndim > MAX_LISTED:
            return {"regions": 2**self.ndim}
        found = {name: label.unique() for name, label in self._labels(self.enumerate()).items()}
        return {name: int((label >= 0).sum()) for name, label in found.items()}

    def modes(self, states: GridStates) -> Mapping[str, Tensor]:
        """Region (which half of each axis) and grid point of each state in a mode, −1 elsewhere, long ``[N]``."""
        labels = self._labels(states)
        return {name: labels[name] for name in self.mode_counts}

    def _labels(self, states: GridStates) -> dict[str, Tensor]:
        inside = self.reward.is_mode(states.coords, self.side)
        halves = (2 * states.coords > self.side - 1).long()
        region = (halves * 2 ** torch.arange(self.ndim, device=halves.device)).sum(1)
        return {
            "regions": region.where(inside, -1),
            "mode_states": (states.coords * self._place).sum(1).where(inside, -1),
        }

    def image(self, states: GridStates, values: Tensor) -> Tensor:
        """Values of terminal states summed over all axes but the first two, ``[H, H]``; ``[1, H]`` if there is one."""
        picture = values.new_zeros(self.side if self.ndim > 1 else 1, self.side)
        row = states.coords[:, 1] if self.ndim > 1 else torch.zeros_like(states.coords[:, 0])
        return picture.index_put((row, states.coords[:, 0]), values, accumulate=True)
