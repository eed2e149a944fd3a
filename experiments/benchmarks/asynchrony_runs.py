"""One run of training, with searchers or without, by the clock: in the time counted nothing else happens."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from experiments.benchmarks.asynchrony_tasks import KL, Slow, Task
from experiments.benchmarks.proc import PROC, descendants
from experiments.build import Run, build
from experiments.reports.arguments import composed
from gfn.discovery import Discovery
from gfn.training import Report

P = ParamSpec("P")
T = TypeVar("T")
NEVER = 10**9


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        name: of the task.
        task: what is learned.
        searchers: processes that sample; 0 for none, so that the trainer samples its batches itself.
        staleness: ``max_staleness``.
        steps: updates.
        seed: of everything.
        overrides: further ones.
    """

    name: str
    task: Task
    searchers: int
    staleness: int
    steps: int
    seed: int
    overrides: tuple[str, ...] = ()

    @property
    def config(self) -> list[str]:
        """The config of the run, as one would type it."""
        task = self.task
        own = [f"sampler.batch_size={task.batch}", f"sampler.group_size={task.group}"]
        if self.searchers:
            own += ["sampler=asynchronous", "sampler/engine=ray", f"sampler.engine.searchers={self.searchers}"]
            own += [f"sampler.max_staleness={self.staleness}", f"sampler.lease_size={task.lease}"]
        else:
            own += ["sampler=on_policy"]
        rest = [f"trainer.steps={self.steps}", f"trainer.save_every={NEVER}", "logger=quiet", f"seed={self.seed}"]
        return [*task.overrides, *own, *rest, *self.overrides]

    def __str__(self) -> str:
        if self.searchers == 0:
            return f"{self.name}, synchronous, seed {self.seed}"
        return f"{self.name}, {self.searchers} searchers, staleness {self.staleness}, seed {self.seed}"


@dataclass(frozen=True)
class Measurement:
    """What a run took, from the end of its first update on, with which searchers start.

    Attributes:
        case: what was run.
        setup: seconds until then.
        steps: seconds of each update but the first, batches included.
        publishes, waits: of these the seconds in which weights were given out, and batches waited for.
        searches: seconds from handing out a group to its arrival, by number.
        lag, lag_max: age of the groups trained on, in updates.
        idle: share of the time for which searchers had nothing to do.
        cpu, cpu_others: CPU seconds of the trainer's process, and of all that it has started.
        progress: updates done, and the metric then.
        load: the machine's load average at the end.
    """

    case: Case
    setup: float
    steps: list[float]
    publishes: list[float]
    waits: list[float]
    searches: list[float]
    lag: float
    lag_max: float
    idle: float
    cpu: float
    cpu_others: float
    progress: list[tuple[int, float]]
    load: float

    @property
    def seconds(self) -> float:
        """Of all updates but the first."""
        return sum(self.steps)

    @property
    def updates_to_goal(self) -> int | None:
        """After how many updates the goal was reached; None if it was not."""
        return next((step for step, value in self.progress if self.case.task.reached(value)), None)

    @property
    def seconds_to_goal(self) -> float | None:
        """Time from the first update to that one."""
        done = self.updates_to_goal
        return None if done is None else sum(self.steps[: done - 1])


