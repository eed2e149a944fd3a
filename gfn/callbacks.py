"""Callbacks: what becomes of the reports of a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from gfn import storage
from gfn.examples import table
from gfn.reporting import Report

MINUTE = 60.0  # seconds between lines of progress where there is no terminal


class ProgressBar:
    """One line on the terminal: loss, log Z against its exact value, total variation, modes found.

    Where there is no terminal, as in the log of a cluster's job, a plain line once a minute, and none of a run that
    is over sooner.

    Args:
        mode_counts: how many modes there are, by definition; None where that is not known.
        stream: where to write; default standard error.
    """

    def __init__(self, mode_counts: Mapping[str, int | None] | None = None, stream: TextIO | None = None):
        self.mode_counts = mode_counts or {}
        self.stream = stream
        self.bar: Any = None
        self.begin, self.told = 0, 0.0
        self.latest: dict[str, float] = {}

    def start(self, step: int) -> None:
        self.begin, self.told = step, time.monotonic()

    def __call__(self, report: Report) -> None:
        self.latest |= dict(report.evaluation or {})
        stream = self.stream or sys.stderr
        if stream.isatty():
            self._draw(report, stream)
        elif time.monotonic() - self.told >= MINUTE:
            self.told = time.monotonic()
            print(f"step {report.step} of {report.steps}: {self._text(report)}", file=stream, flush=True)

    def _draw(self, report: Report, stream: TextIO) -> None:
        from tqdm import tqdm

        if self.bar is None:
            self.bar = tqdm(total=report.steps, initial=self.begin, unit="step", dynamic_ncols=True, file=stream)
        self.bar.set_postfix_str(self._text(report), refresh=False)
        self.bar.update(report.step - self.bar.n)

    def _text(self, report: Report) -> str:
        log_z = f"logZ {report.metrics['log_z']:.3f}" if "log_z" in report.metrics else ""
        if log_z and "log_z_exact" in self.latest:
            log_z += f" (exact {self.latest['log_z_exact']:.3f})"
        parts = [f"loss {report.metrics['loss']:.3g}", log_z]
        if "tv" in self.latest:
            parts.append(f"TV {self.latest['tv']:.3f}")
        for name, count in self.mode_counts.items():
            parts.append(f"{name} {report.metrics.get(name, 0):.0f}" + (f"/{count}" if count is not None else ""))
        return ", ".join(part for part in parts if part)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


class JSONLines:
    """One JSON object a line: every ``every``-th update, and every evaluation.

    Holds nothing that depends on the clock, so that a resumed run writes the very same file. On a
    start after ``step`` updates, lines of later ones are dropped (they will be written again).

    Raises:
        ValueError: if ``every`` is not positive.
    """

    def __init__(self, path: Path, every: int = 10):
        if every < 1:
            raise ValueError(f"JSONLines: every must be at least 1, got {every}")
        self.path, self.every = path, every
        self.file: TextIO | None = None

    def start(self, step: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read_lines(self.path) if line["step"] <= step]
        storage.replace(self.path, "".join(_dump(line) for line in kept).encode())
        self.file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def __call__(self, report: Report) -> None:
        if self.file is None or (report.step % self.every and report.evaluation is None):
            return
        try:
            self.file.write(_dump(line_of(report)))
            self.file.flush()
        except OSError as error:
            file, self.file = self.file, None
            with contextlib.suppress(OSError):  # closing tries to write once more
                file.close()
            reason = f"cannot write metrics: {error.strerror} ({storage.room(self.path.parent)})"
            raise OSError(error.errno, reason, str(self.path)) from error

    def sync(self) -> None:
        if self.file is not None:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def line_of(report: Report) -> dict[str, Any]:
    """What a metrics file says about an update; names of what was evaluated begin with ``eval/``."""
    evaluation = {f"eval/{name}": value for name, value in (report.evaluation or {}).items()}
    return {"step": report.step, "trajectories": report.trajectories, **report.metrics, **evaluation}


def _dump(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The sound lines of a metrics file; one that a crash cut off or spoilt is left out, a missing file is empty."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                lines.append(line)
    return lines


class TensorBoard:
    """Scalars for TensorBoard, every ``every``-th update and at every evaluation, with examples; against steps.

    The first evaluation also writes ``hyperparameters``, by dotted key, beside its metrics.

    Under ``speed`` are trajectories and their steps (of language models, tokens) trained on per second of wall
    time since the last such update, evaluations included.

    Raises:
        ValueError: if ``every`` is not positive.
    """

    def __init__(self, directory: Path, every: int = 10, hyperparameters: Mapping[str, Any] | None = None):
        if every < 1:
            raise ValueError(f"TensorBoard: every must be at least 1, got {every}")
        self.directory, self.every, self.hyperparameters = directory, every, hyperparameters or {}
        self.writer: Any = None
        self.trajectories: int | None = None  # known from the first report on
        self.steps, self.since, self.from_trajectories = 0.0, 0.0, 0
        self.listed = False  # whether hyper-parameters have been written

    def start(self, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.trajectories, self.steps, self.listed = None, 0.0, not self.hyperparameters
        # Readers forget what an interrupted run wrote from this step on; it will be written again.
        self.writer = SummaryWriter(str(self.directory), purge_step=step + 1)

    def __call__(self, report: Report) -> None:
        speeds = self._speeds(report)
        if report.step % self.every and report.evaluation is None:
            return
        self.steps, self.since, self.from_trajectories = 0.0, time.perf_counter(), report.trajectories
        try:
            self._write(report, speeds)
        except OSError as error:
            self.writer = None  # the thread that wrote has ended
            reason = f"cannot write events: {error.strerror or error} ({storage.room(self.directory)})"
            raise OSError(error.errno, reason, str(self.directory)) from error

    def _write(self, report: Report, speeds: Mapping[str, float]) -> None:
        for name, value in speeds.items():
            self.writer.add_scalar(f"speed/{name}", value, report.step)
        for name, value in report.metrics.items():
            self.writer.add_scalar(f"train/{name}", value, report.step)
        for name, value in (report.evaluation or {}).items():
            self.writer.add_scalar(f"eval/{name}", value, report.step)
        if report.evaluation is not None and not self.listed:
            self._list(report.evaluation)
        if report.examples:
            self.writer.add_text("samples", table(report.examples), report.step)
        self.writer.flush()  # what a checkpoint has counted must not be lost when the process is killed

    def _list(self, evaluation: Mapping[str, float]) -> None:
        """Hyper-parameters for the tab of that name, with the metrics to compare runs by."""
        from torch.utils.tensorboard.summary import hparams

        plain = {k: v if isinstance(v, (bool, int, float, str)) else str(v) for k, v in self.hyperparameters.items()}
        for summary in hparams(plain, {f"eval/{name}": value for name, value in evaluation.items()}):
            self.writer.file_writer.add_summary(summary)
        self.listed = True

    def sync(self) -> None:
        for events in self.directory.glob("events.*"):
            storage.sync(events)

    def _speeds(self, report: Report) -> dict[str, float]:
        """What has been done per second, from the second report on: what came before the first is not known."""
        if self.trajectories is None:
            self.trajectories = self.from_trajectories = report.trajectories
            self.since = time.perf_counter()
            return {}
        self.steps += (report.trajectories - self.trajectories) * report.metrics.get("length", 0.0)
        self.trajectories = report.trajectories
        seconds = max(time.perf_counter() - self.since, 1e-9)
        done = report.trajectories - self.from_trajectories
        return {"trajectories_per_second": done / seconds, "steps_per_second": self.steps / seconds}

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class SampleTable:
    """What the policy makes: best and random samples of the latest evaluation, as a table in Markdown."""

    def __init__(self, path: Path):
        self.path = path

    def start(self, step: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def __call__(self, report: Report) -> None:
        if report.examples:
            storage.replace(self.path, f"# Samples after update {report.step}\n\n{table(report.examples)}".encode())

    def close(self) -> None:
        pass


class Signals:
    """Turns the first SIGTERM or SIGINT into a wish to stop after the current update; a second one exits at once.

    Used as a context manager around training; :meth:`wanted` is what the trainer asks.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.received = None
        for number in (signal.SIGTERM, signal.SIGINT):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise SystemExit(128 + number)
        self.received = number

    def wanted(self) -> bool:
        """Whether a signal has asked to stop."""
        return self.received is not None
