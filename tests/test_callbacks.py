"""Callbacks: what becomes of the reports, and signals."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gfn import checkpoint
from gfn.callbacks import JSONLines, ProgressBar, Signals, TensorBoard, read_lines
from gfn.training import Report
from tests.trainers import Recorder, parts_of, scheduled_trainer, small_trainer


def report(step: int, evaluation: dict[str, float] | None = None, **metrics: float) -> Report:
    return Report(step, 10, 8 * step, {"loss": 0.5, "log_z": 2.25, **metrics}, evaluation)


class Terminal(io.StringIO):
    """Text that a person watches."""

    def isatty(self) -> bool:
        return True


def shown(bar: ProgressBar, *reports: Report) -> str:
    """The line on the terminal after the reports."""
    stream = Terminal()
    bar.stream = stream
    bar.start(0)
    for each in reports:
        bar(each)
    bar.bar.refresh()
    bar.close()
    return stream.getvalue().replace("\n", "\r").rstrip("\r").split("\r")[-1]


def test_progress_shows_loss_log_z_total_variation_and_modes() -> None:
    evaluation = {"tv": 0.12345, "log_z_exact": 2.7766, "log_z": 9.0}
    bar = ProgressBar({"regions": 4, "mode_states": 16})
    text = shown(bar, report(1, evaluation, regions=3, mode_states=7), report(2, regions=4, mode_states=9))
    assert "loss 0.5, logZ 2.250 (exact 2.777), TV 0.123, regions 4/4, mode_states 9/16" in text
    assert "2/10" in text


def test_progress_shows_modes_of_which_nobody_knows_how_many_there_are() -> None:
    assert "logZ 2.250, islands 7, regions 3/4]" in shown(
        ProgressBar({"islands": None, "regions": 4}), report(1, islands=7, regions=3)
    )


def test_progress_shows_what_there_is() -> None:
    assert "loss 0.5, logZ 2.250]" in shown(ProgressBar(), report(1))
    bare = Report(1, 10, 8, {"loss": 0.5}, None)
    assert "loss 0.5]" in shown(ProgressBar(), bare)


def test_progress_goes_on_where_a_resumed_run_does() -> None:
    bar = ProgressBar(stream=Terminal())
    bar.start(6)
    bar(report(7))
    assert (bar.bar.n, bar.bar.initial, bar.bar.total) == (7, 6, 10)
    bar.close()
    assert bar.bar is None


def test_progress_without_a_terminal_is_a_plain_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr("gfn.callbacks.time.monotonic", lambda: now[0])
    bar = ProgressBar({"regions": 4}, stream)
    bar.start(0)
    for step in range(1, 8):
        now[0] = 25.0 * step
        bar(report(step, {"tv": 0.5} if step == 2 else None, regions=step // 2))
    bar.close()
    assert stream.getvalue().splitlines() == [
        "step 3 of 10: loss 0.5, logZ 2.250, TV 0.500, regions 1/4",
        "step 6 of 10: loss 0.5, logZ 2.250, TV 0.500, regions 3/4",
    ]


def test_progress_of_a_run() -> None:
    stream = Terminal()
    trainer = small_trainer(steps=6, evaluate_every=3)
    evaluator = trainer.evaluator
    assert evaluator is not None
    counts = evaluator.discovery.env.mode_counts if evaluator.discovery.env is not None else {}
    recorder = Recorder()
    trainer.callbacks = [ProgressBar(counts, stream), recorder]
    trainer.run()
    text, last = stream.getvalue(), recorder.reports[-1]
    exact, tv = last.evaluation["log_z_exact"], last.evaluation["tv"]
    assert f"logZ {last.metrics['log_z']:.3f} (exact {exact:.3f}), TV {tv:.3f}" in text
    assert f"regions {last.metrics['regions']:.0f}/3" in text


def test_json_lines_of_a_run(tmp_path: Path) -> None:
    recorder = Recorder()
    scheduled_trainer(
        steps=11, evaluate_every=4, callbacks=[recorder, JSONLines(tmp_path / "logs" / "metrics.jsonl", every=5)]
    ).run()
    lines = [json.loads(line) for line in (tmp_path / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 5, 8, 10, 11]
    assert lines == read_lines(tmp_path / "logs" / "metrics.jsonl")
    for line in lines:
        told = recorder.reports[line["step"] - 1]
        evaluation = {f"eval/{name}": value for name, value in (told.evaluation or {}).items()}
        assert line == {"step": told.step, "trajectories": 8 * told.step, **told.metrics, **evaluation}
    assert "eval/tv" in lines[0]
    assert "eval/tv" not in lines[1]
    assert {"loss", "log_z", "alpha", "epsilon", "lr_policy", "lr_log_z", "regions", "mode_states"} <= set(lines[1])


def test_json_lines_drops_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JSONLines(path, every=1)
    lines.start(0)
    for step in range(1, 6):
        lines(report(step))
    lines.close()
    before = path.read_text().splitlines(keepends=True)
    lines.start(3)
    assert path.read_text().splitlines(keepends=True) == before[:3]
    lines(report(4))
    assert path.read_text().splitlines(keepends=True) == before[:4], "every line is on disk at once"
    lines.close()
    lines.close()
    assert parts_of(tmp_path) == ["metrics.jsonl"]


def test_a_crash_while_starting_leaves_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    for where in ("os.replace", "os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(where, crash)
            with pytest.raises(KeyboardInterrupt):
                JSONLines(path).start(1)
        assert read_lines(path) == [{"step": 1}, {"step": 2}]


def test_lines_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo\n\xff\xfe\0\n{"step": 3}\n{"st')
    assert read_lines(path) == [{"step": 1}, {"step": 3}]


def test_metrics_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    lines = JSONLines(tmp_path / "metrics.jsonl", every=1)
    lines.start(0)
    assert lines.file is not None
    lines.file.close()
    lines.file = full = open("/dev/full", "w")  # noqa: SIM115 (closed by close)
    with pytest.raises(OSError, match=r"metrics\.jsonl") as caught:
        lines(report(1))
    assert caught.value.errno == errno.ENOSPC
    assert full.closed
    lines.close()


@pytest.mark.parametrize("kind", [JSONLines, TensorBoard])
def test_every_is_positive(kind: type[Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        kind(tmp_path / "x", every=0)


def test_tensorboard_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    """Reports of updates 1–9 and, as if the run had gone on from a checkpoint at 6, of 7–12 again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, every=2)
    for first, last, loss in ((1, 9, 0.25), (7, 12, 0.5)):
        board.start(first - 1)
        for step in range(first, last + 1):
            board(report(step, {"tv": loss / 2} if step % 3 == 0 else None, loss=loss))
        board.close()
        time.sleep(1.1)  # readers take files in the order of their names, which hold the second
    events = EventAccumulator(str(tmp_path)).Reload()
    speeds = {"speed/trajectories_per_second", "speed/steps_per_second"}
    assert set(events.Tags()["scalars"]) == {"train/loss", "train/log_z", "eval/tv"} | speeds
    losses = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert losses == [(2, 0.25), (3, 0.25), (4, 0.25), (6, 0.25), (8, 0.5), (9, 0.5), (10, 0.5), (12, 0.5)]
    assert [(e.step, e.value) for e in events.Scalars("eval/tv")] == [(3, 0.125), (6, 0.125), (9, 0.25), (12, 0.25)]


