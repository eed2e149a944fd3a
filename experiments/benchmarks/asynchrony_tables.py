"""Tables and figure of the speed of asynchronous training: medians, with the range in brackets."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.benchmarks.asynchrony_costs import Transfer
from experiments.benchmarks.asynchrony_runs import Measurement
from experiments.benchmarks.asynchrony_simulation import Costs, Pace, simulated
from experiments.benchmarks.tables import cell
from experiments.reports.curves import COLOURS, STYLES

SEARCHERS = (1, 2, 4, 8, 16, 32, 64)
STALENESS = (0, 1, 2, 4, 8, 16)
PACKAGES = ("torch", "ray", "numpy", "rdkit", "transformers")
ABOUT = (
    "Times are seconds of wall clock from the end of the first update on, with which searchers start; policies and "
    "molecules are looked at when a run is over. Synchronous runs sample whole batches in the trainer's process, all "
    "others in processes of Ray, one thread each. Predictions are simulations with what was measured in the run with "
    "one searcher and staleness 0, in which searcher and trainer take turns; simulated searchers have a core each. "
    "Ray runs searchers at niceness 15, so that the trainer comes first where there are fewer cores than processes."
)


@dataclass(frozen=True)
class Results:
    """All that was measured."""

    transfers: Sequence[Transfer]
    runs: Sequence[Measurement]

    @property
    def tasks(self) -> list[str]:
        """Names of what was learned, in order."""
        return list(dict.fromkeys(m.case.name for m in self.runs))

    @property
    def variants(self) -> list[tuple[str, int, int]]:
        """Task, searchers and staleness of the runs, in order."""
        return list(dict.fromkeys((m.case.name, m.case.searchers, m.case.staleness) for m in self.runs))

    def of(self, name: str, searchers: int, staleness: int) -> list[Measurement]:
        """The repetitions of a run."""
        wanted = (name, searchers, staleness)
        return [m for m in self.runs if (m.case.name, m.case.searchers, m.case.staleness) == wanted]

    def synchronous(self, name: str) -> list[Measurement]:
        """The runs without searchers."""
        return self.of(name, 0, 0)

    def beside_synchronous(self, name: str, searchers: int, staleness: int) -> list[tuple[Measurement, Measurement]]:
        """The repetitions of a run, each after the synchronous run of the same seed."""
        plain = {m.case.seed: m for m in self.synchronous(name)}
        return [(plain[m.case.seed], m) for m in self.of(name, searchers, staleness) if m.case.seed in plain]

    def speedups(self, name: str, searchers: int, staleness: int) -> list[float]:
        """How many times as many updates a second are done as in the synchronous run."""
        pairs = self.beside_synchronous(name, searchers, staleness)
        return [statistics.fmean(plain.steps) / statistics.fmean(m.steps) for plain, m in pairs]

    def costs(self, name: str) -> Costs:
        """What things take in a task, from the run in which searcher and trainer take turns."""
        turns, passed = self.of(name, 1, 0)[0], next(t for t in self.transfers if t.name == name)
        handoff, received = statistics.median(passed.empty), statistics.median(passed.received)
        load = statistics.median(passed.fetch) + statistics.median(passed.load)
        groups, publish = turns.case.task.groups, statistics.fmean(turns.publishes)
        # The first of a batch is made with new weights; the first batch, in which much is set up, does not count.
        searches = [
            max(seconds - handoff - load * (number % groups == 0), 0.0)
            for number, seconds in enumerate(turns.searches)
            if number >= groups
        ]
        return Costs(
            search=searches,
            update=statistics.fmean(turns.steps) - publish - statistics.fmean(turns.waits),
            publish=publish,
            load=load,
            handoff=handoff,
            receive=received,
            synchronous=statistics.median(statistics.fmean(m.steps) for m in self.synchronous(name)),
        )


def paces(costs: Costs, groups: int, staleness: int) -> list[Pace]:
    """Simulated runs with each number of searchers."""
    return [simulated(costs, searchers, staleness, groups) for searchers in SEARCHERS]


def written(results: Results) -> str:
    """Markdown: costs, runs, and for each task what the simulation says."""
    simulations = [_simulation(results, name) for name in results.tasks]
    return "\n\n".join([_heading(results), _costs(results), _runs(results), _parts(results), *simulations]) + "\n"


def _heading(results: Results) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    loads = [m.load for m in results.runs]
    load = f"{min(loads):.1f}–{max(loads):.1f}"
    return (
        f"Speed of asynchronous training. {ABOUT} Python {platform.python_version()}, {packages}; "
        f"{platform.machine()}, {os.cpu_count()} cores; load average at the end of runs {load}."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def _costs(results: Results) -> str:
    head = [
        "ms",
        "MB of weights",
        "publish",
        "fetch",
        "load",
        "empty job",
        "group beyond that",
        "trainer's CPU, a group",
    ]
    rows = list[list[str]]()
    for t in results.transfers:
        parts = [t.publish, t.fetch, t.load, t.empty, t.put, t.received]
        rows.append([t.name, f"{t.megabytes:.3g}", *(_ms(seconds) for seconds in parts)])
    return _table(head, rows)


def _ms(seconds: Sequence[float]) -> str:
    return cell([1000 * s for s in seconds]) if seconds else "–"


def _runs(results: Results) -> str:
    head = ["", "searchers", "staleness", "s per update", "speed-up", "predicted", "waited, %", "idle, %", "lag"]
    head += ["CPU-s per update, trainer", "others", "updates to goal", "s to goal", "speed-up to goal"]
    return _table(head, [_run(results, *variant) for variant in results.variants])


def _run(results: Results, name: str, searchers: int, staleness: int) -> list[str]:
    found = results.of(name, searchers, staleness)
    task = found[0].case.task
    pairs = results.beside_synchronous(name, searchers, staleness)
    ends = [(plain.seconds_to_goal, m.seconds_to_goal) for plain, m in pairs]
    sooner = [plain / other for plain, other in ends if plain and other]
    measured = [[statistics.fmean(m.steps) for m in found], results.speedups(name, searchers, staleness)]
    asynchronous = ["–"] * 4
    if searchers:
        costs = results.costs(name)
        predicted = costs.synchronous / simulated(costs, searchers, staleness, task.groups).step
        waited = cell([100 * sum(m.waits) / m.seconds for m in found])
        lag = f"{cell([m.lag for m in found])}, at most {max(m.lag_max for m in found):.0f}"
        asynchronous = [f"{predicted:.3g}", waited, cell([100 * m.idle for m in found]), lag]
    cpu = [cell([m.cpu / len(m.steps) for m in found]), cell([m.cpu_others / len(m.steps) for m in found])]
    goal = [_reached([m.updates_to_goal for m in found]), _reached([m.seconds_to_goal for m in found])]
    first = [f"{name}: {task.metric} {task.goal:g}", str(searchers or "none"), str(staleness if searchers else "–")]
    return [*first, *map(cell, measured), *asynchronous, *cpu, *goal, cell(sooner) if sooner else "–"]


def _reached(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    missing = f" (not in {len(values) - len(there)} of {len(values)})" if len(there) < len(values) else ""
    return (cell(there) if there else "–") + missing


def _parts(results: Results) -> str:
    """What the simulation begins with."""
    head = [
        "s",
        "a group",
        "groups of a batch",
        "update",
        "publish",
        "load",
        "hand-off",
        "receive",
        "synchronous update",
    ]
    rows = list[list[str]]()
    for name in results.tasks:
        c, groups = results.costs(name), results.of(name, 1, 0)[0].case.task.groups
        rest = [c.update, c.publish, c.load, c.handoff, c.receive, c.synchronous]
        rows.append([name, cell(c.search), str(groups), *(f"{seconds:.3g}" for seconds in rest)])
    return _table(head, rows)


def _simulation(results: Results, name: str) -> str:
    costs, groups = results.costs(name), results.of(name, 1, 0)[0].case.task.groups
    rows = list[list[str]]()
    for staleness in STALENESS:
        cells = [
            f"{costs.synchronous / p.step:.2f} (idle {100 * p.idle:.0f} %, lag {p.lag:.1f})"
            for p in paces(costs, groups, staleness)
        ]
        rows.append([str(staleness), *cells])
    return _table([f"{name}, simulated: staleness", *(f"{n} searchers" for n in SEARCHERS)], rows)


def draw(results: Results, path: Path) -> None:
    """Speed-up against the number of searchers: simulated for each staleness, and as measured."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(results.tasks), figsize=(4.6 * len(results.tasks), 4.4), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], results.tasks, strict=True):
        costs, task = results.costs(name), results.of(name, 1, 0)[0].case.task
        _draw_simulated(axis, costs, task.groups)
        _draw_measured(axis, results, name)
        batch = statistics.fmean(costs.search) * task.groups
        axis.set(xscale="log", yscale="log", xlabel="searchers", ylabel="speed-up over the synchronous run")
        axis.set_xticks(SEARCHERS, [str(n) for n in SEARCHERS])
        axis.minorticks_off()
        axis.set_title(f"{task.title}\nsearching a batch {batch:.2g} s, update {costs.update:.2g} s", fontsize="medium")
        _label_powers(axis)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_simulated(axis: Any, costs: Costs, groups: int) -> None:
    for i, staleness in enumerate(STALENESS):
        speeds = [costs.synchronous / pace.step for pace in paces(costs, groups, staleness)]
        look = {"linestyle": STYLES[i % len(STYLES)], "color": COLOURS[i], "marker": "os^Dvx"[i], "markersize": 4}
        axis.plot(SEARCHERS, speeds, label=f"staleness {staleness}, simulated", **look)
    trainer = costs.update + costs.publish + groups * costs.receive
    axis.axhline(costs.synchronous / trainer, color="black", linewidth=0.8, linestyle=":", label="trainer never waits")


def _draw_measured(axis: Any, results: Results, name: str) -> None:
    for task, searchers, staleness in results.variants:
        if task == name and searchers and staleness:
            speeds = results.speedups(name, searchers, staleness)
            middle = statistics.median(speeds)
            error = [[middle - min(speeds)], [max(speeds) - middle]]
            label = f"measured, staleness {staleness}" if searchers == 1 else None
            axis.errorbar([searchers], [middle], error, fmt="P", color="black", markersize=8, label=label, zorder=3)


def _label_powers(axis: Any) -> None:
    """Ticks at powers of two, from one half or less to two or more, so that there are some."""
    low, high = axis.get_ylim()
    low, high = min(low, 0.45), max(high, 2.2)
    axis.set_ylim(low, high)
    powers = [2.0**k for k in range(-6, 12) if low <= 2.0**k <= high]
    axis.set_yticks(powers, [f"{power:g}" for power in powers])
    axis.minorticks_off()
