"""Run directories: what one holds, how to go on with one, and how to open a finished one.

config.yaml       the whole config, as it was checked
overrides.txt     what was typed on the command line
metrics.jsonl     one line every few updates and for every evaluation
checkpoints/      the newest ones
samples.md        some of what the latest evaluation sampled, the best and others
tensorboard/      the same metrics as events
figures/*.png     drawn at the end
README.md         how the run came to be and how it ended
.lock             which process is at work here
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from experiments.build import Run, build_parts, checked
from experiments.export import WEIGHTS, weights_of
from experiments.schema import flat
from experiments.targets import apart_from
from gfn import checkpoint, processes, storage
from gfn.policies import Prior
from gfn.reporting import Report

# Keys that may differ between the start of a run and its continuation without changing what was already computed.
FREE = (
    "run", "resume", "name", "threads", "device", "logger", "evaluator", "trainer.save_every", "trainer.keep",
    "sampler.engine",
)  # fmt: skip
DEEPEST = 50  # levels of a config
SEAL = "# SHA-256 of all below: "
DIGEST = re.compile("[0-9a-f]{32}")  # half of one, so that one with damage is known as well


class RunError(RuntimeError):
    """A run directory is not what a command needs."""


def prepare(run: Run, directory: Path, overrides: list[str]) -> None:
    """Resume from the directory's newest sound checkpoint if there is one, then write down what is about to run.

    Raises:
        RunError: if the directory holds another run, or any run and ``resume=never``.
    """
    stored = directory / "config.yaml"
    existing = bool(checkpoint.all_in(directory / "checkpoints"))
    if existing and run.config["resume"] == "never":
        raise RunError(f"{directory} already holds a run and resume=never; choose another directory, or resume=auto")
    if existing and stored.is_file() and processes.rank() == 0:
        _require_same(stored_config(directory), run.config, directory)
    resumed = run.trainer.resume()
    if processes.rank() > 0:
        return
    if resumed:
        print(f"going on with {directory} after step {run.trainer.step}")
    text = yaml.dump(run.config, Dumper=_Plain, sort_keys=False, allow_unicode=True)
    storage.replace(stored, _seal(text).encode(), text.encode())
    storage.replace(directory / "overrides.txt", "".join(f"{line}\n" for line in _latest(overrides)).encode())


def _seal(text: str) -> str:
    return f"{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n"


class _Plain(yaml.SafeDumper):
    """Writes a value that occurs twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def stored_config(directory: Path) -> dict[str, Any]:
    """The config of a run directory as plain values. It may be a stranger's: nothing in it is looked up or called.

    Raises:
        RunError: if there is none, or it is not what gfn-train writes.
    """
    path = directory / "config.yaml"
    if not path.is_file():
        raise RunError(f"{directory} is not a run directory: it has no config.yaml; expected one that gfn-train made")
    try:
        text = path.read_text(encoding="utf-8")
        sealed = text.partition("\n")[2]
        if DIGEST.search(text[:200]) and text != _seal(sealed) + sealed:
            raise RunError(
                f"{path} is damaged or was changed: its SHA-256 is another; restore it, or drop its first line"
            )
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
                raise RunError(
                    f"{path}: gfn-train writes no references (*name) and no deep nesting, which fill the memory"
                )
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or no such date
        raise RunError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, dict) or not {"run", "seed", "trainer"} <= config.keys():
        raise RunError(f"{path} is not the config of a run; restore it, or choose another directory")
    referring = [key for key, value in flat(config).items() if isinstance(value, str) and "${" in value]
    if referring:
        raise RunError(f"{path} is not what gfn-train writes: {referring[0]} refers to something else (${{…}})")
    return cast("dict[str, Any]", config)


def _latest(overrides: list[str]) -> list[str]:
    """The last override of each key, without the run directory itself."""
    by_key = {line.partition("=")[0].lstrip("+"): line for line in overrides}
    return [line for key, line in by_key.items() if key != "run"]


def _require_same(before: Any, now: Any, directory: Path) -> None:
    old, new = flat(before), flat(now)
    changed = [
        f"  {key}: {old.get(key, 'absent')!r} when it was started, {new.get(key, 'absent')!r} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key)
        and not any(key == free or key.startswith(free + ".") for free in FREE)
        and not key.endswith(".steps")  # a longer run, and schedules that span it
    ]
    if changed:
        listed = "\n".join(changed)
        raise RunError(
            f"{directory} holds a run with another config:\n{listed}\ngo on with the same values, or elsewhere"
        )


