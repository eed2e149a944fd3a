"""Benchmarks: time goes to the right label, cases are the right ones, and the command writes what it measured."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from experiments.benchmarks import synthesis
from experiments.benchmarks.clock import Clock, cpu_of_children, peak_memory
from experiments.benchmarks.measuring import measured
from experiments.benchmarks.synthesis import DEFAULTS, cases, main

TINY = ("blocks=nci", "sizes=100", "seeds=0", "batches=1")
ROWS = (
    "sampled trajectories per CPU second",
    "CPU-ms per trained trajectory, known edges",
    "CPU-ms per trained trajectory, exact edges",
    "CPU-ms per trained trajectory, learned edges",
    "chemistry",
    "networks",
    "sampling",
    "scoring and loss",
    "backward pass",
    "optimizer",
    "reward",
)


class Worker:
    def work(self, seconds: float) -> float:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return seconds

    def outer(self) -> float:
        return self.work(0.02) + self.inner()

    def inner(self) -> float:
        return self.work(0.05)


def test_clock_counts_time_for_the_innermost_label() -> None:
    worker = Worker()
    with Clock() as clock:
        clock.watch(Worker, "outer", "outer")
        clock.watch(worker, "inner", "inner")
        before = time.process_time()
        assert worker.outer() + worker.inner() == pytest.approx(0.12)
        total = time.process_time() - before
    assert clock.spent["inner"] >= 0.1
    assert 0.02 <= clock.spent["outer"] < 0.1
    assert sum(clock.spent.values()) <= total
    assert "outer" in vars(Worker)
    assert vars(worker) == {}
    worker.outer()
    assert sum(clock.spent.values()) <= total  # nothing is watched any more


def test_clock_closes_labels_of_calls_that_fail() -> None:
    with Clock() as clock:
        fails = clock.around("failing", lambda: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            clock.around("outer", fails)()
        clock.around("later", lambda: Worker().work(0.01))()
    assert clock.spent["later"] >= 0.01
    assert clock.spent["failing"] < 0.01


def test_time_of_children_counts_while_they_run() -> None:
    before = cpu_of_children()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(abs, 1).result()
        started = cpu_of_children()
        pool.submit(sum, range(10_000_000)).result()
        assert 0.02 < cpu_of_children() - started < 10
    assert before == pytest.approx(cpu_of_children())
    assert 10 < peak_memory() < 100_000


def test_everything_is_measured_at_one_size_and_the_rest_elsewhere() -> None:
    found = [(c.kind, c.size, c.workers) for c in cases({**DEFAULTS, "seeds": "7"})]
    assert len(found) == len(set(found)) == 3 * 4 + 3 * 2 + 1
    assert {size for _, size, count in found if count > 0} == {5000}
    assert [(size, count) for kind, size, count in found if kind == "learned_edges"] == [(5000, 0)]
    assert {size for _, size, _ in found} == {1000, 5000, 20000, None}
    assert {(c.size, c.workers) for c in cases({**DEFAULTS, "sizes": "300,200"})} >= {(300, 2), (200, 0)}


@pytest.mark.slow
def test_command_writes_tables_figure_and_measurements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(synthesis, "apart", measured)  # in this process, which is quicker
    backward = torch.Tensor.backward
    assert main([f"out={tmp_path}", *TINY, "workers=0"]) == 0
    assert torch.Tensor.backward is backward
    text = (tmp_path / "synthesis_speed.md").read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    for row in ROWS:
        assert sum(line.startswith(f"| {row} |") for line in text.splitlines()) == 1
    assert [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| 100 | 0 |")] == [
        "sampling",
        "known edges",
        "exact edges",
    ]
    assert (tmp_path / "synthesis_speed.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "synthesis_speed.json").read_text())
    assert [m["case"]["kind"] for m in found] == ["sampling", "known_edges", "exact_edges", "learned_edges"]
    for m in found:
        assert m["trajectories"] == 64
        assert 1 <= m["reactions"] <= 3
        assert 0 < sum(m["spent"].values()) <= 1.5 * m["cpu"] + 1  # what follows the last step is divided too
        assert m["memory"] > 0
    of_training = {label for m in found[1:] for label in m["spent"]}
    assert {"backward pass", "optimizer", "scoring and loss"} == of_training - found[0]["spent"].keys()


@pytest.mark.full
def test_command_measures_in_processes_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.benchmarks.synthesis", f"out={tmp_path}", *TINY, "workers=0,1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "7/7 exact_edges: 100 blocks, 1 workers, seed 0" in done.stderr
    found = json.loads((tmp_path / "synthesis_speed.json").read_text())
    alone, helped = (next(m for m in found if m["case"]["workers"] == n) for n in (0, 1))
    assert helped["spent"]["chemistry"] < alone["spent"]["chemistry"]  # the main process leaves it to the worker
    assert helped["reactions"] == alone["reactions"]
    assert sum(helped["spent"].values()) < helped["cpu"]  # which has the worker's time too


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sizes=few"], "sizes: expected numbers"),
        (["workers=-1"], "workers: expected numbers"),
        (["nonsense=1"], "expected the options out"),
        (["sizes"], "key=value"),
    ],
)
def test_command_says_what_does_not_fit(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_command_says_that_a_measurement_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(synthesis, "apart", measured)
    assert main([f"out={tmp_path}", "blocks=/nowhere.smi", "sizes=all", "workers=0", "seeds=0"]) == 1
    assert "there is no such file of building blocks" in capsys.readouterr().err
