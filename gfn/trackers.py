"""Callbacks for trackers of experiments, each an extra that is imported when a run begins: W&B and MLflow."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from gfn.callbacks import line_of
from gfn.examples import Example, table
from gfn.reporting import Report

KEPT = 100  # parameters that MLflow takes at once


def _require(package: str, extra: str, what: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{what} needs the package {package}: pip install 'fgfn[{extra}]'")


def _require_positive(what: str, every: int) -> None:
    if every < 1:
        raise ValueError(f"{what}: every must be at least 1, got {every}")


class WandB:
    """Metrics, hyper-parameters and tables of samples for Weights & Biases.

    A run directory is always the same run there, so that a resumed one goes on with it; steps that are there
    already are left as they are.

    Args:
        directory: the run directory; what is not sent yet lies in its folder ``wandb``.
        hyperparameters: by dotted key.
        project: there.
        name: of the run there; default, one that W&B makes up.
        mode: ``offline`` keeps everything for ``wandb sync``, ``online`` sends it, ``disabled`` does nothing.
        every: updates between lines; every evaluation has one.

    Raises:
        ImportError: without the extra ``wandb``.
        ValueError: if ``every`` is not positive.
    """

    def __init__(
        self,
        directory: Path,
        hyperparameters: Mapping[str, Any],
        project: str = "fgfn",
        name: str | None = None,
        mode: Literal["online", "offline", "disabled"] = "offline",
        every: int = 10,
    ):
        _require("wandb", "wandb", "logger=wandb")
        _require_positive("WandB", every)
        self.directory, self.hyperparameters = directory, hyperparameters
        self.project, self.name, self.every = project, name, every
        self.mode: Literal["online", "offline", "disabled"] = mode
        self.run: Any = None

    def start(self, step: int) -> None:
        import wandb

        self.directory.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=self.project,
            name=self.name,
            id=hashlib.sha256(str(self.directory.resolve()).encode()).hexdigest()[:16],
            resume="allow",
            mode=self.mode,
            dir=str(self.directory),
            config=dict(self.hyperparameters),
            settings=wandb.Settings(silent=True, disable_git=True, save_code=False),
        )

    def __call__(self, report: Report) -> None:
        if report.step % self.every and report.evaluation is None:
            return
        line = line_of(report)
        if report.examples:
            line["samples"] = _wandb_table(report.examples)
        self.run.log(line, step=report.step)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
            self.run = None


def _wandb_table(shown: Sequence[Example]) -> Any:
    import wandb

    rows: list[Any] = [["best" if one.best else "random", one.log_reward, one.state] for one in shown]
    return wandb.Table(columns=["chosen", "log_reward", "state"], data=rows)


class MLflow:
    """Metrics, hyper-parameters and tables of samples for MLflow.

    The number of the run there is kept in the run directory's ``mlflow_run_id``, so that a resumed run goes on
    with it; steps that are there already are not written again.

    Args:
        directory: the run directory.
        hyperparameters: by dotted key.
        uri: of the server or the store; a folder is one of files.
        experiment: there, made if there is none of that name.
        name: of the run there.
        every: updates between lines; every evaluation has one.

    Raises:
        ImportError: without the extra ``mlflow``.
        ValueError: if ``every`` is not positive.
    """

    def __init__(
        self,
        directory: Path,
        hyperparameters: Mapping[str, Any],
        uri: str = "mlruns",
        experiment: str = "fgfn",
        name: str | None = None,
        every: int = 10,
    ):
        _require("mlflow", "mlflow", "logger=mlflow")
        _require_positive("MLflow", every)
        self.directory, self.hyperparameters = directory, hyperparameters
        self.uri, self.experiment, self.name, self.every = uri, experiment, name, every
        self.client: Any = None
        self.run_id, self.known = "", -1

    def start(self, step: int) -> None:
        if "://" not in self.uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which MLflow asks for since 3.13
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        uri = self.uri if "://" in self.uri else Path(self.uri).resolve().as_uri()
        self.client = MlflowClient(tracking_uri=uri)
        self.directory.mkdir(parents=True, exist_ok=True)
        kept = self.directory / "mlflow_run_id"
        self.run_id = kept.read_text(encoding="utf-8").strip() if kept.is_file() else ""
        if self.run_id:
            with suppress(MlflowException):  # another store, or one that was emptied, has no such run
                history = self.client.get_metric_history(self.run_id, "loss")
                self.known = max((metric.step for metric in history), default=-1)
                self.client.update_run(self.run_id, status="RUNNING")
                return
        self._begin(kept)

    def _begin(self, kept: Path) -> None:
        from mlflow.entities import Param

        found = self.client.get_experiment_by_name(self.experiment)
        experiment = found.experiment_id if found is not None else self.client.create_experiment(self.experiment)
        self.run_id, self.known = self.client.create_run(experiment, run_name=self.name).info.run_id, -1
        kept.write_text(self.run_id + "\n", encoding="utf-8")
        parameters = [Param(_allowed(key), str(value)[:6000]) for key, value in self.hyperparameters.items()]
        for first in range(0, len(parameters), KEPT):
            self.client.log_batch(self.run_id, params=parameters[first : first + KEPT])

    def __call__(self, report: Report) -> None:
        if report.step <= self.known or (report.step % self.every and report.evaluation is None):
            return
        import time

        from mlflow.entities import Metric

        now = int(1000 * time.time())
        values = {_allowed(name): value for name, value in line_of(report).items() if name != "step"}
        self.client.log_batch(self.run_id, metrics=[Metric(k, float(v), now, report.step) for k, v in values.items()])
        if report.examples:
            self.client.log_text(self.run_id, table(report.examples), "samples.md")

    def close(self) -> None:
        if self.client is not None:
            self.client.set_terminated(self.run_id)
            self.client = None


def _allowed(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_"))
