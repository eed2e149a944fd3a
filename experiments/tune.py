"""Search for hyper-parameters with Optuna: ask for values, train, tell what came of them; resumable, with pruning.

    python -m experiments.tune trainer.lr=log:1e-4:1e-2 divergence=alpha divergence.alpha=range:0:1.2 \\
        sampler.batch_size=choice:32:64:128 trials=30 goal=eval/tv storage=sqlite:///tune.db out=tuned

An argument ``key=kind:…`` is searched (``range:low:high``, ``log:low:high``, ``whole:low:high``, ``choice:a:b:…``), the
others are overrides of ``gfn-train``. The goal is a metric of the last evaluation, the smaller the better (otherwise
``direction=maximize``); a trial that is behind the median of the others at an evaluation is given up. Several processes
may search at once in one storage, and the command, given again, goes on.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from experiments.build import build_parts, checked, make
from experiments.reports.arguments import composed, numbers, options
from experiments.schema import ConfigError
from experiments.trials import updates
from gfn import storage
from gfn.callbacks import line_of
from gfn.failures import NonFiniteError
from gfn.reporting import Report
from gfn.training import Trainer

KINDS = ("range", "log", "whole", "choice")
DEFAULTS = {
    "trials": "20", "goal": "eval/tv", "direction": "minimize",
    "storage": "", "study": "fgfn", "out": ".", "sampler_seed": "0",
}  # fmt: skip


def split(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """What is searched, by key, as kind and values; and the other overrides.

    Raises:
        ValueError: if nothing is searched, or the values do not suit the kind.
    """
    searched: dict[str, list[str]] = {}
    fixed: list[str] = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        kind, *values = value.split(":")
        if kind not in KINDS or not values:
            fixed.append(argument)
            continue
        if kind != "choice" and len(values) != 2:
            raise ValueError(f"{key}: expected {kind}:low:high, got {value}")
        searched[key] = [kind, *values]
    if not searched:
        raise ValueError(
            "nothing is searched; give some key as range:low:high, log:low:high, whole:low:high or choice:a:b"
        )
    return searched, fixed


def suggested(trial: Any, searched: Mapping[str, Sequence[str]]) -> list[str]:
    """Overrides with the values that a trial of Optuna proposes."""
    found: list[str] = []
    for key, (kind, *values) in searched.items():
        if kind == "choice":
            value = trial.suggest_categorical(key, values)
        elif kind == "whole":
            value = trial.suggest_int(key, int(values[0]), int(values[1]))
        else:
            value = trial.suggest_float(key, float(values[0]), float(values[1]), log=kind == "log")
        found.append(f"{key}={value}")
    return found


class Watch:
    """A callback that passes the goal on to Optuna at every evaluation, and remembers whether to give up."""

    def __init__(self, trial: Any, goal: str):
        self.trial, self.goal = trial, goal
        self.value: float | None = None
        self.pruned = False

    def start(self, step: int) -> None:
        pass

    def __call__(self, report: Report) -> None:
        if report.evaluation is None:
            return
        line = line_of(report)
        if self.goal not in line:
            raise ConfigError([f"goal: there is no {self.goal!r} among {', '.join(sorted(line))}"])
        self.value = float(line[self.goal])
        self.trial.report(self.value, report.step)
        self.pruned = bool(self.trial.should_prune()) and report.step < report.steps

    def wanted(self) -> bool:
        """Whether to stop."""
        return self.pruned

    def close(self) -> None:
        pass


def attempt(trial: Any, overrides: Sequence[str], goal: str) -> Watch:
    """Train a trial, until its end or until it is given up; its initial weights are those of ``seed``.

    Raises:
        ConfigError, HydraException: if the overrides do not fit.
        NonFiniteError: if the values make it diverge.
    """
    config = composed(overrides)
    config.trainer.steps = updates(config.trainer.steps)
    plain, watch = checked(config), Watch(trial, goal)
    parts = build_parts(plain)
    supplied = {**parts, "callbacks": [watch], "stop": watch.wanted}
    trainer: Trainer[Any] = make(plain["trainer"], supplied, "trainer")
    trainer.run()
    return watch


def search(given: Mapping[str, str], searched: Mapping[str, Sequence[str]], fixed: Sequence[str]) -> Any:
    """Ask, train and tell until the study has as many finished trials as wanted; the study."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if given["direction"] not in ("minimize", "maximize"):
        raise ValueError(f"direction: expected minimize or maximize, got {given['direction']}")
    direction: Any = given["direction"]
    (seed,), (wanted,) = numbers(given["sampler_seed"], "sampler_seed", 0), numbers(given["trials"], "trials", 1)
    study = optuna.create_study(
        storage=given["storage"] or None, study_name=given["study"], load_if_exists=True, direction=direction,
        sampler=optuna.samplers.TPESampler(seed=seed), pruner=optuna.pruners.MedianPruner(n_startup_trials=4),
    )  # fmt: skip
    state = optuna.trial.TrialState
    while sum(trial.state.is_finished() for trial in study.get_trials(deepcopy=False)) < wanted:
        trial = study.ask()
        overrides = suggested(trial, searched)
        try:
            watch = attempt(trial, [*fixed, *overrides], given["goal"])
        except (ConfigError, HydraException):
            study.tell(trial, state=state.FAIL)
            raise
        except NonFiniteError as error:
            study.tell(trial, state=state.FAIL)
            print(f"{trial.number}: {' '.join(overrides)}: {error}")
            continue
        study.tell(trial, watch.value, state=state.PRUNED if watch.pruned else state.COMPLETE)
        print(f"{trial.number}: {' '.join(overrides)}: {watch.value:.5g}{' (given up)' if watch.pruned else ''}")
    return study


def table(study: Any) -> str:
    """CSV: each trial with its state, value and parameters."""
    trials = study.get_trials(deepcopy=False)
    keys = list(dict.fromkeys(key for trial in trials for key in trial.params))
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["trial", "state", "value", *keys])
    for trial in trials:
        value = "" if trial.value is None else trial.value
        rows.writerow([trial.number, trial.state.name.lower(), value, *(trial.params.get(key, "") for key in keys)])
    return file.getvalue()


def main(arguments: Sequence[str]) -> int:
    """Search, write ``trials.csv`` and print the best; exit code 2 with a message for arguments that do not fit."""
    if importlib.util.find_spec("optuna") is None:
        print("tune: needs the package optuna: pip install 'fgfn[tune]'", file=sys.stderr)
        return 2
    try:
        given, rest = options(arguments, DEFAULTS)
        study = search(given, *split(rest))
    except (ValueError, HydraException) as error:
        print(f"tune: {error}", file=sys.stderr)
        return 2
    out = Path(given["out"])
    out.mkdir(parents=True, exist_ok=True)
    storage.replace(out / "trials.csv", table(study).encode())
    complete = [trial for trial in study.get_trials(deepcopy=False) if trial.state.name == "COMPLETE"]
    if complete:
        best = " ".join(f"{key}={value}" for key, value in study.best_params.items())
        print(f"best of {len(complete)} that were not given up: {given['goal']} {study.best_value:.5g} with {best}")
    print(f"written to {out / 'trials.csv'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
