"""Runs of this project on hypergrids, as ``gfn-train`` builds them, and their weights by common names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from experiments.benchmarks.workers.turns import Arrays
from experiments.build import Run, build
from experiments.reports.arguments import composed

R0 = 0.1
BACKWARD = ("learned", "uniform")
NEVER = 1_000_000_000  # updates
Task = dict[str, Any]
COMMON = ("divergence=reverse_kl", "partition=learned", "partition.init=0.0")


@dataclass(frozen=True)
class Cell:
    """One thing to train: a grid of ``side`` points along ``ndim`` axes, a batch size, and a P_B."""

    side: int
    ndim: int
    batch: int
    backward: str

    @property
    def grid(self) -> str:
        """Such as ``8x4``."""
        return f"{self.side}x{self.ndim}"

    def __str__(self) -> str:
        return f"{self.grid}:{self.batch}:{self.backward}"


def config(task: Task) -> list[str]:
    """A task as one would type it after ``gfn-train``."""
    return [
        *COMMON,
        *(f"backward={task['backward']}", f"seed={task['seed']}"),
        *(f"env.side={task['side']}", f"env.ndim={task['ndim']}", f"env.reward.r0={task['r0']}"),
        *(f"sampler.batch_size={task['batch']}", f"sampler.seed={task['seed']}"),
        *(f"trainer.steps={NEVER}", f"trainer.save_every={NEVER}", "trainer.clip_grad_norm=null"),
        *(f"trainer.lr={task['lr']}", f"partition.lr={task['log_z_lr']}"),
        *task["config"],
    ]


def task_of(cell: Cell, config: Sequence[str] = (), rates: tuple[float, float] = (0.0, 0.0), seed: int = 0) -> Task:
    """What a side is told to train.

    Args:
        config: further overrides, for our side.
        rates: learning rates of networks and of log Z.
        seed: of weights and trajectories.
    """
    return {**vars(cell), "r0": R0, "lr": rates[0], "log_z_lr": rates[1], "seed": seed, "config": list(config)}


def unwatched(overrides: Sequence[str]) -> DictConfig:
    """The config of a training run with these overrides, without evaluations and logs; errors are Hydra's."""
    composition = composed(overrides)
    composition["evaluator"], composition["logger"] = None, {}
    return composition


def built(task: Task, folder: Path, stop: Callable[[], bool]) -> Run:
    """The run of a task, without evaluations and logs; ``stop`` ends it.

    Raises:
        ConfigError: if the config does not fit.
    """
    return build(unwatched(config(task)), folder, stop)


def _places(backward: bool) -> dict[str, tuple[str, str]]:
    """For each layer, by its common name: the part of a run that has it, and its name there."""
    layers = {"trunk.0": ("policy", "trunk.layers.0.0"), "trunk.1": ("policy", "trunk.layers.1.0")}
    layers["forward"] = ("policy", "head")
    return {**layers, "backward": ("backward", "head")} if backward else layers


def parameters(run: Run) -> dict[str, Tensor]:
    """What is trained in the networks of a run, and log Z, by their common names."""
    parts = {name: dict(run.parts[name].named_parameters()) for name in ("policy", "backward")}
    found: dict[str, Tensor] = {"log_z": run.parts["partition"].value}
    for name, (part, key) in _places("head.weight" in parts["backward"]).items():
        found |= {f"{name}.{kind}": parts[part][f"{key}.{kind}"] for kind in ("weight", "bias")}
    return found


def load(run: Run, given: Arrays) -> None:
    """Put weights into the networks of a run, and log Z."""
    for name, tensor in parameters(run).items():
        tensor.data.copy_(torch.from_numpy(given[name]))


def weights(run: Run) -> Arrays:
    """Those of the networks of a run, and log Z."""
    return {name: tensor.detach().numpy() for name, tensor in parameters(run).items()}
