"""The composition root: from a config to a trainer. Everything is checked before anything is built.

Each group of the config becomes one object, in the order of ``STAGES``; a constructor that has a
parameter named like an earlier object (``env``, ``policy``, …) is given it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from omegaconf import DictConfig, OmegaConf

from experiments.schema import (
    CONTROL,
    ConfigError,
    fits,
    flat,
    parameter_types,
    problems_of,
    show,
    unknown,
    wants_function,
)
from experiments.shorthand import expand_schedules
from experiments.targets import locate
from gfn import processes
from gfn.environment import as_multimodal
from gfn.training import Callback, Trainer, never

STAGES = (
    "env",
    "policy",
    "backward",
    "balance",
    "flow",
    "divergence",
    "partition",
    "objective",
    "exploration",
    "sampler",
    "evaluator",
)
SETTINGS: dict[str, Any] = {
    "name": str,
    "seed": int,
    "threads": int,
    "device": str,
    "resume": Literal["auto", "never"],
    "run": str,
}


@dataclass(frozen=True)
class Run:
    """A run that is built and not yet started.

    Attributes:
        config: the checked config, plain values, short forms written out.
        parts: the object of each stage, by name.
        trainer: what trains them.
    """

    config: dict[str, Any]
    parts: dict[str, Any]
    trainer: Trainer[Any]


def checked(
    config: DictConfig,
    groups: tuple[str, ...] = (*STAGES, "trainer", "logger"),
    settings: Mapping[str, Any] = SETTINGS,
) -> dict[str, Any]:
    """The config as plain values, short forms of schedules written out.

    Args:
        config: what Hydra composed.
        groups: top-level keys that hold something to build.
        settings: the other top-level keys, with their types.

    Raises:
        ConfigError: with every problem of the whole tree.
    """
    try:
        plain = cast("dict[str, Any]", OmegaConf.to_container(config, resolve=True))
    except Exception as error:  # interpolation to something missing; omegaconf's message names both ends
        raise ConfigError([str(error).splitlines()[0]]) from error
    problems = _setting_problems(plain, groups, settings)
    steps = plain["trainer"].get("steps") if isinstance(plain.get("trainer"), Mapping) else None
    horizon = steps if isinstance(steps, int) else 1
    nodes = {name: expand_schedules(plain[name], horizon) for name in groups if name in plain}
    for name, node in nodes.items():
        for child, path in _nodes_of(name, node):
            if path.startswith("logger.") and not (isinstance(child, Mapping) and "_target_" in child):
                problems.append(
                    f"{path}: nothing says what this is; choose an option (logger=…) or give {path}._target_"
                )
            problems += problems_of(child, path, _supplied(name))
    if problems:
        raise ConfigError(problems)
    return plain | nodes


def _nodes_of(name: str, node: Any) -> list[tuple[Any, str]]:
    if name == "logger" and isinstance(node, Mapping):
        return [(child, f"logger.{key}") for key, child in node.items()]
    return [(node, name)]


def require_settings(config: DictConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config that holds settings only, checked; raises ConfigError with every problem."""
    return checked(config, (), settings)


