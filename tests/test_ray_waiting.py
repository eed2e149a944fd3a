"""A trainer that waits for searchers: how it is interrupted, and the shares of time that it and they wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from experiments.benchmarks import proc
from gfn.distributed import Ray, ray_engine
from gfn.distributed.searcher import Changing
from gfn.training import Report
from tests.searching import Troubled, gone, local_ray, searching
from tests.stored import grid, network
from tests.trainers import Recorder

__all__ = ["local_ray"]  # a fixture

REWARD = """
import time
from pathlib import Path

def score(coords):
    if (Path(__file__).parent / "hang").exists():
        time.sleep(1000)
    return 1.0 + coords.double().sum(-1)
"""


def cpu_seconds(pid: int) -> float:
    """What a process has taken of the processor; 0 if it has ended."""
    try:
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return 0.0
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_trainer_that_waits_in_vain_ends_when_it_is_asked_to(number: signal.Signals, tmp_path: Path) -> None:
    """The signal goes to all processes of the terminal's group, as Ctrl-C does, or to the trainer alone."""
    (tmp_path / "my_rewards.py").write_text(REWARD)
    command = [
        sys.executable, "-m", "experiments.train", "sampler=asynchronous", "sampler/engine=ray", "logger=quiet",
        "env/reward=user", "++env.reward.function=my_rewards.score", "sampler.batch_size=8", "sampler.group_size=4",
        "policy.width=8", "env.side=4", "logger.metrics.every=1", "trainer.steps=100000", f"run={tmp_path / 'run'}",
    ]  # fmt: skip
    environment = {**os.environ, "GFN_TRUST": "my_rewards", "PYTHONPATH": str(tmp_path)}
    output = tmp_path / "output.txt"
    with open(output, "w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=tmp_path, env=environment, start_new_session=True
        )
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 300
    while not (metrics.exists() and metrics.read_text().count("\n") > 10) and time.monotonic() < end:
        assert process.poll() is None, output.read_text()
        time.sleep(0.1)
    (tmp_path / "hang").touch()
    time.sleep(3)
    family, ended = proc.descendants(process.pid), 0.0
    began, spent = time.time(), cpu_seconds(process.pid)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    while process.poll() is None and time.time() < began + 200:
        ended = cpu_seconds(process.pid) or spent
        time.sleep(0.05)
    assert process.returncode == 128 + number, output.read_text()
    assert ended - spent < 10, "figures and the end of Ray take some seconds of the processor"
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step_*.pt")
    assert saved.stat().st_mtime - began < 10, "the checkpoint comes first"
    assert int(saved.stem.removeprefix("step_")) == metrics.read_text().count('"loss"')
    assert all(gone(process.pid) for process in family)


class Rehearsed:
    """A crew of two and its hub, with a clock: whoever asks for groups waits for ``wait`` seconds."""

    def __init__(self) -> None:
        self.hub, self.ray, self.count = self, self, 2
        self.now = self.wait = self.busy = 0.0

    def put(self, value: Any) -> None:
        pass

    def await_groups(self, n: int, timeout: float, stop: Callable[[], bool], status: Callable[[], str]) -> None:
        self.now += self.wait

    def status(self) -> str:
        return "rehearsed"

    def busy_seconds(self) -> float:
        return self.busy


def test_what_a_checkpoint_waits_for_counts_for_the_batch_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    crew: Any = Rehearsed()
    monkeypatch.setattr(ray_engine.time, "monotonic", lambda: crew.now)
    running = ray_engine._Running(crew, Changing(network(grid())), "cpu", None)  # type: ignore[arg-type]
    for checkpoint, waited, idle in ((0.0, 0.25, 0.5), (4.0, 0.5, 0.75)):
        crew.now += 6.0 - checkpoint
        crew.wait, crew.busy = checkpoint, crew.busy + 16 * (1 - idle)
        running.gather(4, 1.0, lambda: False)  # for a checkpoint
        crew.wait = 2.0 if checkpoint == 0 else 0.0
        crew.now += 2.0 - crew.wait
        running.published(0)
        running.gather(4, 1.0, lambda: False)
        assert (running.waited, running.idle) == (waited, idle)


class Asleep:
    """Takes its time after each update."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def start(self, step: int) -> None:
        pass

    def __call__(self, report: Report) -> None:
        time.sleep(self.seconds)

    def close(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_shares_of_time_in_which_the_trainer_waits_and_searchers_are_idle() -> None:
    """A group takes a searcher 0.25 s, a batch of four 1 s; updates take no time, or 2 s."""

    def shares(searchers: int, pause: float) -> tuple[float, float]:
        run = searching(Ray(searchers), Troubled(pause=0.25), staleness=1)
        run.steps, run.callbacks = 8, [recorder := Recorder(), Asleep(pause)]
        run.run()
        run.sampler.close()
        settled = [report.metrics for report in recorder.reports[3:]]
        return median(m["waited"] for m in settled), median(m["idle"] for m in settled)

    waited, idle = shares(1, 0.0)
    assert waited > 0.8
    assert idle < 0.2
    waited, idle = shares(1, 2.0)
    assert waited < 0.15
    assert idle == pytest.approx(0.5, abs=0.15)
    waited, idle = shares(2, 2.0)
    assert waited < 0.15
    assert idle == pytest.approx(0.75, abs=0.1)
