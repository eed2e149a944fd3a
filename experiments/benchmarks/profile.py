"""What an iteration of training spends its time on, in each environment.

    python -m experiments.benchmarks.profile out=report cases=hypergrid,bits,synthesis,tokens iterations=20

trains each a few iterations in a process of its own, after some that do not count, and writes ``profile.md`` and
``.json``. CPU time counts for the innermost of the calls that are watched; watching costs a few microseconds a call.
Options such as ``hypergrid.sampler.batch_size=256`` are for the config of one case.
"""

from __future__ import annotations

import inspect
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from hydra.errors import HydraException

from experiments.benchmarks.clock import Clock
from experiments.benchmarks.grids_runs import NEVER, unwatched
from experiments.benchmarks.tables import table
from experiments.build import Run, build, checked
from experiments.reports.arguments import numbers, options
from gfn.training import never

DEFAULTS = {"out": ".", "cases": "hypergrid,bits,synthesis,tokens", "iterations": "20"}
CASES = {
    "hypergrid": ("experiment=grid/tb_8x4",),
    "bits": ("experiment=bits/append_120",),
    "synthesis": ("experiment=synthesis/qed", "env.size=1000", "env.workers=0"),
    "tokens": ("experiment=tokens/expressions",),
}
UNTIMED = 5  # iterations before
ENVIRONMENT, FORWARD, GRADIENT = "environment", "networks", "gradient"
SAMPLING, LOSS, OPTIMIZER, REST = "sampling", "loss", "optimizer", "bookkeeping"
LABELS = (ENVIRONMENT, FORWARD, GRADIENT, SAMPLING, LOSS, OPTIMIZER, REST)
ABOUT = (
    "Share of the CPU time of a training iteration, in percent. Environment: steps, masks, encodings and rewards; "
    "networks: their passes, in sampling and in scoring; gradient: the backward pass; sampling: drawing of actions and "
    "their log-probabilities; loss: all that scoring does besides; bookkeeping: rollouts without the parts before, "
    "checks and reports."
)


@dataclass(frozen=True)
class Profile:
    """What iterations of one case took.

    Attributes:
        case: its name.
        overrides: its config.
        iterations, trajectories, steps: how many were timed.
        spent: CPU seconds, by label.
        load: the machine's load average.
    """

    case: str
    overrides: tuple[str, ...]
    iterations: int
    trajectories: int
    steps: int
    spent: Mapping[str, float]
    load: float


def measured(case: str, overrides: Sequence[str], iterations: int) -> Profile:
    """Measure in this process.

    Raises:
        ConfigError: if the config does not fit.
    """
    torch.set_num_threads(1)
    sizes = list[tuple[int, int]]()
    with tempfile.TemporaryDirectory() as folder, Clock() as clock:
        known = _built(overrides, Path(folder) / "first")
        _watch_classes(clock, known)  # networks keep methods of the environment from when they are made
        run = _built(overrides, Path(folder) / "second")
        _watch_objects(clock, run)
        run.trainer.objective.register_forward_pre_hook(
            lambda _, given: sizes.append((len(given[0]), len(given[0].actions)))
        )
        run.trainer.run()
        clock.spent.clear()
        sizes.clear()
        run.trainer.steps += iterations
        before = time.process_time()
        clock.around(REST, run.trainer.run)()
        total = time.process_time() - before
    spent = {label: clock.spent.get(label, 0.0) for label in LABELS}
    spent[REST] = total - sum(spent.values()) + spent[REST]
    return Profile(
        case,
        tuple(overrides),
        iterations,
        sum(trajectories for trajectories, _ in sizes),
        sum(steps for _, steps in sizes),
        spent,
        os.getloadavg()[0],
    )


def _config(overrides: Sequence[str]) -> list[str]:
    return [*overrides, f"trainer.steps={UNTIMED}", f"trainer.save_every={NEVER}"]


def _built(overrides: Sequence[str], folder: Path) -> Run:
    return build(unwatched([*_config(overrides), f"run={folder}"]), folder, never)