def open_run(directory: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The config and parts of a run, with the weights of its newest sound checkpoint, and that checkpoint's step.

    A folder that ``gfn-export`` made has those that were exported.

    Raises:
        RunError: if the directory holds no run, or no checkpoint yet.
        CheckpointError: if no checkpoint is sound.
    """
    config, parts = parts_of(directory)
    if (directory / WEIGHTS).is_file() and not checkpoint.all_in(directory / "checkpoints"):
        weights, step = weights_of(directory)
        parts["objective"].load_state_dict(weights)
        return config, parts, step
    found = checkpoint.newest(directory / "checkpoints")
    if found is None:
        raise RunError(f"{directory} has no checkpoint yet; let gfn-train reach one (every trainer.save_every updates)")
    _, state = found
    parts["objective"].load_state_dict(state["objective"])
    if parts["evaluator"] is not None:
        parts["evaluator"].load_state_dict(state["evaluator"])
    return config, parts, int(state["step"])


def parts_of(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of a run and its parts as they are before training.

    Raises:
        RunError: if the directory holds no config of a run.
    """
    from omegaconf import OmegaConf

    plain = stored_config(directory)
    _require_no_program(plain, directory)
    with apart_from(_folder(directory)):
        config = checked(OmegaConf.create({**plain, "run": str(directory), "device": "cpu"}))
        return config, build_parts(config)


def _folder(directory: Path) -> Path:
    """The folder of the working directory that a run lies in, with all that came along with it."""
    place, here = directory.resolve(), Path.cwd().resolve()
    return here / place.relative_to(here).parts[0] if place != here and place.is_relative_to(here) else place


def _require_no_program(config: dict[str, Any], directory: Path) -> None:
    """Refuse a config that names a program which came along with it."""
    folder = _folder(directory)
    for key, value in flat(config).items():
        place = Path(value).resolve() if isinstance(value, str) and 0 < len(value) < 1000 else folder
        if place.is_relative_to(folder) and place.is_file() and os.access(place, os.X_OK):
            raise RunError(f"{directory}: {key} names a program beside the run, {value}; if you trust it, move it away")


def prior(run: Path) -> Prior[Any]:
    """The policy of a finished run as the prior π of another: what is sampled is then π(x) R(x)/Z.

    Raises:
        ValueError: if the directory holds no run with a sound checkpoint.
    """
    try:
        _, parts, _ = open_run(run)
    except (RunError, checkpoint.CheckpointError) as error:
        raise ValueError(str(error)) from error
    return Prior(parts["policy"])


def describe(run: Run, directory: Path, report: Report | None, started: int) -> None:
    """Write the run's README."""
    trainer = run.trainer
    command = shlex.join(["gfn-train", *(directory / "overrides.txt").read_text(encoding="utf-8").splitlines()])
    again = shlex.quote(f"run={directory}")
    parts = [f"| {stage} | `{_name_of(node)}` |" for stage, node in run.config.items() if _name_of(node)]
    lines = [
        f"# {run.config['name']}",
        "",
        f"{trainer.step} of {trainer.steps} updates on {trainer.trajectories} trajectories, seed {run.config['seed']}"
        + (f"; this time from update {started} on." if started else "."),
        "",
        "## Command",
        "",
        f"    {command}",
        "",
        f"The same command with `{again}` goes on with it; the whole config is in `config.yaml`.",
        "",
        "## Parts",
        "",
        "| part | what |",
        "|---|---|",
        *parts,
        "",
        *_result_lines(report),
        "## Figures",
        "",
        *(f"![{path.stem}](figures/{path.name})" for path in sorted((directory / "figures").glob("*.png"))),
        "",
        "## Versions",
        "",
        versions(),
        "",
    ]
    storage.replace(directory / "README.md", "\n".join(lines).encode())


def _result_lines(report: Report | None) -> list[str]:
    if report is None:
        return ["Nothing was left to train.", ""]
    shown = {**report.metrics, **{f"eval/{name}": value for name, value in (report.evaluation or {}).items()}}
    rows = [f"| {name} | {value:.6g} |" for name, value in shown.items()]
    return [f"## After update {report.step}", "", "| metric | value |", "|---|---|", *rows, ""]


def _name_of(node: Any) -> str:
    return str(cast("Mapping[str, Any]", node).get("_target_", "")) if isinstance(node, Mapping) else ""


def versions() -> str:
    """What made a run."""
    return (
        f"f-GFN {_version('fgfn')}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
