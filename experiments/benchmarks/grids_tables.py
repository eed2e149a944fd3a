"""Table and figure of the speed on hypergrids: medians over windows, with the range in brackets."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.grids_races import Record
from experiments.benchmarks.grids_runs import R0, Cell
from experiments.benchmarks.peers import OURS
from experiments.benchmarks.tables import cell as ranged
from experiments.benchmarks.tables import table
from experiments.reports.curves import COLOURS

ABOUT = (
    f"Trajectory balance on policy, hypergrid with R0 = {R0}, R1 = 0.5, R2 = 2, an MLP of 2 × 256 on one-hot "
    "coordinates, Adam. A learned P_B is a second head on the trunk of P_F, for all sides. Every side begins with the "
    "same trained weights and computes whole updates at learning rate 0, so that trajectories stay as long as those "
    "to samples of the target. Sides take turns, in processes of one thread; the first iteration of each stands apart."
)


def written(records: Sequence[Record], errors: Mapping[Cell, float]) -> str:
    """Markdown: speeds and ratios, what sides needed before, and whether the work was the same.

    Args:
        records: all that were measured.
        errors: of the gradient of our side, by cell.
    """
    parts = [_heading(records), _speeds(records), _ratios(records), _starts(records), _work(records, errors)]
    failures = [f"{r.side} on {r.cell}: {r.failure}" for r in records if r.failure]
    return "\n\n".join(part for part in (*parts, *failures) if part) + "\n"


def by_cell(records: Sequence[Record]) -> dict[Cell, dict[str, Record]]:
    """Records that have windows, by cell and side."""
    found = dict[Cell, dict[str, Record]]()
    for r in records:
        if r.windows:
            found.setdefault(r.cell, {})[r.side] = r
    return found


def rates(record: Record) -> list[float]:
    """Iterations in a CPU second, of each window."""
    return [w.iterations / w.cpu for w in record.windows]


def mean_length(record: Record) -> float:
    """Steps of a trajectory, over all windows."""
    return sum(w.steps for w in record.windows) / sum(w.iterations * record.cell.batch for w in record.windows)


def _heading(records: Sequence[Record]) -> str:
    versions = dict.fromkeys(version for r in records for version in r.versions)
    loads = [w.load for r in records for w in r.windows]
    load = f"{min(loads):.1f}–{max(loads):.1f}" if loads else "unknown"
    config = dict.fromkeys(override for r in records for override in r.config)
    ours = f" Our side with {' '.join(config)}." if config else ""
    return (
        f"{ABOUT}{ours} Python {platform.python_version()}, {', '.join(versions)}; {platform.machine()}, "
        f"{os.cpu_count()} cores; load average {load}."
    )


def _sides(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(r.side for r in records))


def _rows(records: Sequence[Record], sides: Sequence[str], text: Callable[[Record], str]) -> list[list[str]]:
    found = by_cell(records)
    return [[*_named(c), *(text(some[s]) if s in some else "–" for s in sides)] for c, some in found.items()]


def _named(cell: Cell) -> list[str]:
    return [cell.grid, str(cell.batch), cell.backward]


CELL = ("grid", "batch", "P_B")


def _speeds(records: Sequence[Record]) -> str:
    sides = _sides(records)
    cpu = _rows(records, sides, lambda r: ranged(rates(r)))
    wall = _rows(records, sides, lambda r: ranged([w.iterations / w.wall for w in r.windows]))
    return (
        "Iterations per CPU second, median (range) of the windows:\n\n"
        + table([*CELL, *sides], cpu)
        + "\n\nIterations per second, wall:\n\n"
        + table([*CELL, *sides], wall)
    )


def _ratios(records: Sequence[Record]) -> str:
    peers = [side for side in _sides(records) if side != OURS]
    rows = list[list[str]]()
    for c, some in by_cell(records).items():
        if OURS in some and len(some) > 1:
            mine = statistics.median(rates(some[OURS]))
            per = [f"{mine / statistics.median(rates(some[p])):.2f}" if p in some else "–" for p in peers]
            rows.append([*_named(c), f"{mine * c.batch:.4g}", *per])
    head = [*CELL, "our trajectories per CPU second", *(f"ours / {peer}" for peer in peers)]
    return "How many times as many iterations per CPU second:\n\n" + table(head, rows) if rows else ""


def _starts(records: Sequence[Record]) -> str:
    def text(r: Record) -> str:
        assert r.first is not None
        return f"{r.setup:.1f} + {r.first.cpu:.2f}, {max(w.memory for w in r.windows):.0f}"

    sides = _sides(records)
    rows = _rows(records, sides, text)
    return "CPU seconds to set up + of the first iteration, peak memory in MiB:\n\n" + table([*CELL, *sides], rows)


def _work(records: Sequence[Record], errors: Mapping[Cell, float]) -> str:
    sides = _sides(records)
    rows = list[list[str]]()
    for c, some in by_cell(records).items():
        lengths = [f"{mean_length(some[s]):.2f}" if s in some else "–" for s in sides]
        rows.append([*_named(c), *lengths, f"{errors[c]:.1e}" if c in errors else "–"])
    return (
        "Mean number of steps of a trajectory, and how far the gradient of our updates is from that of the loss "
        "written out plainly in float64, relative to its size:\n\n"
        + table([*CELL, *sides, "error of our gradient"], rows)
    )


def draw(records: Sequence[Record], path: Path) -> None:
    """Trajectories in a CPU second against batch size, a panel for each grid and P_B."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found, sides = by_cell(records), _sides(records)
    panels = list(dict.fromkeys((c.grid, c.backward) for c in found))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.2 * len(panels) + 1, 3.6), squeeze=False, layout="constrained"
    )
    for axis, (grid, backward) in zip(axes[0], panels, strict=True):
        cells = sorted((c for c in found if (c.grid, c.backward) == (grid, backward)), key=lambda c: c.batch)
        for i, side in enumerate(sides):
            some = [c for c in cells if side in found[c]]
            speeds = [[rate * c.batch for rate in rates(found[c][side])] for c in some]
            middle = [statistics.median(values) for values in speeds]
            spread = [[m - min(v) for m, v in zip(middle, speeds, strict=True)]]
            spread += [[max(v) - m for m, v in zip(middle, speeds, strict=True)]]
            axis.errorbar([c.batch for c in some], middle, spread, marker="o", color=COLOURS[i], label=side)
        axis.set(xscale="log", yscale="log", title=f"{grid}, {backward} P_B", xlabel="batch")
        axis.set_xticks([c.batch for c in cells], [str(c.batch) for c in cells], minor=False)
    axes[0][0].set_ylabel("trajectories per CPU second")
    axes[0][0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
