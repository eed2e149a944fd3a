"""Tables and figure of the speed of synthesis: medians over seeds, with the range in brackets."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.benchmarks.measuring import SAMPLING, Measurement
from experiments.reports.curves import COLOURS, STYLES

KNOWN, EXACT, LEARNED = "known_edges", "exact_edges", "learned_edges"
PACKAGES = ("torch", "torch-geometric", "rdkit", "numpy")
PUBLISHED = (
    "Published system: SynFlowNet (Cretu et al. 2024, arXiv:2405.01155; released code of January 2025) with 5000 "
    "blocks, its 105 templates and network, up to 3 steps, reward QED, batches of 64 and an untrained policy, measured "
    "earlier by ourselves on a machine of the same kind (2-core AMD EPYC, CPU seconds, within about 40 %), not in this "
    "run. Its 106 ms are with its default P_B, its 426 ms with its uniform one. Templates, networks and the meaning of "
    "a step differ, so that ratios are a matter of orders of magnitude."
)


@dataclass(frozen=True)
class Goal:
    """A figure of merit.

    Attributes:
        text: what it is.
        kind: of the case that gives it.
        value: of a measurement.
        goal: what to hold it against, as text.
        kept: whether a value reaches it; None if there is none.
        published: the same of the published system.
    """

    text: str
    kind: str
    value: Callable[[Measurement], float]
    goal: str
    kept: Callable[[float], bool] | None
    published: str


def per_cpu_second(m: Measurement) -> float:
    """Trajectories in a second of CPU time."""
    return m.trajectories / m.cpu


def per_wall_second(m: Measurement) -> float:
    """Trajectories in a second."""
    return m.trajectories / m.wall


def cpu_ms(m: Measurement) -> float:
    """CPU milliseconds for a trajectory."""
    return 1000 * m.cpu / m.trajectories


GOALS = (
    Goal("sampled trajectories per CPU second", SAMPLING, per_cpu_second, "≥ 300", lambda x: x >= 300, "28.5"),
    Goal("CPU-ms per trained trajectory, known edges", KNOWN, cpu_ms, "≤ 12", lambda x: x <= 12, "106"),
    Goal("CPU-ms per trained trajectory, exact edges", EXACT, cpu_ms, "≤ 25", lambda x: x <= 25, "426"),
    Goal("CPU-ms per trained trajectory, learned edges", LEARNED, cpu_ms, "–", None, "106"),
)


@dataclass(frozen=True)
class Results:
    """All measurements.

    Attributes:
        measurements: in the order in which they were made.
        main: size of the library for which everything is measured; None for all blocks.
        alone: lowest number of workers, at which sizes are compared.
    """

    measurements: Sequence[Measurement]
    main: int | None
    alone: int

    def of(self, kind: str, size: int | None, workers: int) -> list[Measurement]:
        """The repetitions of a case."""
        wanted = (kind, size, workers)
        return [m for m in self.measurements if (m.case.kind, m.case.size, m.case.workers) == wanted]

    @property
    def sizes(self) -> list[int | None]:
        """Sizes of libraries, in the order given."""
        return list(dict.fromkeys(m.case.size for m in self.measurements))

    @property
    def workers(self) -> list[int]:
        """Numbers of workers, ascending."""
        return sorted({m.case.workers for m in self.measurements})


def cell(values: Sequence[float], form: str = ".3g") -> str:
    """Median and range."""
    middle = format(statistics.median(values), form)
    return middle if len(values) == 1 else f"{middle} ({min(values):{form}}–{max(values):{form}})"


def written(results: Results) -> str:
    """Markdown: goals, what the time goes into, and how it grows with blocks and workers."""
    return "\n\n".join([_heading(results), _goals(results), PUBLISHED, _shares(results), _growth(results)]) + "\n"


def _heading(results: Results) -> str:
    some = results.measurements
    case, loads = some[0].case, [m.load for m in some]
    size, seeds = some[0].trajectories // case.batches, {m.case.seed for m in some}
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"Speed of synthesis with blocks from {case.blocks} and up to 3 reactions, reward QED, {case.batches} batches "
        f"of {size}; the policy of configs/policy/synthesis.yaml, untrained; tables empty at the start. Median (range) "
        f"of {len(seeds)} seeds. Python {platform.python_version()}, {packages}; {platform.machine()}, "
        f"{os.cpu_count()} cores, one thread; load average {min(loads):.1f}–{max(loads):.1f}: well above 1, CPU "
        "seconds are up to 40 % too high."
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown of a table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _goals(results: Results) -> str:
    rows = list[list[str]]()
    for goal in GOALS:
        found = results.of(goal.kind, results.main, results.alone)
        values = [goal.value(m) for m in found]
        kept = "–" if goal.kept is None else "yes" if goal.kept(statistics.median(values)) else "no"
        wall = cell([per_wall_second(m) for m in found])
        reactions = cell([m.reactions for m in found])
        rows.append([goal.text, cell(values), goal.goal, kept, goal.published, wall, reactions])
    blocks = results.of(SAMPLING, results.main, results.alone)[0].n_blocks
    head = [
        f"with {blocks} blocks",
        "measured",
        "goal for 5000 of synspace",
        "kept",
        "published",
        "trajectories/s, wall",
        "reactions",
    ]
    return table(head, rows)


def _shares(results: Results) -> str:
    """Percent of the main process's CPU time."""
    kinds = [goal.kind for goal in GOALS]
    found = {kind: results.of(kind, results.main, results.alone) for kind in kinds}
    labels = list(dict.fromkeys(label for some in found.values() for m in some for label in m.spent))
    rows = [[label, *(cell([_percent(m, label) for m in found[kind]]) for kind in kinds)] for label in labels]
    return table(["% of CPU time", *(kind.replace("_", " ") for kind in kinds)], rows)


