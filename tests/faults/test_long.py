"""Promise 13: runs may be long: memory stays flat, and files and threads are as many at the end as at the start.

``pytest -m full tests/faults/test_long.py -s`` trains 20 000 steps on a grid, and on molecules for half an hour.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import runs
from experiments.benchmarks.proc import of
from gfn.training import Report
from tests.faults.children import call
from tests.faults.small_runs import small_run

GROWTH, SLACK = 1.05, 2.0  # of memory from the second quarter of a run to the last, at most: ratio, and MiB


class Watch:
    """Notes after each update how much the process holds; asks to stop after a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.since = seconds, time.monotonic()
        self.memory: list[float] = []
        self.handles: list[int] = []
        self.threads: list[int] = []

    def start(self, step: int) -> None:
        pass

    def __call__(self, report: Report) -> None:
        process = of(os.getpid())
        assert process is not None
        self.memory.append(process.memory[0])
        self.handles.append(len(os.listdir("/proc/self/fd")))
        self.threads.append(threading.active_count())

    def close(self) -> None:
        pass

    def wanted(self) -> bool:
        return time.monotonic() - self.since > self.seconds


def train(directory: Path, name: str, steps: int, seconds: float) -> None:
    """Train with everything on, saving often, and fail if anything has grown."""
    directory.mkdir(parents=True)
    often = ("logger=default", "~logger.progress", "trainer.save_every=20", "evaluator.every=50")
    run = small_run(name, directory, None, f"trainer.steps={steps}", *often)
    watch = Watch(seconds)
    trainer: Any = run.trainer
    trainer.callbacks = [*trainer.callbacks, watch]
    trainer.stop = watch.wanted
    runs.prepare(run, directory, [])
    trainer.run()
    n = trainer.step
    early, late = statistics.fmean(watch.memory[n // 4 : n // 2]), statistics.fmean(watch.memory[3 * n // 4 :])
    handles, threads = watch.handles[n // 4 :], watch.threads[n // 4 :]
    seconds = time.monotonic() - watch.since
    print(
        f"{name}: {n} updates in {seconds:.0f} s; memory {early:.1f} MiB early, {late:.1f} late; "
        f"{min(handles)} to {max(handles)} open files, {min(threads)} to {max(threads)} threads"
    )
    assert late <= GROWTH * early + SLACK, "memory grows"
    assert min(handles) == max(handles), "files stay open"
    assert min(threads) == max(threads), "threads stay"
    assert len(list((directory / "checkpoints").iterdir())) <= 2


@pytest.mark.parametrize(
    ("name", "steps", "seconds"),
    [
        ("hypergrid", 300, 600.0),
        pytest.param("hypergrid", 2000, 3600.0, marks=pytest.mark.slow),
        pytest.param("hypergrid", 20_000, 3600.0, marks=pytest.mark.full),
        pytest.param("synthesis", 10**6, 30.0, marks=pytest.mark.slow),
        pytest.param("synthesis", 10**6, 1800.0, marks=pytest.mark.full),
    ],
)
def test_nothing_grows(name: str, steps: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.children.PATIENCE", seconds + 600)
    code, output = call(train, tmp_path / "run", name, steps, seconds, output=tmp_path / "output")
    print(output)
    assert code == 0, output
