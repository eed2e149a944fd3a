"""How the cost of a trajectory grows with batch size, grid size, length of sequences and number of blocks.

    python -m experiments.benchmarks.scaling out=report axes=batch,side,length,blocks windows=3 seconds=3

trains each point for so many windows, in a process of its own, and writes ``scaling.md``, ``.png`` and ``.json``; what
the JSON file there has already is not measured again. On grids policies are trained ones and stay as they are (see
:mod:`experiments.benchmarks.grids`), so that trajectories have the length of those to samples of the target; elsewhere
policies are fresh. Options such as ``side=8,16`` choose the values of an axis.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.benchmarks.competitors import Window
from experiments.benchmarks.grids_cells import trained
from experiments.benchmarks.grids_runs import NEVER, Cell, config, load, task_of, unwatched
from experiments.benchmarks.scaling_tables import Growth, Sample, draw, written
from experiments.benchmarks.workers.turns import Watch, peak_memory
from experiments.build import build
from experiments.reports.arguments import numbers, options

AXES = {
    "batch": "4,16,64,256,1024,4096",
    "side": "8,16,32,64,128",
    "length": "32,64,128,256,512",
    "blocks": "1000,5000,20000",
}
ABOUT = {
    "batch": "hypergrid 8⁴, learned P_B, trained policy",
    "side": "hypergrid in two dimensions, batch 64, learned P_B, trained policy",
    "length": "bit sequences of so many bits in words of one, from left to right, batch 16, fresh policy",
    "blocks": "molecules from so many blocks of synspace, reward QED, known edges, batch 64, fresh policy",
}
DEFAULTS = {"out": ".", "axes": ",".join(AXES), "windows": "3", "seconds": "3", **AXES}
BITS = ("experiment=bits/append_120", "env.word=1", "env.modes=4", "env.radius=4")
MOLECULES = ("experiment=synthesis/qed", "backward=known_edges", "env.blocks=synspace", "env.workers=0")


def overrides_of(axis: str, value: int) -> tuple[list[str], Cell | None]:
    """The config of a point of an axis, and its cell if it is on a grid."""
    if axis in ("batch", "side"):
        cell = Cell(8, 4, value, "learned") if axis == "batch" else Cell(value, 2, 64, "learned")
        return config(task_of(cell)), cell
    own = [*BITS, f"env.bits={value}"] if axis == "length" else [*MOLECULES, f"env.size={value}"]
    steps = [f"trainer.steps={NEVER}", f"trainer.save_every={NEVER}"]
    return [*own, *steps], None


def measured(axis: str, value: int, windows: int, seconds: float, weights: Path | None) -> list[Window]:
    """Measure one point in this process, after one update that does not count.

    Raises:
        ConfigError: if the config does not fit.
    """
    torch.set_num_threads(1)
    overrides, _ = overrides_of(axis, value)
    watch, counted, found = Watch(0.0, 1), [0, 0], list[Window]()
    with tempfile.TemporaryDirectory() as folder:
        run = build(unwatched([*overrides, f"run={folder}"]), Path(folder), lambda: watch())
        if weights is not None:
            load(run, dict(np.load(weights)))

        def count(_: torch.nn.Module, given: Sequence[Any]) -> None:
            counted[0] += len(given[0])
            counted[1] += len(given[0].actions)

        run.trainer.objective.register_forward_pre_hook(count)
        run.trainer.run()
        for _ in range(windows):
            counted[:] = [0, 0]
            watch = Watch(seconds, sys.maxsize)
            run.trainer.run()
            found.append(Window(counted[0], watch.cpu, watch.wall, counted[1], peak_memory()))
    return found


def apart(axis: str, value: int, windows: int, seconds: float, weights: Path | None) -> list[Window]:
    """Measure in a new process.

    Raises:
        ConfigError: if the config does not fit.
        RuntimeError: if the process dies.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, axis, value, windows, seconds, weights).result()


def grown(given: Mapping[str, str], out: Path) -> list[Growth]:
    """Every axis asked for, measured where the JSON file has nothing yet.

    Raises:
        ConfigError: if a config does not fit.
        RuntimeError: if a policy cannot be trained, or a process dies.
    """
    path = out / "scaling.json"
    known: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}
    windows, seconds = numbers(given["windows"], "windows", 1)[0], numbers(given["seconds"], "seconds", 0)[0]
    growths = list[Growth]()
    for axis in given["axes"].split(","):
        samples = list[Sample]()
        for value in numbers(given[axis], axis, 1):
            key = f"{axis}={value}"
            if key not in known:
                _, cell = overrides_of(axis, value)
                weights = None if cell is None else trained(cell.side, cell.ndim, out / "policies")
                known[key] = [asdict(w) for w in apart(axis, value, windows, seconds, weights)]
                path.write_text(json.dumps(known, indent=1))
            samples.append(Sample(value, tuple(Window(**w) for w in known[key])))
        growths.append(Growth(axis, ABOUT[axis], tuple(samples)))
    return growths


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit, 1 if a measurement fails."""
    try:
        given, rest = options(arguments, DEFAULTS)
        if rest:
            raise ValueError(f"expected the options {', '.join(DEFAULTS)}, got {' '.join(rest)}")
        if unknown := [axis for axis in given["axes"].split(",") if axis not in AXES]:
            raise ValueError(f"axes: expected some of {', '.join(AXES)}, got {unknown[0]!r}")
        for axis in AXES:
            numbers(given[axis], axis, 1)
        out = Path(given["out"])
        out.mkdir(parents=True, exist_ok=True)
        growths = grown(given, out)
    except ValueError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    text = written(growths)
    (out / "scaling.md").write_text(text, encoding="utf-8")
    draw(growths, out / "scaling.png")
    print(text, end="")
    print(f"written to {out / 'scaling.md'}, .png and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
