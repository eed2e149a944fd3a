"""What exact evaluation costs, against the number of states.

    python -m experiments.benchmarks.evaluations out=report grids=8x2,64x2,8x4,20x4,32x4 times=3

lists the states and edges of hypergrids, and computes the distribution over terminal states of a fresh policy, an MLP
of 2 × 256, each grid in a process of its own and so many times. It writes ``evaluations.md``, ``.png`` and ``.json``;
what the JSON file there has already is not measured again. Memory is that of the whole process, torch included.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from envs.hypergrid import Classic, Hypergrid
from experiments.benchmarks.fits import exponent
from experiments.benchmarks.tables import cell, table
from experiments.benchmarks.workers.turns import peak_memory
from experiments.reports.arguments import numbers, options
from experiments.reports.curves import COLOURS
from gfn.exact import edge_log_pf, log_reach, state_graph
from gfn.policies import MLPPolicy

DEFAULTS = {"out": ".", "grids": "8x2,32x2,64x2,8x4,12x4,16x4,20x4,32x4", "times": "3"}
ABOUT = (
    "Exact evaluation of a policy (MLP of 2 × 256) on hypergrids: listing states and edges, once for each run; scoring "
    "every edge, a pass of the network over every state; and dynamic programming along them, which gives the "
    "distribution over terminal states. CPU seconds of one thread, median (range)."
)
PARTS = ("listing", "scoring", "programming")


@dataclass(frozen=True)
class Evaluation:
    """What one grid took.

    Attributes:
        grid: such as ``8x4``.
        states, edges: how many there are.
        listing, scoring, programming: CPU seconds, each time.
        before, memory: largest resident memory before and after, MiB.
        load: the machine's load average.
    """

    grid: str
    states: int
    edges: int
    listing: tuple[float, ...]
    scoring: tuple[float, ...]
    programming: tuple[float, ...]
    before: float
    memory: float
    load: float


def measured(grid: str, times: int) -> Evaluation:
    """Measure in this process, in which nothing larger should have run before."""
    torch.set_num_threads(1)
    side, ndim = map(int, grid.split("x"))
    env, spent = Hypergrid(side, ndim, Classic(r0=0.1)), dict[str, list[float]]()
    torch.manual_seed(0)
    policy, before, states, edges = MLPPolicy(env), peak_memory(), 0, 0
    for _ in range(times):
        start = time.process_time()
        graph = state_graph(env)
        listed = time.process_time()
        log_pf = edge_log_pf(graph, policy)
        scored = time.process_time()
        log_p = log_reach(graph, log_pf)[graph.terminal]
        done = time.process_time()
        for name, seconds in zip(PARTS, (listed - start, scored - listed, done - scored), strict=True):
            spent.setdefault(name, []).append(seconds)
        states, edges, total = graph.n, len(graph.source), float(log_p.exp().sum())
        if abs(total - 1) > 1e-4:
            raise ValueError(f"probabilities on {grid} sum to {total}, expected 1")
    return Evaluation(
        grid,
        states,
        edges,
        *(tuple(spent[name]) for name in PARTS),
        before=before,
        memory=peak_memory(),
        load=os.getloadavg()[0],
    )


def apart(grid: str, times: int) -> Evaluation:
    """Measure in a new process.

    Raises:
        RuntimeError: if the process dies, as for want of memory.
    """
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(measured, grid, times).result()
    except BrokenProcessPool as error:
        raise RuntimeError(f"the process that evaluated {grid} died, most likely for want of memory") from error


def written(found: Sequence[Evaluation]) -> str:
    """Markdown: costs by grid, and how they grow."""
    loads = [e.load for e in found]
    heading = (
        f"{ABOUT} Python {platform.python_version()}, torch {version('torch')}; {platform.machine()}, "
        f"{os.cpu_count()} cores; load average {min(loads):.1f}–{max(loads):.1f}."
    )
    rows = [
        [
            e.grid,
            f"{e.states:,}",
            f"{e.edges:,}",
            *(cell(part(e)) for part in _parts()),
            f"{e.memory:.0f}",
            _per_edge(e),
        ]
        for e in found
    ]
    head = ["grid", "states", "edges", *PARTS, "peak memory, MiB", "bytes per edge"]
    large = [e for e in found if e.edges >= 10_000]
    parts = [heading, table(head, rows)]
    if len(large) > 1:
        edges = [float(e.edges) for e in large]
        fits = [f"{name} {exponent(edges, [statistics.median(part(e)) for e in large]):.2f}" for name, part in _named()]
        parts.append(f"Exponents of the number of edges, from grids of at least 10,000: {', '.join(fits)}.")
    return "\n\n".join(parts) + "\n"


def _named() -> list[tuple[str, Callable[[Evaluation], Sequence[float]]]]:
    return list(zip(PARTS, _parts(), strict=True))


def _parts() -> tuple[Callable[[Evaluation], Sequence[float]], ...]:
    return (lambda e: e.listing, lambda e: e.scoring, lambda e: e.programming)


def _per_edge(e: Evaluation) -> str:
    """Memory beyond that of a process that has evaluated nothing."""
    return f"{(e.memory - e.before) * 2**20 / e.edges:.0f}"


def draw(found: Sequence[Evaluation], path: Path) -> None:
    """CPU seconds of each part, and memory, against the number of states."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ordered = sorted(found, key=lambda e: e.states)
    figure, (seconds, memory) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    states = [e.states for e in ordered]
    for i, (name, part) in enumerate(_named()):
        seconds.plot(states, [statistics.median(part(e)) for e in ordered], marker="o", color=COLOURS[i], label=name)
    memory.plot(states, [e.memory for e in ordered], marker="o", color=COLOURS[0])
    seconds.set(xscale="log", yscale="log", xlabel="states", ylabel="CPU seconds")
    memory.set(xscale="log", xlabel="states", ylabel="peak memory, MiB", ylim=(0, None))
    seconds.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _read(path: Path) -> list[Evaluation]:
    stored: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for record in stored:
        record.update({name: tuple(record[name]) for name in PARTS})
    return [Evaluation(**record) for record in stored]


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit, 1 if a measurement fails."""
    try:
        given, rest = options(arguments, DEFAULTS)
        if rest:
            raise ValueError(f"expected the options {', '.join(DEFAULTS)}, got {' '.join(rest)}")
        grids, times = given["grids"].split(","), numbers(given["times"], "times", 1)[0]
        for grid in grids:
            side, _, ndim = grid.partition("x")
            numbers(f"{side},{ndim}", "grids", 1)
    except ValueError as error:
        print(f"evaluations: {error}", file=sys.stderr)
        return 2
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    found = _read(out / "evaluations.json")
    try:
        for grid in grids:
            if grid not in {e.grid for e in found}:
                found.append(apart(grid, times))
                (out / "evaluations.json").write_text(json.dumps([asdict(e) for e in found], indent=1))
    except (RuntimeError, ValueError) as error:
        print(f"evaluations: {error}", file=sys.stderr)
        return 1
    text = written(found)
    (out / "evaluations.md").write_text(text, encoding="utf-8")
    draw(found, out / "evaluations.png")
    print(text, end="")
    print(f"written to {out / 'evaluations.md'}, .png and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
