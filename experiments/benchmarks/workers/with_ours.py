"""Hypergrids trained by this project, built from its configs and trained by its trainer."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks.grids_runs import built, load, weights
from experiments.benchmarks.workers.turns import Arrays, play


class Ours:
    """A run of ``gfn-train`` without evaluations and logs."""

    def __init__(self, task: Mapping[str, Any], given: Arrays | None):
        self.folder = tempfile.TemporaryDirectory()
        self.stop: Callable[[], bool] = lambda: True
        self.run = built(dict(task), Path(self.folder.name), lambda: self.stop())
        if given is not None:
            load(self.run, given)
        self.steps = 0
        self.run.trainer.objective.register_forward_pre_hook(self._count)
        self.versions = {"fgfn": version("fgfn"), "torch": version("torch")}

    def _count(self, module: torch.nn.Module, given: Sequence[Any]) -> None:
        self.steps += len(given[0].actions)

    def train(self, stop: Callable[[], bool]) -> None:
        self.stop = stop
        self.run.trainer.run()

    def weights(self) -> Arrays:
        return weights(self.run)


if __name__ == "__main__":
    play(Ours)
