"""Table and figure of the time to learn a hypergrid."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks.peers import OURS
from experiments.benchmarks.tables import cell, table
from experiments.reports.curves import COLOURS

ABOUT = (
    "Trajectory balance on policy, hypergrid with R0 = 0.1, R1 = 0.5, R2 = 2, learned P_B, an MLP of 2 × 256, Adam "
    "with learning rates 1e-3 and, of log Z, 1e-1; all sides from the same weights, in turns, one thread each. Total "
    "variation is exact, and computed with the clock stopped; setting up and the first update, in which some compile, "
    "are apart."
)


@dataclass(frozen=True)
class Point:
    """Where a run is: updates so far, CPU and wall seconds that they took, and exact total variation."""

    updates: int
    cpu: float
    wall: float
    tv: float


@dataclass(frozen=True)
class Curve:
    """One run: who, from which seed, its points in order, and versions of packages."""

    side: str
    seed: int
    points: tuple[Point, ...]
    versions: tuple[str, ...] = ()

    def reached(self, tv: float) -> Point | None:
        """The first point that is so good, if there is one."""
        return next((point for point in self.points if point.tv <= tv), None)


def written(curves: Sequence[Curve], batch: int, tv: float) -> str:
    """Markdown: median (range) over seeds of what it took to come to ``tv``, and to twice that."""
    versions = ", ".join(dict.fromkeys(version for curve in curves for version in curve.versions))
    heading = (
        f"{ABOUT} Batches of {batch}. Python {platform.python_version()}, {versions}; {platform.machine()}, "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end."
    )
    sides = list(dict.fromkeys(curve.side for curve in curves))
    head = ["side", "seeds", f"trajectories to TV {2 * tv:g}", f"to TV {tv:g}", "CPU seconds", "seconds, wall"]
    rows = list[list[str]]()
    for side in sides:
        some = [curve for curve in curves if curve.side == side]
        cells = [_cell(some, goal, lambda p: p.updates * batch, ",.0f") for goal in (2 * tv, tv)]
        cells += [_cell(some, tv, lambda p: p.cpu), _cell(some, tv, lambda p: p.wall), _ratio(curves, side, tv)]
        rows.append([side, str(len(some)), *cells])
    return heading + "\n\n" + table([*head, "CPU seconds / ours"], rows) + "\n"


def _cell(curves: Sequence[Curve], tv: float, value: Callable[[Point], float], form: str = ".3g") -> str:
    points = [point for curve in curves if (point := curve.reached(tv)) is not None]
    if not points:
        return "not reached"
    missed = f", {len(curves) - len(points)} not" if len(points) < len(curves) else ""
    return cell([value(point) for point in points], form) + missed


def _ratio(curves: Sequence[Curve], side: str, tv: float) -> str:
    medians = list[float]()
    for name in (side, OURS):
        points = [point for curve in curves if curve.side == name and (point := curve.reached(tv)) is not None]
        if not points:
            return "–"
        medians.append(statistics.median(point.cpu for point in points))
    return f"{medians[0] / medians[1]:.2f}"


def draw(curves: Sequence[Curve], tv: float, path: Path) -> None:
    """Total variation against CPU seconds, a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    sides = list(dict.fromkeys(curve.side for curve in curves))
    for curve in curves:
        i = sides.index(curve.side)
        label = curve.side if curve.seed == min(c.seed for c in curves) else None
        axis.plot([p.cpu for p in curve.points], [p.tv for p in curve.points], color=COLOURS[i], label=label)
    axis.axhline(tv, color="grey", linestyle=":")
    axis.set(xscale="log", yscale="log", xlabel="CPU seconds", ylabel="exact total variation")
    axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