def _watch_classes(clock: Clock, run: Run) -> None:
    env, policy = run.parts["env"], run.parts["policy"]
    for name in ("reset", "step", "undo", "is_initial", "is_terminal", "log_reward", "log_potential"):
        _watch_method(clock, type(env), name, ENVIRONMENT)
    for name in ("forward_mask", "backward_mask", "encode"):
        _watch_method(clock, type(env), name, ENVIRONMENT)
    for name in ("sample", "log_prob"):
        _watch_method(clock, type(policy.distribution(env.reset(1))), name, SAMPLING)
    _watch_method(clock, torch.Tensor, "backward", GRADIENT)


def _watch_method(clock: Clock, owner: type, name: str, label: str) -> None:
    if inspect.isfunction(getattr(owner, name, None)):
        clock.watch(owner, name, label)


def _watch_objects(clock: Clock, run: Run) -> None:
    parts: dict[str, Any] = run.parts
    modules = [part for name in ("policy", "backward", "flow") if isinstance(part := parts[name], torch.nn.Module)]
    for module in dict.fromkeys(child for part in modules for child in part.children()):
        clock.watch(module, "forward", FORWARD)
    network: Any = getattr(parts["env"], "network", None)
    if network is not None:  # of reactions, whose chemistry is done elsewhere
        clock.watch(network.workers, "ask", ENVIRONMENT)
    clock.watch(run.trainer.objective, "forward", LOSS)
    clock.watch(run.trainer.optimizer, "step", OPTIMIZER)


def apart(case: str, overrides: Sequence[str], iterations: int) -> Profile:
    """Measure in a new process.

    Raises:
        ConfigError: if the config does not fit.
        RuntimeError: if the process dies.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measured, case, overrides, iterations).result()


def written(profiles: Sequence[Profile]) -> str:
    """Markdown: shares and totals, a column for each case."""
    loads = [p.load for p in profiles]
    heading = (
        f"{ABOUT} {profiles[0].iterations} iterations after {UNTIMED} that do not count. Python "
        f"{platform.python_version()}, torch {torch.__version__}; {platform.machine()}, one thread; load average "
        f"{min(loads):.1f}–{max(loads):.1f}."
    )
    totals = [sum(p.spent.values()) for p in profiles]
    some = list(zip(profiles, totals, strict=True))
    rows = [[label, *(f"{100 * p.spent[label] / total:.0f}" for p, total in some)] for label in LABELS]
    rows.append(["CPU-ms per iteration", *(f"{1000 * total / p.iterations:.3g}" for p, total in some)])
    rows.append(["trajectories per iteration", *(f"{p.trajectories / p.iterations:.3g}" for p in profiles)])
    rows.append(["steps per trajectory", *(f"{p.steps / p.trajectories:.3g}" for p in profiles)])
    configs = [f"- {p.case}: `{' '.join(p.overrides)}`" for p in profiles]
    return "\n\n".join([heading, table(["%", *(p.case for p in profiles)], rows), "\n".join(configs)]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 2 with a message for options that do not fit, 1 if a measurement fails."""
    try:
        given, rest = options(arguments, DEFAULTS)
        names, iterations = given["cases"].split(","), numbers(given["iterations"], "iterations", 1)[0]
        if unknown := [name for name in names if name not in CASES]:
            raise ValueError(f"cases: expected some of {', '.join(CASES)}, got {unknown[0]!r}")
        if strange := [option for option in rest if option.partition(".")[0] not in names]:
            raise ValueError(f"expected the options {', '.join(DEFAULTS)}, or those of a case, got {strange[0]}")
        own = {n: [o.removeprefix(f"{n}.") for o in rest if o.startswith(f"{n}.")] for n in names}
        todo = {name: (*CASES[name], *own[name]) for name in names}
        for overrides in todo.values():
            checked(unwatched(_config(overrides)))
    except (ValueError, HydraException) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 2
    try:
        profiles = [apart(name, overrides, iterations) for name, overrides in todo.items()]
    except (RuntimeError, ValueError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 1
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    text = written(profiles)
    (out / "profile.json").write_text(json.dumps([asdict(p) for p in profiles], indent=1))
    (out / "profile.md").write_text(text, encoding="utf-8")
    print(text, end="")
    print(f"written to {out / 'profile.md'} and .json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
