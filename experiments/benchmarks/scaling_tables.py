"""Tables and figure of how the cost of a trajectory grows."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from experiments.benchmarks.competitors import Window
from experiments.benchmarks.fits import exponent
from experiments.benchmarks.tables import cell, table
from experiments.reports.curves import COLOURS


@dataclass(frozen=True)
class Sample:
    """One point of an axis: its value, and the windows measured there, whose iterations are trajectories."""

    value: int
    windows: tuple[Window, ...]

    @property
    def costs(self) -> list[float]:
        """CPU milliseconds for a trajectory, of each window."""
        return [1000 * w.cpu / w.iterations for w in self.windows]

    @property
    def length(self) -> float:
        """Mean number of steps of a trajectory."""
        return sum(w.steps for w in self.windows) / sum(w.iterations for w in self.windows)


@dataclass(frozen=True)
class Growth:
    """All points of an axis, and what else there is to know of them."""

    axis: str
    about: str
    samples: tuple[Sample, ...]

    @property
    def medians(self) -> list[float]:
        """Cost at each point."""
        return [statistics.median(sample.costs) for sample in self.samples]

    def fitted(self) -> str:
        """The exponent of the cost, over all points, and between each point and the next."""
        if len(self.samples) < 2:
            return ""
        x, y = [float(sample.value) for sample in self.samples], self.medians
        between = ", ".join(f"{exponent(x[i : i + 2], y[i : i + 2]):.2f}" for i in range(len(x) - 1))
        return f"Cost of a trajectory ∝ {self.axis}^{exponent(x, y):.2f}; from each value to the next {between}."


def written(growths: Sequence[Growth]) -> str:
    """Markdown: a table and a fitted exponent for each axis."""
    heading = (
        f"CPU milliseconds for a trajectory trained on, median (range) of windows. Python {platform.python_version()}, "
        f"torch {version('torch')}; {platform.machine()}, {os.cpu_count()} cores, one thread; load average "
        f"{os.getloadavg()[0]:.1f} at the end."
    )
    parts = [heading]
    for growth in growths:
        rows = [
            [
                str(s.value),
                cell(s.costs),
                f"{s.length:.1f}",
                f"{1000 * m / s.length:.3g}",
                f"{s.windows[-1].memory:.0f}",
            ]
            for s, m in zip(growth.samples, growth.medians, strict=True)
        ]
        head = [growth.axis, "CPU-ms per trajectory", "steps of a trajectory", "CPU-µs per step", "peak memory, MiB"]
        parts += [f"{growth.axis.capitalize()}: {growth.about}.", table(head, rows), growth.fitted()]
    return "\n\n".join(part for part in parts if part) + "\n"


def draw(growths: Sequence[Growth], path: Path) -> None:
    """Cost against the value, a panel for each axis."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    size = (3.2 * len(growths) + 0.5, 3.4)
    figure, axes = plt.subplots(1, len(growths), figsize=size, squeeze=False, layout="constrained")
    for axis, growth in zip(axes[0], growths, strict=True):
        values, middle = [sample.value for sample in growth.samples], growth.medians
        below = [m - min(sample.costs) for m, sample in zip(middle, growth.samples, strict=True)]
        above = [max(sample.costs) - m for m, sample in zip(middle, growth.samples, strict=True)]
        axis.errorbar(values, middle, [below, above], marker="o", color=COLOURS[0])
        axis.set(xscale="log", yscale="log", xlabel=growth.axis)
    axes[0][0].set_ylabel("CPU-ms per trajectory")
    figure.savefig(path, dpi=120)
    plt.close(figure)