def test_tensorboard_lists_hyperparameters_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    board = TensorBoard(tmp_path, every=1, hyperparameters={"env.side": 8, "name": "toy", "logger.none": None})
    board.start(0)
    for step in (1, 2, 3):
        board(report(step, {"tv": 0.5} if step > 1 else None))
    board.close()
    found = EventAccumulator(str(tmp_path)).Reload().summary_metadata
    started = found["_hparams_/session_start_info"].plugin_data.content
    values = HParamsPluginData.FromString(started).session_start_info.hparams
    assert values["env.side"].number_value == 8
    assert (values["name"].string_value, values["logger.none"].string_value) == ("toy", "None")


def test_speed_is_what_was_done_since_the_last_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 trajectories of 3 steps each in every update, which takes 2 seconds."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board, clock = TensorBoard(tmp_path, every=2), iter(range(0, 1000, 2))
    board.start(0)
    for step in range(1, 6):
        now = next(clock)
        monkeypatch.setattr("gfn.callbacks.time.perf_counter", lambda now=now: now)
        board(dataclasses.replace(report(step), trajectories=8 * step, metrics={"loss": 1.0, "length": 3.0}))
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    for name, each in (("trajectories", 4.0), ("steps", 12.0)):
        scalars = [(e.step, e.value) for e in events.Scalars(f"speed/{name}_per_second")]
        assert scalars == [(2, each), (4, each)]


def test_events_are_on_disk_at_once(tmp_path: Path) -> None:
    """A process that is killed must not take along events of updates that a checkpoint counts as done."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, every=1)
    board.start(0)
    board(report(1, {"tv": 0.5}))
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [event.value for tag in ("train/loss", "eval/tv") for event in events.Scalars(tag)] == [0.5, 0.5]
    board.close()


class Interrupt(Recorder):
    """Sends this process a signal once ``step`` updates are done, ``times`` times."""

    def __init__(self, number: int, step: int, times: int = 1) -> None:
        super().__init__()
        self.number, self.step, self.times = number, step, times

    def __call__(self, report: Report) -> None:
        super().__call__(report)
        if report.step == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_update_and_saves(tmp_path: Path, number: int) -> None:
    before = signal.getsignal(number)
    after = Recorder()
    with Signals() as signals:
        assert not signals.wanted()
        trainer = small_trainer(
            steps=12, callbacks=[Interrupt(number, 5), after], checkpoints=tmp_path, stop=signals.wanted
        )
        last = trainer.run()
    assert signal.getsignal(number) is before
    assert signals.received == number
    assert last is not None
    assert (trainer.step, last.step, after.reports[-1].step, after.closed) == (5, 5, 5, 1)
    assert [path.name for path in checkpoint.all_in(tmp_path)] == ["step_000000005.pt"]
    again = small_trainer(steps=12, checkpoints=tmp_path)
    assert again.resume()
    assert again.step == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_exits_at_once(tmp_path: Path, number: int) -> None:
    interrupt, after = Interrupt(number, 5, times=2), Recorder()
    with Signals() as signals, pytest.raises(SystemExit) as caught:
        small_trainer(steps=12, callbacks=[interrupt, after], checkpoints=tmp_path, stop=signals.wanted).run()
    assert caught.value.code == 128 + number
    assert [r.step for r in after.reports] == [1, 2, 3, 4], "not even the other callbacks were told"
    assert (interrupt.closed, after.closed) == (1, 1)
    assert not checkpoint.all_in(tmp_path)


def test_signals_can_be_used_again() -> None:
    signals = Signals()
    with signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wanted()
    with signals:
        assert not signals.wanted(), "a signal of the last run must not stop this one"
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.wanted()
