"""How fast training with searchers is, beside training that samples for itself, and what asynchrony costs.

    python -m experiments.benchmarks.asynchrony out=report tasks=tokens,molecules,slow searchers=1,2 seeds=0,1

measures the costs of passing weights and groups around; then, each run in new processes, the time to a fixed KL of
expressions and to a fixed number of scaffolds of good molecules, with quick and with slow rewards; and simulates up to
64 searchers with what was measured. It writes ``asynchrony.md``, ``.png`` and ``.json``; what the JSON file there has
already is not measured again. The machine should have nothing else to do. ``steps``, ``megabytes=``, ``times`` and
options such as ``molecules.env.size=200`` make it smaller.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from experiments.benchmarks.asynchrony_costs import Transfer, of_size, of_task
from experiments.benchmarks.asynchrony_runs import Case, Measurement, apart, measured
from experiments.benchmarks.asynchrony_tables import Results, draw, written
from experiments.benchmarks.asynchrony_tasks import TASKS, Task
from experiments.build import checked
from experiments.reports.arguments import composed, numbers, options

DEFAULTS = {
    "out": ".",
    "tasks": "tokens,molecules,slow",
    "searchers": "1,2",
    "waiting": "4",  # further numbers of searchers, where they mostly wait
    "staleness": "4",
    "seeds": "0,1",
    "steps": "0",  # 0: each task's own
    "calibration": "60",  # updates of the run in which searcher and trainer take turns
    "megabytes": "20,500",
    "times": "7",
}


def cases(given: Mapping[str, str], overrides: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    """Every run: for each task and seed without and with searchers, and before, once, searcher and trainer in turns.

    Raises:
        ValueError: if an option does not fit.
    """
    searchers, waiting = numbers(given["searchers"], "searchers", 1), numbers(given["waiting"], "waiting", 1)
    seeds, staleness = numbers(given["seeds"], "seeds", 0), numbers(given["staleness"], "staleness", 1)
    steps, calibration = numbers(given["steps"], "steps", 0)[0], numbers(given["calibration"], "calibration", 3)[0]
    if 0 < steps < 3:
        raise ValueError(f"steps: expected at least 3, or 0 for each task's own, got {steps}")
    for name in chosen(given):
        task, own = TASKS[name], tuple(overrides.get(name, ()))
        total = steps or task.steps
        yield Case(name, task, 1, 0, min(total, calibration), seeds[0], own)
        for seed in seeds:
            yield Case(name, task, 0, 0, total, seed, own)
            for count in sorted(set(searchers + waiting * task.waits)):
                yield from (Case(name, task, count, late, total, seed, own) for late in staleness)


def chosen(given: Mapping[str, str]) -> list[str]:
    """Names of the tasks asked for.

    Raises:
        ValueError: if there is no such task.
    """
    names = given["tasks"].split(",")
    if unknown := [name for name in names if name not in TASKS]:
        raise ValueError(f"tasks: expected some of {', '.join(TASKS)} with commas between them, got {unknown[0]!r}")
    return list(dict.fromkeys(names))


def split(rest: Sequence[str]) -> dict[str, list[str]]:
    """Overrides for the runs of each task, from such as ``molecules.env.size=200``.

    Raises:
        ValueError: if one begins with no task.
    """
    found: dict[str, list[str]] = {name: [] for name in TASKS}
    for argument in rest:
        name, _, override = argument.partition(".")
        if name not in TASKS or not override:
            expected = f"the options {', '.join(DEFAULTS)}, or overrides such as molecules.env.size=200"
            raise ValueError(f"expected {expected}, got {argument}")
        found[name].append(override)
    return found


class Store:
    """What has been measured so far, in a file.

    Args:
        path: of the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"transfers": [], "runs": []}
        self.transfers = [Transfer(**t) for t in content["transfers"]]
        self.runs = [_measurement(m) for m in content["runs"]]

    def save(self) -> None:
        """Write all of it."""
        content = {"transfers": [asdict(t) for t in self.transfers], "runs": [asdict(m) for m in self.runs]}
        self.path.write_text(json.dumps(content, indent=1))


def _measurement(stored: dict[str, Any]) -> Measurement:
    case: dict[str, Any] = stored["case"]
    task: dict[str, Any] = case["task"]
    task["overrides"], case["overrides"] = tuple(task["overrides"]), tuple(case["overrides"])
    case["task"] = Task(**task)
    stored["case"] = Case(**case)
    stored["progress"] = [(step, value) for step, value in stored["progress"]]
    return Measurement(**stored)


def measure(store: Store, todo: Sequence[Case], sizes: Sequence[int], times: int) -> Results:
    """Measure what is not in the store yet, one thing after the other, telling about each."""
    tasks = {case.name: case for case in todo}
    wanted: list[tuple[str, Any]] = [
        *((name, (of_task, name, case.task, case.overrides, times)) for name, case in tasks.items()),
        *((f"{size} MB", (of_size, size, times)) for size in sizes),
    ]
    for name, call in wanted:
        if name not in {t.name for t in store.transfers}:
            store.transfers.append(apart(*call))
            store.save()
            print(f"costs of {name} measured", file=sys.stderr)
    for i, case in enumerate(todo, 1):
        if case not in {m.case for m in store.runs}:
            m = apart(measured, case)
            store.runs.append(m)
            store.save()
            pace = f"{m.seconds / len(m.steps):.3g} s per update, load {m.load:.1f}"
            print(f"{i}/{len(todo)} {case}: {m.setup:.0f} s until the first update, then {pace}", file=sys.stderr)
    kept = {t.name: t for t in store.transfers}
    found = {m.case: m for m in store.runs}
    return Results([kept[name] for name, _ in wanted], [found[case] for case in todo])


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit, 1 if a measurement fails."""
    try:
        given, rest = options(arguments, DEFAULTS)
        todo = list(cases(given, split(rest)))
        sizes, times = numbers(given["megabytes"], "megabytes", 1), numbers(given["times"], "times", 1)[0]
        for case in todo:
            checked(composed(case.config))
    except (ValueError, HydraException, ImportError) as error:
        print(f"asynchrony: {error}", file=sys.stderr)
        return 2
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    try:
        results = measure(Store(out / "asynchrony.json"), todo, sizes, times)
    except (RuntimeError, ValueError) as error:
        print(f"asynchrony: {error}", file=sys.stderr)
        return 1
    text = written(results)
    (out / "asynchrony.md").write_text(text, encoding="utf-8")
    draw(results, out / "asynchrony.png")
    print(text, end="")
    print(f"written to {out / 'asynchrony.md'}, .png and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
