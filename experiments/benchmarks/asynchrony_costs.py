"""What it costs to give out weights, to take them over, and to pass groups from searchers to the trainer."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.benchmarks.asynchrony_tasks import Task
from experiments.build import build
from experiments.reports.arguments import composed
from gfn.distributed import Searcher, ray_session
from gfn.distributed.searcher import Changing

TENSORS = 100  # of a model made up for its size
STALE = 2  # publications that are kept, as in training: the new one, and the one before until it is replaced


@dataclass(frozen=True)
class Transfer:
    """What it takes to pass something on; seconds, of each try.

    Attributes:
        name: what.
        megabytes: of it.
        publish: of the trainer, to give out the weights.
        fetch: of a searcher, to have them before it.
        load: of a searcher, to take them over.
        put: from a group's end to its arrival, beyond an empty job.
        received: CPU seconds of the trainer's process for that job, with what it takes to give it out.
        empty: for a job that does nothing.
    """

    name: str
    megabytes: float
    publish: list[float]
    fetch: list[float]
    load: list[float]
    put: list[float]
    received: list[float]
    empty: list[float]


class Probe:
    """What runs in a searcher's process."""

    def prepare(self, box: list[Any]) -> None:
        """Become a searcher, as :class:`gfn.distributed.crew.Servant` does."""
        torch.set_num_threads(1)
        self.searcher: Searcher[Any] = pickle.loads(ray_session.module().get(box[0]))
        self.group: Any = None

    def fetch(self, box: list[Any]) -> tuple[float, float]:
        """Seconds to have the weights, and to take them over."""
        began = time.perf_counter()
        arrays = ray_session.module().get(box[0])
        there = time.perf_counter()
        self.searcher.load(arrays)
        return there - began, time.perf_counter() - there

    def make(self) -> None:
        """Make the group that :meth:`give` gives."""
        self.group = self.searcher(0, 0).tensors()

    def give(self) -> Any:
        """The group."""
        return self.group

    def nothing(self) -> None:
        pass


class Ballast(nn.Module):
    """Parameters in float32, so many megabytes, in a hundred tensors; nothing can be sampled with it."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        length = max(int(megabytes * 1e6 / 4 / TENSORS), 1)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(length)) for _ in range(TENSORS))


def of_size(megabytes: float, times: int) -> Transfer:
    """Costs of weights of some size, without groups."""
    made_up: Any = Ballast(megabytes)
    nothing: Any = None
    return _measured(f"{megabytes:g} MB", Searcher(nothing, made_up, nothing, 1, 0), times, groups=False)


def of_task(name: str, task: Task, overrides: Sequence[str], times: int) -> Transfer:
    """Costs of a task's weights and groups.

    Raises:
        ConfigError: if the config does not fit.
    """
    sampler = [
        f"sampler.batch_size={task.batch}",
        f"sampler.group_size={task.group}",
        f"sampler.lease_size={task.lease}",
    ]
    config = [*task.overrides, "sampler=asynchronous", *sampler, "logger=quiet", *overrides]
    with tempfile.TemporaryDirectory() as folder:
        run = build(composed([*config, f"run={folder}"]), Path(folder), lambda: False)
    made: Any = run.trainer.sampler
    return _measured(name, made.searcher, times, groups=True)


def _measured(name: str, searcher: Searcher[Any], times: int, groups: bool) -> Transfer:
    ray = ray_session.join("costs", None, None)
    try:
        probe = ray.remote(num_cpus=0)(Probe).remote()
        ray.get(probe.prepare.remote([ray.put(ray.cloudpickle.dumps(searcher))]))
        changing = Changing(searcher.policy)
        size = sum(array.nbytes for array in changing.arrays().values()) / 1e6
        publish, fetch, load = _published(ray, probe, changing, times)
        if groups:
            ray.get(probe.make.remote())
        empty, put, received = _passed(ray, probe, times, groups)
    finally:
        ray_session.leave("costs")
    return Transfer(name, size, publish, fetch, load, put, received, empty)


def _published(ray: Any, probe: Any, changing: Changing, times: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds to publish, fetch and load; the first time, in which memory is set up, is not counted."""
    publish, fetch, load, kept = list[float](), list[float](), list[float](), list[Any]()
    for _ in range(times + 1):
        began = time.perf_counter()
        kept.append(ray.put(changing.arrays()))
        publish.append(time.perf_counter() - began)
        had, taken = ray.get(probe.fetch.remote([kept[-1]]))
        fetch.append(had)
        load.append(taken)
        del kept[:-STALE]
    return publish[1:], fetch[1:], load[1:]


def _passed(ray: Any, probe: Any, times: int, groups: bool) -> tuple[list[float], list[float], list[float]]:
    """Seconds for an empty job, what a group takes beyond that, and CPU seconds here for either, in turns."""
    empty, put, received = list[float](), list[float](), list[float]()
    for i in range(20 * times + 1):  # the first is not counted
        began = time.perf_counter()
        ray.get(probe.nothing.remote())
        there, cpu = time.perf_counter(), time.process_time()
        if groups:
            ray.get(probe.give.remote())
        if i:
            empty.append(there - began)
            put.append(time.perf_counter() - there - empty[-1])
            received.append(time.process_time() - cpu)
    return (empty, put, received) if groups else (empty, [], [])