def apart(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function returns in a new process.

    Raises:
        RuntimeError: if the process dies.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def measured(case: Case) -> Measurement:
    """Run a case in this process.

    Raises:
        ConfigError: if the config does not fit.
        SearchError: if searchers fail.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = build(composed([*case.config, f"run={folder}"]), Path(folder), lambda: False)
        watch = _Watch(run, case)
        evaluator, run.trainer.evaluator, run.trainer.checkpoints = run.trainer.evaluator, None, None
        run.trainer.callbacks = [watch]
        run.trainer.run()
        if case.searchers:
            run.parts["sampler"].close()
    progress = _divergences(run, evaluator, watch) if case.task.metric == KL else _modes(run, watch)
    return watch.told(progress)


def cpu_of_others() -> float:
    """CPU seconds so far of all processes that this one has started, directly or not, and that run; on Linux."""
    total = 0
    for process in descendants(os.getpid()):
        try:
            fields = (PROC / str(process.pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


@dataclass
class _Watch:
    """Notes when what happens, and what is needed to see later how far the run had come."""

    run: Run
    case: Case
    ends: list[float] = field(default_factory=list)
    finals: list[Any] = field(default_factory=list)  # terminal states of each batch, as tensors
    kept: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # weights after some updates
    metrics: list[Mapping[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.created = time.perf_counter()
        self.publishes, self.waits = list[float](), list[float]()
        self.searches = dict[int, float]()
        self.cpu = self.cpu_others = 0.0
        if self.case.task.metric != KL:
            self.run.trainer.objective.register_forward_pre_hook(
                lambda _, given: self.finals.append(given[0].final.tensors())
            )
        if self.case.searchers:
            sampler = self.run.parts["sampler"]
            _timed(sampler.engine, "publish", self.publishes)
            _timed(sampler.engine, "gather", self.waits)
            self._watch_groups(sampler.hub)

    def _watch_groups(self, hub: Any) -> None:
        lease, put, began = hub.lease, hub.put, dict[int, float]()

        def leased(who: str, now: float) -> Any:
            job = lease(who, now)
            if job is not None:
                began[job.number] = now
            return job

        def came(who: str, number: int, group: Any, now: float) -> bool:
            self.searches[number] = now - began[number]
            return put(who, number, group, now)

        hub.lease, hub.put = leased, came

    def start(self, step: int) -> None:
        pass

    def __call__(self, report: Report) -> None:
        if self.case.task.metric == KL and report.step % self.case.task.every == 0:
            own: dict[str, Any] = self.run.parts["policy"].state_dict()
            self.kept[report.step] = {k: v.clone() for k, v in own.items() if isinstance(v, Tensor)}
        self.metrics.append(report.metrics)
        if report.step in (1, report.steps):
            self.cpu, self.cpu_others = time.process_time() - self.cpu, cpu_of_others() - self.cpu_others
        self.ends.append(time.perf_counter())

    def close(self) -> None:
        pass

    def told(self, progress: list[tuple[int, float]]) -> Measurement:
        """All of it."""
        steps = [later - earlier for earlier, later in zip(self.ends, self.ends[1:], strict=False)]
        counted = self.metrics[1:]
        total = sum(steps)
        return Measurement(
            case=self.case,
            setup=self.ends[0] - self.created,
            steps=steps,
            publishes=self.publishes[1:],
            waits=self.waits[1:],
            searches=[self.searches[number] for number in sorted(self.searches)],
            lag=sum(m.get("lag_mean", 0.0) for m in counted) / len(counted),
            lag_max=max(m.get("lag_max", 0.0) for m in counted),
            idle=sum(m.get("idle", 0.0) * s for m, s in zip(counted, steps, strict=True)) / total,
            cpu=self.cpu,
            cpu_others=self.cpu_others,
            progress=progress,
            load=os.getloadavg()[0],
        )


def _timed(owner: Any, name: str, seconds: list[float]) -> None:
    """Have a method of an object note how long each call takes."""
    method = getattr(owner, name)

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(*args)
        finally:
            seconds.append(time.perf_counter() - began)

    setattr(owner, name, timed)


def _divergences(run: Run, evaluator: Any, watch: _Watch) -> list[tuple[int, float]]:
    """KL(policy‖target) of the weights that were kept."""
    found = list[tuple[int, float]]()
    for step, weights in watch.kept.items():
        run.parts["policy"].load_state_dict(weights, strict=False)
        found.append((step, evaluator(0)[KL]))
    return found


def _modes(run: Run, watch: _Watch) -> list[tuple[int, float]]:
    """Number of different modes among all that was trained on so far."""
    env: Any = run.parts["env"]
    if isinstance(env.reward, Slow):
        env.reward = env.reward.quick  # only searching has to wait
    like = env.reset(1, torch.Generator().manual_seed(0))
    discovery, found = Discovery(env), list[tuple[int, float]]()
    for step, final in enumerate(watch.finals, 1):
        discovery.observe(like.from_tensors(final))
        found.append((step, float(discovery.counts()[watch.case.task.metric])))
    return found
