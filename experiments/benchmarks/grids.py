"""How fast hypergrids are trained on here, by torchgfn and by gfnx with JAX, side by side.

    python -m experiments.benchmarks.grids out=report cells=8x4+20x4:16+256:learned windows=3 seconds=5

Each side trains in a process of its own, and they take turns. What is not here yet is installed first, each peer in an
environment of its own in the user's cache. ``peers=torchgfn,torchgfn-cached,gfnx,gfnx-flat`` chooses them, ``none``
leaves our side alone; other options are for the config of our side. It writes ``grids.md``, ``.png`` and ``.json``;
what the JSON file there has already is not measured again. Wall time says little on a machine that does other things.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import HydraException

from experiments.benchmarks.grids_cells import EVERYTHING, parsed, trained
from experiments.benchmarks.grids_gradients import gradient_error
from experiments.benchmarks.grids_races import Race, Store, raced
from experiments.benchmarks.grids_runs import Cell, config, task_of, unwatched
from experiments.benchmarks.grids_tables import draw, written
from experiments.benchmarks.peers import OURS, checked_sides
from experiments.build import checked
from experiments.reports.arguments import numbers, options

DEFAULTS = {
    "out": ".",
    "cells": EVERYTHING,
    "windows": "3",
    "seconds": "5",
    "peers": "torchgfn,gfnx,gfnx-flat",
}
LARGEST = 300_000  # steps of a batch whose gradient is computed a second time, in float64


def race_of(given: dict[str, str], rest: Sequence[str]) -> Race:
    """How to run cells, from options.

    Raises:
        ValueError: if an option does not fit.
    """
    sides = (OURS, *checked_sides(given["peers"]))
    windows, seconds = numbers(given["windows"], "windows", 1)[0], numbers(given["seconds"], "seconds", 0)[0]
    return Race(sides, windows, float(seconds), tuple(rest))


def errors_of(cells: Sequence[Cell], rest: Sequence[str], policies: Path, path: Path) -> dict[Cell, float]:
    """Error of our gradient for each cell, as kept in a file for this config, or measured now and kept there."""
    known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    for cell in cells:
        key = " ".join([str(cell), *rest])
        if key not in known and cell.batch * cell.side * cell.ndim <= 2 * LARGEST:
            known[key] = gradient_error(cell, trained(cell.side, cell.ndim, policies), rest)
            path.write_text(json.dumps(known, indent=1))
    return {cell: known[key] for cell in cells if (key := " ".join([str(cell), *rest])) in known}


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit, 1 if a policy cannot be trained."""
    try:
        given, rest = options(arguments, DEFAULTS)
        cells, race = parsed(given["cells"]), race_of(given, rest)
        for cell in cells:
            checked(unwatched(config(task_of(cell, rest))))
        out = Path(given["out"])
        out.mkdir(parents=True, exist_ok=True)
        errors = errors_of(cells, rest, out / "policies", out / "grids_gradients.json")
    except (ValueError, HydraException) as error:
        print(f"grids: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"grids: {error}", file=sys.stderr)
        return 1
    store = Store(out / "grids.json")
    raced(race, cells, store, out / "policies")
    records = [r for cell in cells for side in race.sides for r in store.records if (r.cell, r.side) == (cell, side)]
    text = written(records, errors)
    (out / "grids.md").write_text(text, encoding="utf-8")
    draw(records, out / "grids.png")
    print(text, end="")
    print(f"written to {out / 'grids.md'}, .png and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
