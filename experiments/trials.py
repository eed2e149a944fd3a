"""Runs made from Python, as notebooks make them: composed, trained and looked at without a run directory.

Where the environment variable ``GFN_FAST`` is 1 every run is cut short: enough to show that it works, and no more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.build import build_parts, checked, make
from experiments.reports.arguments import composed
from experiments.reports.curves import Group
from experiments.runs import open_run
from gfn.callbacks import line_of, read_lines
from gfn.training import Callback, Report, Trainer

FEW = 10  # updates of a run that is cut short


def fast() -> bool:
    """Whether runs are cut short, as in tests of notebooks."""
    return os.environ.get("GFN_FAST", "") == "1"


def updates(n: int) -> int:
    """``n`` updates, or as few as show that it works."""
    return min(n, FEW) if fast() else n


class Lines:
    """A callback that keeps what :class:`gfn.callbacks.JSONLines` would write."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def start(self, step: int) -> None:
        self.lines = [line for line in self.lines if line["step"] <= step]

    def __call__(self, report: Report) -> None:
        self.lines.append(line_of(report))

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Trial:
    """A run that has been trained.

    Attributes:
        label: what it is called in figures.
        config: checked, plain values.
        parts: the object of each stage, by name.
        lines: its metrics, as in ``metrics.jsonl``.
    """

    label: str
    config: dict[str, Any]
    parts: dict[str, Any]
    lines: list[dict[str, Any]]

    @property
    def env(self) -> Any:
        return self.parts["env"]

    @property
    def policy(self) -> Any:
        return self.parts["objective"].policy

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last evaluation."""
        return next(line for line in reversed(self.lines) if any(key.startswith("eval/") for key in line))


def trial(label: str, *overrides: str, callbacks: Sequence[Callback] = ()) -> Trial:
    """Train what ``gfn-train`` would with these overrides; nothing is written.

    Raises:
        ConfigError: with every problem of the config.
    """
    config = composed(overrides)
    config.trainer.steps = updates(config.trainer.steps)
    plain = checked(config)
    torch.set_num_threads(plain["threads"])
    parts, kept = build_parts(plain), Lines()
    trainer: Trainer[Any] = make(plain["trainer"], {**parts, "callbacks": [kept, *callbacks]}, "trainer")
    trainer.run()
    return Trial(label, plain, parts, kept.lines)


def finished(directory: str | Path, label: str | None = None) -> Trial:
    """A run that ``gfn-train`` has left in a directory, with its newest weights.

    Raises:
        RunError, CheckpointError: if there is no such run.
    """
    config, parts, _ = open_run(Path(directory))
    return Trial(label or str(directory), config, parts, read_lines(Path(directory) / "metrics.jsonl"))


def by_label(trials: Sequence[Trial]) -> list[Group]:
    """Trials of one label as the seeds of a group, for :mod:`experiments.reports.curves`."""
    labels = dict.fromkeys(trial.label for trial in trials)
    return [Group(label, tuple(t.lines for t in trials if t.label == label)) for label in labels]


def summary(trials: Sequence[Trial], wanted: Mapping[str, str]) -> str:
    """Markdown: the last evaluation of each trial."""
    rows = [f"| {t.label} | " + " | ".join(f"{t.last[name]:.3g}" for name in wanted) + " |" for t in trials]
    return "\n".join(["| | " + " | ".join(wanted.values()) + " |", "|---" * (1 + len(wanted)) + "|", *rows])
