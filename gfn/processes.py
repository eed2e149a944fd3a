"""The processes of a data-parallel run (``torchrun``); alone, there is one, and it is the first."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
T = TypeVar("T")


@contextmanager
def together() -> Generator[None]:
    """Join the processes that ``torchrun`` started with this one, and leave when all are done; alone, do nothing."""
    if os.environ.get("WORLD_SIZE", "1") == "1" or dist.is_initialized():
        yield
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        dist.barrier()  # a process that leaves while another still talks to it aborts
    finally:
        dist.destroy_process_group()


def count() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def gathered(value: T) -> list[T]:
    """The values of every process, in order of rank. They must come from this run: they are unpickled."""
    if not dist.is_initialized():
        return [value]
    everyone: list[Any] = [None] * count()
    dist.all_gather_object(everyone, value)
    return everyone


def own(values: Sequence[T]) -> T:
    """This process's entry of what every process gave.

    Raises:
        ValueError: if there were more or fewer processes then than now.
    """
    if len(values) != count():
        raise ValueError(f"it was made by {len(values)} processes and there are {count()} now; start as many as then")
    return values[rank()]


def apart(t: Trajectories[S]) -> Trajectories[S]:
    """A batch of several groups with numbers that no other process uses; one of a single group as it is."""
    if count() == 1 or int(t.group.max()) == int(t.group.min()):
        return t
    return replace(t, group=t.group + rank() * (1 << 32))