def _percent(m: Measurement, label: str) -> float:
    return 100 * m.spent.get(label, 0.0) / sum(m.spent.values())


def _growth(results: Results) -> str:
    rows = list[list[str]]()
    pairs = [(size, results.alone) for size in results.sizes]
    for size, count in pairs + [(results.main, count) for count in results.workers[1:]]:
        for kind in (SAMPLING, KNOWN, EXACT):
            found = results.of(kind, size, count)
            values = [[cpu_ms(m) for m in found], [per_cpu_second(m) for m in found]]
            values += [[per_wall_second(m) for m in found], [m.setup for m in found], [m.memory for m in found]]
            rows.append([str(found[0].n_blocks), str(count), kind.replace("_", " "), *map(cell, values)])
    head = ["blocks", "workers", "what", "CPU-ms per trajectory", "trajectories per CPU second"]
    return table([*head, "trajectories/s, wall", "CPU seconds to set up", "peak memory, MiB"], rows)


def draw(results: Results, path: Path) -> None:
    """CPU time against the number of blocks, and trajectories in a second of wall time against workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (blocks, workers) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for i, kind in enumerate((SAMPLING, KNOWN, EXACT)):
        alone = [results.of(kind, size, results.alone) for size in results.sizes]
        _line(blocks, i, kind, [some[0].n_blocks for some in alone], [[cpu_ms(m) for m in some] for some in alone])
        among = [results.of(kind, results.main, count) for count in results.workers]
        _line(workers, i, kind, results.workers, [[per_wall_second(m) for m in some] for some in among])
    blocks.set(xscale="log", xlabel="blocks", ylabel="CPU-ms per trajectory", ylim=(0, None))
    size = results.of(SAMPLING, results.main, results.alone)[0].n_blocks
    workers.set(xlabel=f"worker processes ({size} blocks)", ylabel="trajectories per second, wall", ylim=(0, None))
    workers.set_xticks(results.workers)
    blocks.legend()
    figure.suptitle("Synthesis from empty tables: median and range over seeds", fontsize="medium")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _line(axis: Any, i: int, kind: str, x: Sequence[int], values: Sequence[Sequence[float]]) -> None:
    middle = [statistics.median(some) for some in values]
    below = [m - min(some) for m, some in zip(middle, values, strict=True)]
    above = [max(some) - m for m, some in zip(middle, values, strict=True)]
    label = "sampling" if kind == SAMPLING else f"training, {kind.replace('_', ' ')}"
    axis.errorbar(x, middle, [below, above], marker="os^"[i], linestyle=STYLES[i], color=COLOURS[i], label=label)
