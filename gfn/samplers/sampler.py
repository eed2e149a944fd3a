"""What a sampler is, and how a batch is divided into groups and parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import torch

from gfn.states import States, fingerprint
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Sampler(Protocol[S]):
    """Answers which trajectories to train on at a step, and can be stopped and resumed bit for bit.

    Attributes:
        batch_size: trajectories at a call that does not say how many.
        group_size: trajectories that share an initial state.
        one_group: whether a batch of any size is one group (or one for each initial state in it).
        forward: whether all trajectories are sampled forward, so that ``behaviour_log_prob`` is that of a
            forward policy.
    """

    batch_size: int
    group_size: int
    one_group: bool
    forward: bool

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        """The batch for training step ``step``, of ``size`` trajectories; default, ``batch_size``.

        Raises:
            ValueError: if ``size`` is not a positive multiple of ``group_size`` (of 1, if ``one_group``).
        """
        ...

    def settings(self, step: int) -> dict[str, float]:
        """Scheduled values in force and what happened in the last call, for the log."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def unit_of(sampler: Sampler[Any]) -> int:
    """The number that every size of this sampler's batches is a multiple of."""
    return 1 if sampler.one_group else sampler.group_size


def groups_in(sampler: Sampler[Any], size: int) -> int:
    """Number of groups in a batch of ``size`` trajectories.

    Raises:
        ValueError: if they do not come out even, or there is not one trajectory.
    """
    if size < 1 or size % unit_of(sampler):
        raise ValueError(
            f"{type(sampler).__name__}: asked for {size} trajectories; expected a positive multiple "
            f"of group_size={unit_of(sampler)}"
        )
    return 1 if sampler.one_group else size // sampler.group_size


def checked_size(name: str, batch_size: int | None, default: int, unit: int) -> int:
    """``batch_size``, or ``default`` if there is none.

    Raises:
        ValueError: if it is not a positive multiple of ``unit``.
    """
    size = default if batch_size is None else batch_size
    if size < 1 or size % unit:
        raise ValueError(f"{name}: batch_size must be a positive multiple of group_size={unit}, got {size}")
    return size


def apportion(total: int, weights: Sequence[float], unit: int = 1) -> list[int]:
    """Whole multiples of ``unit`` that add up to ``total``, in proportion to ``weights`` (largest remainder).

    Raises:
        ValueError: if ``unit`` does not divide ``total``, or the weights are no proportions.
    """
    if total % unit or not all(0 <= weight < math.inf for weight in weights) or sum(weights) <= 0:
        raise ValueError(
            f"expected proportions that are finite, not negative and not all zero, and a whole number of groups; "
            f"got {list(weights)} for {total} trajectories in groups of {unit}"
        )
    ideal = [total // unit * weight / sum(weights) for weight in weights]
    whole = [math.floor(share) for share in ideal]
    # Remainders are rounded so that equal weights with equal remainders tie, and the earlier one comes first.
    by_remainder = sorted(range(len(ideal)), key=lambda i: -round(ideal[i] - whole[i], 9))
    for i in by_remainder[: total // unit - sum(whole)]:
        whole[i] += 1
    return [unit * count for count in whole]


def generator_of(owner: object, device: torch.device, seed: int) -> torch.Generator:
    """A generator for one part of a sampler: parts of different kinds draw apart, though all are given one seed."""
    return torch.Generator(device).manual_seed(fingerprint(f"{type(owner).__name__} {seed}".encode()))
