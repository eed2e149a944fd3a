"""How long it takes to learn a hypergrid to a given exact total variation, here, by torchgfn and by gfnx with JAX.

    python -m experiments.benchmarks.convergence out=report seeds=0,1,2 peers=torchgfn,gfnx,gfnx-flat

trains by trajectory balance on 8⁴ with R0 = 0.1, batches of 16 and a learned P_B (see
:mod:`experiments.benchmarks.grids` for sides and peers), all sides from the same weights, in turns. Every ``every``
updates the clock stops, and the exact distribution over terminal states is computed from the weights by this project's
own code, until the total variation is at most ``tv`` or ``updates`` are done. Other options are for the config of our
side. It writes ``convergence.md``, ``.png`` and ``.json``; what the JSON file there has already is not run again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hydra.errors import HydraException

from experiments.benchmarks.competitors import Competitor, Window
from experiments.benchmarks.convergence_tables import Curve, Point, draw, written
from experiments.benchmarks.grids_runs import Cell, built, config, load, task_of, unwatched, weights
from experiments.benchmarks.peers import OURS, checked_sides
from experiments.benchmarks.workers.turns import write
from experiments.build import checked
from experiments.reports.arguments import numbers, options
from gfn.exact import log_terminal, state_graph
from gfn.training import never

DEFAULTS = {
    "out": ".",
    "grid": "8x4",
    "seeds": "0,1,2",
    "peers": "torchgfn,gfnx",
    "tv": "0.05",
    "every": "100",
    "updates": "6000",
}
RATES = (1e-3, 1e-1)  # of networks and of log Z
BATCH = 16


@dataclass(frozen=True)
class Plan:
    """What is run: ``every`` updates at a time, until ``tv`` is reached or ``updates`` are done."""

    cell: Cell
    sides: tuple[str, ...]
    tv: float
    every: int
    updates: int
    config: tuple[str, ...]


class Judge:
    """The exact total variation of a policy from its weights, for one grid."""

    def __init__(self, cell: Cell):
        with tempfile.TemporaryDirectory() as folder:
            self.run = built(task_of(cell), Path(folder), never)
        self.graph = state_graph(self.run.parts["env"])

    def __call__(self, path: Path) -> float:
        load(self.run, dict(np.load(path)))
        learned = log_terminal(self.graph, self.run.parts["policy"]).exp()
        return float((learned - self.graph.log_target.exp()).abs().sum() / 2)


def initial(cell: Cell, seed: int, path: Path) -> Path:
    """A file of fresh weights of this project."""
    with tempfile.TemporaryDirectory() as folder:
        write(path, weights(built(task_of(cell, seed=seed), Path(folder), never)))
    return path


def run(plan: Plan, sides: Sequence[str], seed: int, judge: Judge) -> list[Curve]:
    """The curves of one seed, of sides that take turns.

    Raises:
        RuntimeError: if a side cannot start, or dies.
    """
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        start, now = initial(plan.cell, seed, folder / "initial.npz"), folder / "now.npz"
        players = list[Competitor]()
        for side in sides:
            own = plan.config if side == OURS else ()
            players.append(running.enter_context(Competitor(side, plan.cell, start, RATES, seed, own)))
        curves: dict[str, list[Point]] = {player.side: [] for player in players}
        while waiting := [p for p in players if not _done(curves[p.side], plan)]:
            for player in waiting:
                window = player.train(iterations=plan.every)
                player.keep(now)
                curves[player.side].append(_after(curves[player.side], window, judge(now)))
        versions = {p.side: tuple(f"{name} {number}" for name, number in p.versions.items()) for p in players}
        return [Curve(side, seed, tuple(points), versions[side]) for side, points in curves.items()]


def _done(points: Sequence[Point], plan: Plan) -> bool:
    return bool(points) and (points[-1].tv <= plan.tv or points[-1].updates > plan.updates)


def _after(points: Sequence[Point], window: Window, tv: float) -> Point:
    before = points[-1] if points else Point(1, 0.0, 0.0, 1.0)  # the first update, in which some compile, is apart
    return Point(before.updates + window.iterations, before.cpu + window.cpu, before.wall + window.wall, tv)


def _read(path: Path) -> list[Curve]:
    if not path.exists():
        return []
    stored: list[dict[str, Any]] = json.loads(path.read_text())
    return [Curve(c["side"], c["seed"], tuple(Point(**p) for p in c["points"]), tuple(c["versions"])) for c in stored]


def learn(plan: Plan, seeds: Sequence[int], path: Path) -> list[Curve]:
    """All curves, those in the file included; it is written anew after each seed."""
    curves, judge = _read(path), Judge(plan.cell)
    for seed in seeds:
        known = {c.side for c in curves if c.seed == seed}
        if sides := [side for side in plan.sides if side not in known]:
            curves += run(plan, sides, seed, judge)
            path.write_text(json.dumps([asdict(c) for c in curves], indent=1))
            ends = ", ".join(f"{c.side} {c.points[-1].cpu:.1f} CPU s" for c in curves if c.seed == seed)
            print(f"seed {seed}: {ends}", file=sys.stderr)
    return curves


def planned(given: dict[str, str], rest: Sequence[str]) -> Plan:
    """What to run, from options.

    Raises:
        ValueError: if an option does not fit.
    """
    side, _, ndim = given["grid"].partition("x")
    if not (side.isdecimal() and ndim.isdecimal()):
        raise ValueError(f"grid: expected such as 8x4, got {given['grid']!r}")
    every, updates = numbers(given["every"], "every", 1)[0], numbers(given["updates"], "updates", 1)[0]
    sides = (OURS, *checked_sides(given["peers"]))
    return Plan(Cell(int(side), int(ndim), BATCH, "learned"), sides, float(given["tv"]), every, updates, tuple(rest))


def main(arguments: Sequence[str]) -> int:
    """Run and write; exit code 2 with a message for options that do not fit, 1 if a side fails."""
    try:
        given, rest = options(arguments, DEFAULTS)
        plan, seeds = planned(given, rest), numbers(given["seeds"], "seeds", 0)
        checked(unwatched(config(task_of(plan.cell, rest))))
        out = Path(given["out"])
        out.mkdir(parents=True, exist_ok=True)
        curves = learn(plan, seeds, out / "convergence.json")
    except (ValueError, HydraException) as error:
        print(f"convergence: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"convergence: {error}", file=sys.stderr)
        return 1
    text = written(curves, BATCH, plan.tv)
    (out / "convergence.md").write_text(text, encoding="utf-8")
    draw(curves, plan.tv, out / "convergence.png")
    print(text, end="")
    print(f"written to {out / 'convergence.md'}, .png and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
