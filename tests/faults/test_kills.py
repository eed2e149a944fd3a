"""Promise 1: kill −9 at any moment loses at most the work since the previous checkpoint."""

from __future__ import annotations

import os
import random
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gfn import checkpoint
from gfn.callbacks import JSONLines, TensorBoard, read_lines
from gfn.training import Callback, Report, Trainer
from tests.faults.children import ended, start
from tests.trainers import Recorder, differences, scheduled_trainer

KEEP = 2


class Tell(Recorder):
    """Tells another process after each update, before it is saved."""

    def __init__(self, link: Connection) -> None:
        super().__init__()
        self.link = link

    def __call__(self, report: Report) -> None:
        self.link.send(report.step)


def trainer(directory: Path, steps: int, events: bool, *others: Callback) -> Trainer[Any]:
    """Saves after every update."""
    board = [TensorBoard(directory / "tensorboard", 1)] if events else []
    return scheduled_trainer(
        steps=steps, callbacks=[JSONLines(directory / "metrics.jsonl", 1), *board, *others],
        checkpoints=directory / "checkpoints", save_every=1, keep=KEEP,
    )  # fmt: skip


def train(directory: Path, steps: int, events: bool, link: Connection) -> None:
    run = trainer(directory, steps, events, Tell(link))
    run.resume()
    run.run()


def killed(directory: Path, chance: random.Random, events: bool) -> tuple[int, bool]:
    """Let the run go on, kill it at a random moment; the newest checkpoint's step, and whether a save was under way."""
    ours, its = Pipe()
    process = start(train, directory, 10**6, events, its)
    its.close()
    told = ours.recv()
    time.sleep(chance.uniform(0, 0.08))
    process.kill()
    assert ended(process) == -9
    while ours.poll():
        try:
            told = ours.recv()
        except EOFError:
            break
    found = checkpoint.newest(directory / "checkpoints")
    step = 0 if found is None else int(found[1]["step"])
    assert step >= told - 1, "more is lost than what was done since the last save began"
    names = [path.name for path in (directory / "checkpoints").iterdir()]
    parts = [name for name in names if name.endswith(".part")]
    assert len(names) - len(parts) <= KEEP + 1
    assert len(parts) <= 1, "leftovers of kills do not accumulate"
    return step, bool(parts)


def strike(directory: Path, kills: int, seed: int, events: bool = False) -> tuple[int, int]:
    """Kill a run many times and let it end; updates, and kills in the middle of a save."""
    chance, reached, within = random.Random(seed), 0, 0
    for _ in range(kills):
        step, saving = killed(directory, chance, events)
        assert step >= reached, "what has been saved is never lost"
        reached, within = step, within + saving
        steps = [line["step"] for line in read_lines(directory / "metrics.jsonl") if line["step"] <= step]
        assert steps == list(range(1, step + 1)), "a step is missing or there twice"
        if events:
            time.sleep(1.0)  # event files are read in the order of the seconds in their names
    ours, its = Pipe()
    process = start(train, directory, reached + 3, events, its)
    its.close()
    while True:
        try:
            ours.recv()
        except EOFError:
            break
    assert ended(process) == 0
    return reached + 3, within


def require_as_if_nothing_had_happened(directory: Path, whole: Path, steps: int) -> None:
    import torch

    torch.manual_seed(0)
    run = trainer(whole, steps, events=False)
    run.run()
    found = checkpoint.newest(directory / "checkpoints")
    assert found is not None
    # torch's own generator is that of each process until its first checkpoint; nothing here draws from it
    ours, its = ({**s, "generators": None} for s in (found[1], checkpoint.load(_last(whole))))
    assert not differences(ours, its)
    assert (directory / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == [
        f"step_{step:09d}.pt" for step in range(steps - KEEP + 1, steps + 1)
    ], "nothing is left of the kills"


def _last(directory: Path) -> Path:
    return checkpoint.all_in(directory / "checkpoints")[0]


@pytest.mark.parametrize(
    "kills", [10, pytest.param(40, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.full)]
)
def test_killed_at_random_while_saving_as_fast_as_possible(tmp_path: Path, kills: int) -> None:
    steps, within = strike(tmp_path / "killed", kills, seed=kills)
    print(f"{kills} kills over {steps} updates, {within} of them with a file half written")
    require_as_if_nothing_had_happened(tmp_path / "killed", tmp_path / "whole", steps)


@pytest.mark.parametrize("kills", [3, pytest.param(25, marks=pytest.mark.slow)])
def test_events_of_a_killed_run_have_every_step_once(tmp_path: Path, kills: int) -> None:
    steps, _ = strike(tmp_path, kills, seed=kills, events=True)
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, steps + 1))
    lines = read_lines(tmp_path / "metrics.jsonl")
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx([line["loss"] for line in lines])


@pytest.mark.parametrize("left", [0.1, 0.5, 0.9])
def test_an_event_that_was_cut_off_hides_none_of_those_after_it(tmp_path: Path, left: float) -> None:
    """A kill, or a full disk, within the writing of events leaves part of the last one."""
    run = trainer(tmp_path, 4, True)
    run.run()
    (first,) = (tmp_path / "tensorboard").iterdir()
    size = first.stat().st_size
    os.truncate(first, size - 1 - int(left * 20))
    time.sleep(1.0)
    again = trainer(tmp_path, 6, True)
    assert again.resume()
    again.run()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("train/loss")][-2:] == [5, 6]
