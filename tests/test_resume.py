"""A run that was interrupted, however rudely, ends bit for bit where an uninterrupted one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from envs.hypergrid import GridStates
from gfn import checkpoint
from gfn.callbacks import JSONLines, read_lines
from gfn.checkpoint import CheckpointError
from gfn.objectives import DevGrad, LearnedLogZ
from gfn.policies import MLPPolicy
from gfn.training import NonFiniteError, Trainer
from tests.trainers import Recorder, StopAfter, differences, parts_of, scheduled_trainer, small_trainer, snapshot

STEPS = 20


class DropoutPolicy(MLPPolicy[GridStates]):
    """Draws from torch's global generator whenever it is asked in training mode."""

    def __init__(self, env: Any, width: int, depth: int):
        super().__init__(env, width, depth)
        self.trunk.layers.append(nn.Dropout(0.3))


def train(directory: Path, until: int = STEPS, **settings: Any) -> Trainer[GridStates]:
    """Start or go on with the run in ``directory``, as a new process would; stop after ``until`` updates."""
    torch.manual_seed(int.from_bytes(os.urandom(4)))  # nothing may depend on what the last process left
    stop = StopAfter(until)
    trainer = scheduled_trainer(
        steps=STEPS,
        callbacks=[JSONLines(directory / "metrics.jsonl", every=2), stop],
        checkpoints=directory / "checkpoints",
        stop=stop.wanted,
        **({"save_every": 7} | settings),
    )
    if not trainer.resume():
        torch.manual_seed(0)
    trainer.run()
    return trainer


@pytest.mark.parametrize("policy", [MLPPolicy, DropoutPolicy])
@pytest.mark.parametrize("partition", [lambda: LearnedLogZ("data"), DevGrad])
@pytest.mark.parametrize("stops", [(10,), (1, 5, 6, 14)])
def test_resume_is_exact(tmp_path: Path, stops: tuple[int, ...], partition: Any, policy: type[Any]) -> None:
    whole = train(tmp_path / "whole", partition=partition(), policy=policy)
    for until in stops:
        part = train(tmp_path / "parts", until, partition=partition(), policy=policy)
        assert part.step == until
    part = train(tmp_path / "parts", partition=partition(), policy=policy)
    assert not differences(snapshot(part), snapshot(whole))
    lines = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == lines
    assert [line["step"] for line in map(json.loads, lines.splitlines())] == [
        step for step in range(1, STEPS + 1) if step % 2 == 0 or step % 3 == 0
    ]
    assert snapshot(whole)["evaluator"]["discovery"]["regions"].numel() > 0, "discoveries are part of what is compared"


def test_the_parts_of_a_state_differ_between_steps(tmp_path: Path) -> None:
    """What the exact comparison compares is not constant: every part of the state moves in training."""
    policy = DropoutPolicy
    early = snapshot(train(tmp_path, 1, policy=policy))
    late = snapshot(train(tmp_path, 9, policy=policy))
    moved = {line.split(".")[1] for line in differences(early, late)}
    assert moved == set(early)


def test_a_longer_run_goes_on_exactly() -> None:
    """``steps`` may grow: 10 updates, then 10 more, are 20."""
    whole = scheduled_trainer(steps=20)
    whole.run()
    first = scheduled_trainer(steps=10)
    first.run()
    second = scheduled_trainer(steps=20)
    second.load_state_dict(snapshot(first))
    second.run()
    assert not differences(snapshot(second), snapshot(whole))


SCRIPT = """
import sys, time
from pathlib import Path
from gfn.callbacks import JSONLines, TensorBoard
from tests.trainers import Recorder, scheduled_trainer
import torch

class Slow(Recorder):
    def __call__(self, report):
        time.sleep(float(sys.argv[2]))

torch.set_num_threads(1)
torch.manual_seed(0)
directory = Path(sys.argv[1])
trainer = scheduled_trainer(
    steps=60,
    callbacks=[JSONLines(directory / "metrics.jsonl", 1), TensorBoard(directory / "tensorboard", 1), Slow()],
    checkpoints=directory / "checkpoints",
    save_every=10,
)
trainer.resume()
trainer.run()
"""


def start(directory: Path, delay: float) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", SCRIPT, str(directory), str(delay)]
    return subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": root})


def kill_after(directory: Path, step: int) -> None:
    """Run the script until its metrics file has reached ``step``, then kill it without warning."""
    process = start(directory, 0.1)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        lines = read_lines(directory / "metrics.jsonl")
        if lines and step <= lines[-1]["step"] < 60:
            break
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL


