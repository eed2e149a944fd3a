"""How fast molecules are sampled and trained on, and what the time goes into.

    python -m experiments.benchmarks.synthesis out=report sizes=1000,5000,20000,all workers=0,1,2 seeds=0,1,2

measures each case in a new process, from tables that are empty but for the survey of the library, and writes
``synthesis_speed.md``, ``.png`` and ``.json``. Times are CPU seconds of all processes: on a machine that does
other things too they are up to 40 % too high, and wall time says little.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from hydra.errors import HydraException

from experiments.benchmarks.measuring import SAMPLING, Case, Measurement, apart
from experiments.benchmarks.tables import EXACT, KNOWN, LEARNED, Results, cpu_ms, draw, per_wall_second, written
from experiments.build import checked
from experiments.reports.arguments import composed, numbers, options

DEFAULTS = {
    "out": ".",
    "blocks": "synspace",
    "sizes": "1000,5000,20000,all",
    "workers": "0,1,2",
    "seeds": "0,1,2",
    "batches": "8",
}
MAIN = 5000  # blocks for which there are goals


def cases(given: Mapping[str, str]) -> Iterator[Case]:
    """Every case to measure: sizes with the fewest workers, and at one size all workers and kinds of P_B.

    Raises:
        ValueError: if an option is no list of numbers.
    """
    sizes = [None if text == "all" else numbers(text, "sizes", 2)[0] for text in given["sizes"].split(",")]
    workers, seeds = sorted(numbers(given["workers"], "workers", 0)), numbers(given["seeds"], "seeds", 0)
    batches = numbers(given["batches"], "batches", 1)[0]
    main = main_size(sizes)
    for seed in seeds:
        for size in dict.fromkeys(sizes):
            for count in workers if size == main else workers[:1]:
                kinds = (SAMPLING, KNOWN, EXACT, *([LEARNED] if (size, count) == (main, workers[0]) else []))
                yield from (Case(kind, given["blocks"], size, count, batches, seed) for kind in kinds)


def main_size(sizes: Sequence[int | None]) -> int | None:
    """The size at which everything is measured: 5000 if it is among them, otherwise the first."""
    return MAIN if MAIN in sizes else sizes[0]


def run(todo: Sequence[Case]) -> list[Measurement]:
    """Measure one case after the other, telling about each; every library is surveyed before."""
    for size in dict.fromkeys(case.size for case in todo):
        apart(replace(todo[0], kind=SAMPLING, size=size, workers=0, batches=1))
    found = list[Measurement]()
    for i, case in enumerate(todo, 1):
        m = apart(case)
        print(
            f"{i}/{len(todo)} {case.kind}: {m.n_blocks} blocks, {case.workers} workers, seed {case.seed}: "
            f"{cpu_ms(m):.2f} CPU-ms per trajectory, {per_wall_second(m):.0f} trajectories/s, load {m.load:.1f}",
            file=sys.stderr,
        )
        found.append(m)
    return found


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit, 1 if a measurement fails."""
    try:
        given, rest = options(arguments, DEFAULTS)
        if rest:
            raise ValueError(f"expected the options {', '.join(DEFAULTS)}, got {' '.join(rest)}")
        todo = list(cases(given))
        for case in todo:
            checked(composed(case.overrides))
    except (ValueError, HydraException) as error:
        print(f"synthesis: {error}", file=sys.stderr)
        return 2
    try:
        results = Results(run(todo), main_size([case.size for case in todo]), min(case.workers for case in todo))
    except (RuntimeError, ValueError) as error:
        print(f"synthesis: {error}", file=sys.stderr)
        return 1
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    text = written(results)
    (out / "synthesis_speed.json").write_text(json.dumps([asdict(m) for m in results.measurements], indent=1))
    (out / "synthesis_speed.md").write_text(text, encoding="utf-8")
    draw(results, out / "synthesis_speed.png")
    print(text, end="")
    print(f"written to {out / 'synthesis_speed.md'}, .png and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
