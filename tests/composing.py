"""Compose and train runs in the test's own process, as the commands do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from experiments.build import Run, build
from gfn.training import never

CONFIGS = Path(__file__).parents[1] / "configs"
SMALL = ("env.side=4", "policy.width=8", "sampler.batch_size=8", "trainer.steps=3", "logger=quiet", "evaluator.every=2")


def composed(*overrides: str, config: str = "train", run: str = "runs/test") -> DictConfig:
    """What Hydra makes of these overrides; keys that are not there yet are added, as on the command line."""
    with initialize_config_module("configs", version_base="1.3"):
        return compose(config, [*overrides, f"run={run}"] if config == "train" else list(overrides))


def built(directory: Path, *overrides: str) -> Run:
    """A run in ``directory``, checked and built."""
    return build(composed(*overrides, run=str(directory)), directory, never)


def leaves(node: Any, path: str = "") -> dict[str, Any]:
    """Every value of a nested config that is not itself a group, by its dotted key."""
    if isinstance(node, dict):
        return {k: v for key, value in node.items() for k, v in leaves(value, f"{path}.{key}" if path else key).items()}
    return {path: node}
