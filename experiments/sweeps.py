"""What came of a sweep: each of its runs evaluated, in one table for programs and one for people."""

from __future__ import annotations

import csv
import io
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.evaluate import measured
from experiments.reports.curves import differences
from experiments.runs import RunError
from gfn import storage
from gfn.checkpoint import CheckpointError

SHOWN = (
    "tv", "jsd_nats", "kl_model_target", "log_z", "log_z_exact", "log_z_error", "importance_ess", "kl_estimate",
    "log_reward_mean", "diversity",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A run of a sweep.

    Attributes:
        directory: where it is.
        settings: the values by which it differs from others, short names; the seed apart.
        seed: of the run.
        metrics: of its newest sound checkpoint, with the ``step`` of that.
    """

    directory: Path
    settings: Mapping[str, Any]
    seed: Any
    metrics: Mapping[str, float]


def evaluate_all(directories: Sequence[Path], n_samples: int, seed: int) -> list[Row]:
    """Evaluate runs one by one; those that cannot be are told and left out.

    Raises:
        RunError: if that is none of them, or there are none.
    """
    if not directories:
        raise RunError("no run directories match; name some, such as runs='runs/four_corners/sweep_*/*'")
    rows: list[Row] = []
    for directory in tqdm(directories, desc="evaluating", unit=" runs", disable=None):
        try:
            config, result = measured(directory, n_samples, seed)
        except (RunError, CheckpointError) as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        rows.append(Row(directory, {}, config["seed"], result))
    if not rows:
        raise RunError(f"none of the {len(directories)} directories holds a run that can be evaluated")
    settings = differences([row.directory for row in rows])
    return [Row(r.directory, s, r.seed, r.metrics) for r, s in zip(rows, settings, strict=True)]


def as_csv(rows: Sequence[Row]) -> str:
    """One line a run: its directory, seed, settings and every metric; nothing where a run has no such value."""
    settings = list(dict.fromkeys(key for row in rows for key in row.settings))
    metrics = list(dict.fromkeys(key for row in rows for key in row.metrics))
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["run", "seed", *settings, *metrics])
    for row in rows:
        values = [*(row.settings.get(key, "") for key in settings), *(row.metrics.get(key, "") for key in metrics)]
        table.writerow([row.directory, row.seed, *values])
    return file.getvalue()


def as_markdown(rows: Sequence[Row], wanted: Sequence[str] = SHOWN) -> str:
    """One line for all seeds of a setting: the median of each metric, and its range."""
    settings = list(dict.fromkeys(key for row in rows for key in row.settings))
    metrics = [name for name in wanted if any(name in row.metrics for row in rows)]
    lines = [
        "| " + " | ".join([*settings, "seeds", *metrics]) + " |",
        "|---" * (len(settings) + 1 + len(metrics)) + "|",
    ]
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row.settings.get(key, "")) for key in settings), []).append(row)
    for names, group in groups.items():
        cells = [_cell([row.metrics[name] for row in group if name in row.metrics]) for name in metrics]
        lines.append("| " + " | ".join([*names, str(len(group)), *cells]) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle = f"{statistics.median(values):.4g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.4g}–{max(values):.4g})"


def tabulate(directories: Sequence[Path], out: Path, n_samples: int, seed: int) -> list[Row]:
    """Evaluate runs, write ``out`` as CSV and beside it Markdown, and print the latter."""
    rows = evaluate_all(directories, n_samples, seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = as_markdown(rows)
    storage.replace(out, as_csv(rows).encode())
    storage.replace(out.with_suffix(".md"), text.encode())
    print(text, end="")
    print(f"{len(rows)} of {len(directories)} runs; written to {out} and {out.with_suffix('.md')}")
    return rows