def test_a_killed_run_goes_on_exactly(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    reference = start(whole, 0.0)
    kill_after(killed, 4)  # before the first checkpoint
    assert not checkpoint.all_in(killed / "checkpoints")
    kill_after(killed, 25)
    assert 20 <= int(checkpoint.all_in(killed / "checkpoints")[0].stem.removeprefix("step_")) < 60
    assert start(killed, 0.0).wait() == 0
    assert reference.wait() == 0

    assert (killed / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    states = [checkpoint.newest(directory / "checkpoints") for directory in (whole, killed)]
    assert states[0] is not None
    assert states[1] is not None
    assert states[1][1]["step"] == 60
    assert not differences(states[0][1], states[1][1])

    lines = read_lines(whole / "metrics.jsonl")
    events = EventAccumulator(str(killed / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    for tag, name in (("train/loss", "loss"), ("train/regions", "regions"), ("eval/tv", "eval/tv")):
        seen = [(event.step, event.value) for event in events.Scalars(tag)]
        wanted = [(line["step"], line[name]) for line in lines if name in line]
        assert [step for step, _ in seen] == [step for step, _ in wanted], "a step is missing or there twice"
        assert [value for _, value in seen] == pytest.approx([value for _, value in wanted], rel=1e-6)


@pytest.mark.parametrize("tail", ['{"step": 12, "traj', "\0" * 40, '{"step": 7, "loss": 0.5}', "\n\n"])
def test_a_damaged_end_of_the_metrics_file_is_repaired(tmp_path: Path, tail: str) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "parts", 6)
    with open(tmp_path / "parts" / "metrics.jsonl", "a") as file:
        file.write(tail)
    train(tmp_path / "parts")
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_checkpoint_is_passed_over_and_set_aside(tmp_path: Path, keep: int) -> None:
    """Set aside, since otherwise it would count as the newest, and the sound ones would be deleted as old."""
    train(tmp_path / "whole")
    train(tmp_path / "parts", 9, save_every=3, keep=3)
    newest = checkpoint.path_of(tmp_path / "parts" / "checkpoints", 9)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"skipping.*step_000000009\.pt"):
        part = train(tmp_path / "parts", 8, save_every=4, keep=keep)
    assert part.step == 8
    kept = [f"step_{step:09d}.pt" for step in (6, 8)[-keep:]]
    assert parts_of(tmp_path / "parts" / "checkpoints") == [*kept, "step_000000009.pt.damaged"]
    part = train(tmp_path / "parts")
    assert not differences(snapshot(part), snapshot(train(tmp_path / "whole")))


def test_a_directory_of_another_run_is_left_alone(tmp_path: Path) -> None:
    train(tmp_path, 9)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    forgetful = scheduled_trainer(
        steps=20, checkpoints=tmp_path / "checkpoints", callbacks=[JSONLines(tmp_path / "metrics.jsonl")]
    )
    with pytest.raises(CheckpointError, match=r"holds checkpoints of another run, up to step_000000009\.pt"):
        forgetful.run()
    assert forgetful.step == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_unwritable_directory_is_refused_before_any_update(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = small_trainer(checkpoints=tmp_path / "file" / "checkpoints", save_every=5)
    with pytest.raises(CheckpointError, match=r"cannot write checkpoints to .*file/checkpoints: Not a directory"):
        trainer.run()
    assert trainer.step == 0


def test_a_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    train(tmp_path, 9)
    for other in ({"width": 16}, {"partition": DevGrad()}):
        with pytest.raises(CheckpointError, match=r"step_000000009\.pt does not fit this run: .*; use the conf"):
            train(tmp_path, **other)


def test_an_evaluator_may_come_and_go(tmp_path: Path) -> None:
    """Discoveries are counted from where the evaluator came in; training is the same."""
    train(tmp_path / "whole")
    train(tmp_path / "parts", 7, evaluate_every=None)
    second = train(tmp_path / "parts", 12)
    found = second.evaluator.discovery.counts() if second.evaluator is not None else {}
    assert found["mode_states"] >= found["regions"] > 0
    last = train(tmp_path / "parts", evaluate_every=None)
    states = [snapshot(last), snapshot(train(tmp_path / "whole"))]
    assert not [line for line in differences(*states) if not line.startswith(".evaluator")]


class Failing(Recorder):
    """Breaks the run's policy once ``step`` updates are done: its answers fail, or its parameters are ruined."""

    def __init__(self, trainer: Trainer[GridStates], step: int, ruin: bool) -> None:
        super().__init__()
        self.trainer, self.step, self.ruin = trainer, step, ruin

    def __call__(self, report: Any) -> None:
        policy: Any = self.trainer.objective.policy
        if report.step == self.step and self.ruin:
            policy.head.weight.data.fill_(float("nan"))
        elif report.step == self.step:
            policy.log_prob = lambda t: torch.zeros(1) / t


@pytest.mark.parametrize(("ruin", "kept"), [(False, [3, 5]), (True, [3])])
def test_a_failed_update_keeps_those_before_it(tmp_path: Path, ruin: bool, kept: list[int]) -> None:
    """Unless the parameters are the failure: then the last sound checkpoint must stay the newest."""
    trainer = small_trainer(steps=12, checkpoints=tmp_path, save_every=3, keep=1)
    failing = Failing(trainer, 5, ruin)
    trainer.callbacks = [failing]
    with pytest.raises(NonFiniteError if ruin else TypeError, match="parameter policy.head.weight" if ruin else None):
        trainer.run()
    assert parts_of(tmp_path) == [f"step_{step:09d}.pt" for step in kept]
    again = small_trainer(steps=12, checkpoints=tmp_path, save_every=3, keep=1)
    assert again.resume()
    assert again.step == kept[-1]
    again.run()
    assert parts_of(tmp_path) == ["step_000000012.pt"]


def test_a_failed_evaluation_leaves_no_gap_in_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The update it was to measure was not reported, so a checkpoint of it would lose its line."""
    train(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("gfn.metrics.total_variation", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "parts", evaluate_every=5)
    train(tmp_path / "parts")
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_checkpoints_are_written_every_few_updates_and_at_the_end(tmp_path: Path) -> None:
    small_trainer(steps=8, checkpoints=tmp_path, save_every=3, keep=9).run()
    assert parts_of(tmp_path) == ["step_000000003.pt", "step_000000006.pt", "step_000000008.pt"]
    small_trainer(steps=8, checkpoints=tmp_path / "few", save_every=3, keep=2).run()
    assert parts_of(tmp_path / "few") == ["step_000000006.pt", "step_000000008.pt"]