def _setting_problems(plain: Mapping[str, Any], groups: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for key, value in plain.items():
        if key in settings:
            if value == "???":
                problems.append(f"{key}: a value is missing; give it as {key}=…")
            elif not fits(value, settings[key]):
                problems.append(f"{key}: expected {show(settings[key])}, got {value!r}")
        elif key in groups:
            if isinstance(value, Mapping) and key != "logger" and value and "_target_" not in value:
                problems.append(f"{key}: nothing says what this is; choose an option ({key}=…) or give {key}._target_")
            elif value is not None and not isinstance(value, Mapping):
                problems.append(f"{key}: expected a group of values, got {value!r}; choose an option with {key}=…")
        else:
            problems.append(f"{key}: {unknown(key, [*settings, *groups], 'the config')}")
    for key in ("threads", "n", "n_samples"):
        if isinstance(plain.get(key), int) and plain[key] < 1:
            problems.append(f"{key}: expected at least 1, got {plain[key]}")
    return problems


def _supplied(stage: str) -> frozenset[str]:
    """Names of the objects that exist when a stage is built."""
    if stage == "trainer":
        return frozenset({"objective", "sampler", "evaluator", "callbacks", "checkpoints", "stop"})
    if stage == "sampler":
        return frozenset({*STAGES[: STAGES.index(stage)], "stop"})
    if stage == "logger":
        return frozenset({"mode_counts", "hyperparameters"})
    return frozenset(STAGES[: STAGES.index(stage)])


def make(node: Any, supplied: Mapping[str, Any], path: str) -> Any:
    """Build a node and all nodes below it.

    Raises:
        ConfigError: if a constructor refuses its values; the message names the place.
    """
    if isinstance(node, list):
        return [make(value, supplied, f"{path}[{i}]") for i, value in enumerate(cast("list[Any]", node))]
    if not isinstance(node, Mapping):
        return node
    if "_target_" not in node:
        return {key: make(value, supplied, f"{path}.{key}") for key, value in node.items()} or None
    target: Callable[..., Any] = locate(node["_target_"])
    hints = parameter_types(target)
    arguments: dict[str, Any] = {}
    for key, value in node.items():
        if key not in CONTROL:
            arguments[key] = _argument(value, hints.get(key), supplied, f"{path}.{key}")
    for key in inspect.signature(target).parameters:
        if key in supplied and key not in arguments:
            arguments[key] = supplied[key]
    if node.get("_partial_"):
        return partial(target, **arguments)
    try:
        return target(**arguments)
    except ConfigError:
        raise
    except (ValueError, TypeError, FileNotFoundError, ImportError) as error:
        raise ConfigError([f"{path}: {error}"]) from error


def _argument(value: Any, hint: Any, supplied: Mapping[str, Any], path: str) -> Any:
    if isinstance(value, str) and hint is not None:
        if hint is Path or (Path in get_args(hint) and str not in get_args(hint)):
            return Path(value)
        if wants_function(hint):
            return locate(value)
    return make(value, supplied, path)


def build_parts(config: Mapping[str, Any], stop: Callable[[], bool] = never) -> dict[str, Any]:
    """The object of each stage of a checked config; the initial weights depend on ``seed`` alone.

    Args:
        config: checked, plain values.
        stop: for samplers that wait.
    """
    parts: dict[str, Any] = {}
    with torch.random.fork_rng():
        torch.manual_seed(config["seed"])
        for stage in STAGES:
            part = make(config.get(stage), {**parts, "stop": stop} if stage == "sampler" else parts, stage)
            if stage == "env" or isinstance(part, torch.nn.Module):
                part = part.to(config["device"])
            parts[stage] = part
            if stage == "env":
                torch.manual_seed(config["seed"])  # a reward may draw while it loads a network, the first time only
    try:
        parts["objective"].check_group_size(parts["sampler"].group_size)
        parts["objective"].check_direction(parts["sampler"].forward)
    except ValueError as error:
        raise ConfigError([f"objective: {error}"]) from error
    return parts


def build(config: DictConfig, run_dir: Path, stop: Callable[[], bool]) -> Run:
    """Check a config and build the run it describes.

    Raises:
        ConfigError: with every problem found, before anything is built.
    """
    plain = checked(config)
    torch.set_num_threads(plain["threads"])
    if processes.rank() > 0:
        plain = _of_another_process(plain)
    parts = build_parts(plain, stop)
    modal = as_multimodal(parts["env"])
    counts = modal.mode_counts if modal is not None else {}
    reporting = {"mode_counts": counts, "hyperparameters": {k: v for k, v in flat(plain).items() if k != "run"}}
    logger: Mapping[str, Any] = plain.get("logger") or {}
    callbacks: list[Callback] = [make(node, reporting, f"logger.{key}") for key, node in logger.items()]
    supplied = {**parts, "callbacks": callbacks, "checkpoints": run_dir / "checkpoints", "stop": stop}
    return Run(plain, parts, make(plain["trainer"], supplied, "trainer"))


def _of_another_process(plain: dict[str, Any]) -> dict[str, Any]:
    """The config of a process that is not the first: it samples with seeds of its own and reports nothing."""

    def reseeded(node: Any) -> Any:
        if isinstance(node, Mapping):
            items = cast("Mapping[str, Any]", node).items()
            return {k: v + 1_000_003 * processes.rank() if k == "seed" else reseeded(v) for k, v in items}
        return [reseeded(value) for value in cast("list[Any]", node)] if isinstance(node, list) else node

    return {**plain, "sampler": reseeded(plain["sampler"]), "evaluator": None, "logger": {}}
