"""How fast language models are trained here and by TRL's GRPO (von Werra et al., 2020), side by side.

    python -m experiments.benchmarks.language_models out=report rounds=3 cases=eos:lora:4,eos:full:4

trains SmolLM2-135M in two processes that take turns, one step each, on the same prompts with the same numbers of
completions, and writes ``language_models_speed.md`` and ``.json``. Times are CPU seconds of one thread. Both sides
write with the model as it is, so that lengths agree but for chance, and the first step of each is not counted.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from experiments.benchmarks import tuning
from experiments.benchmarks.tables import cell
from experiments.benchmarks.tuning import BACKWARD, FORWARD, GENERATION, OPTIMISER, REFERENCE, Case, Step
from experiments.reports.arguments import numbers, options

DEFAULTS = {"out": ".", "rounds": "3", "cases": "newline:lora:4,newline:lora:16,eos:lora:4,eos:full:4"}
SIDES: dict[str, Callable[[Case, int, Connection], None]] = {"ours": tuning.ours, "TRL": tuning.theirs}
PACKAGES = ("torch", "transformers", "peft", "trl")
UPDATE = (FORWARD, BACKWARD, OPTIMISER)
SHOWN = (GENERATION, *UPDATE, REFERENCE)
ABOUT = (
    "CPU seconds of one training step, one thread, float32; median (range) of the steps counted. Update is forward and "
    "loss, backward and optimiser. TRL trains without a reference, whose cost here stands apart and is in no ratio. "
    "TRL is told to keep activations, as is done here, instead of computing them again. Ratios are TRL's CPU "
    "seconds over ours, of medians."
)


@dataclass(frozen=True)
class Race:
    """The steps that each side took of one case, in order, by its name."""

    case: Case
    steps: Mapping[str, Sequence[Step]]
    load: float


def parsed(text: str) -> list[Case]:
    """Cases from a text such as ``eos:lora:4,newline:full:16``.

    Raises:
        ValueError: if it is no such text.
    """
    cases = list[Case]()
    for part in text.split(","):
        stop, _, rest = part.partition(":")
        trained, _, group = rest.partition(":")
        if stop not in ("newline", "eos") or trained not in ("lora", "full"):
            raise ValueError(f"cases: expected newline or eos, lora or full, and a number, as eos:lora:4, got {part!r}")
        cases.append(Case(stop, trained, numbers(group, "cases", 2)[0]))
    return cases


def raced(case: Case, rounds: int) -> Race:
    """Both sides in turns, in processes of their own; one more step each than are counted.

    Raises:
        RuntimeError: if a side dies; what it died of is on the standard error.
    """
    context = get_context("spawn")
    ends, processes = dict[str, Connection](), list[SpawnProcess]()
    steps: dict[str, list[Step]] = {name: [] for name in SIDES}
    for name in SIDES:
        ends[name], other = context.Pipe()
        processes.append(context.Process(target=_side, args=(name, case, rounds + 1, other), daemon=True))
        processes[-1].start()
        other.close()
    name = ""
    try:
        for _ in range(rounds + 1):
            for name, end in ends.items():
                end.send(None)
                steps[name].append(end.recv())
    except (EOFError, OSError) as error:
        raise RuntimeError(f"{name} died in the case {case}") from error
    finally:
        for end in ends.values():
            end.close()
        for process in processes:
            process.join()
    return Race(case, {name: some[1:] for name, some in steps.items()}, os.getloadavg()[0])


def _side(name: str, case: Case, steps: int, connection: Connection) -> None:
    torch.set_num_threads(1)
    SIDES[name](case, steps, connection)


def written(races: Sequence[Race], rounds: int) -> str:
    """Markdown: what each side took, and ratios."""
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    loads = [race.load for race in races]
    heading = (
        f"Training SmolLM2-135M on {tuning.PROMPTS} prompts of few-shot addition. {ABOUT} {rounds} steps each, in "
        f"turns. Python {platform.python_version()}, {packages}; {platform.machine()}, {os.cpu_count()} cores; load "
        f"average {min(loads):.1f}–{max(loads):.1f}."
    )
    head = ["case", "side", *SHOWN, "update", "wall, s", "tokens", "peak memory, MiB"]
    rows = [[_name(race.case), side, *_cells(some)] for race in races for side, some in race.steps.items()]
    ratios = [[_name(race.case), *_ratios(race)] for race in races]
    tables = [_table(head, rows), _table(["TRL / ours", "generation", "update", "both", "peak memory"], ratios)]
    return "\n\n".join([heading, *tables]) + "\n"


def _name(case: Case) -> str:
    kind = f"LoRA r{tuning.RANK}" if case.trained == "lora" else "full"
    return f"{kind}, K={case.group}, until {case.stop} or {case.max_tokens} tokens"


def _cpu(step: Step, labels: Sequence[str]) -> float:
    return sum(step.spent.get(label, 0.0) for label in labels)


def _cells(steps: Sequence[Step]) -> list[str]:
    parts = [cell([_cpu(step, [label]) for step in steps]) for label in SHOWN]
    parts += [cell([_cpu(step, UPDATE) for step in steps]), cell([step.wall for step in steps])]
    return [*parts, cell([step.tokens for step in steps]), f"{max(step.memory for step in steps):.0f}"]


def _ratios(race: Race) -> list[str]:
    def median(side: str, labels: Sequence[str]) -> float:
        return statistics.median(_cpu(step, labels) for step in race.steps[side])

    parts = [median("TRL", some) / median("ours", some) for some in ((GENERATION,), UPDATE, (GENERATION, *UPDATE))]
    memory = [max(step.memory for step in race.steps[side]) for side in ("TRL", "ours")]
    return [f"{ratio:.2f}" for ratio in (*parts, memory[0] / memory[1])]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows))


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit or no TRL, 1 if a side dies."""
    try:
        given, rest = options(arguments, DEFAULTS)
        if rest:
            raise ValueError(f"expected the options {', '.join(DEFAULTS)}, got {' '.join(rest)}")
        cases, rounds = parsed(given["cases"]), numbers(given["rounds"], "rounds", 1)[0]
        tuning.trl_package()
    except (ValueError, ImportError) as error:
        print(f"language_models: {error}", file=sys.stderr)
        return 2
    tuning.folder()  # converted before any clock runs
    try:
        races = [raced(case, rounds) for case in cases]
    except RuntimeError as error:
        print(f"language_models: {error}", file=sys.stderr)
        return 1
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    text = written(races, rounds)
    (out / "language_models_speed.json").write_text(json.dumps([asdict(race) for race in races], indent=1))
    (out / "language_models_speed.md").write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
