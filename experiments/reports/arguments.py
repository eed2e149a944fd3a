"""What the commands of reports share: options, run directories, and configs composed as ``gfn-train`` would."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from experiments.command import settable
from experiments.train import GROUPS


def options(arguments: Sequence[str], defaults: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The options of a report as texts, and the other arguments, in order, which are for the config.

    Raises:
        ValueError: if an argument is not ``key=value``.
    """
    bad = [argument for argument in arguments if not argument.partition("=")[2]]
    if bad:
        raise ValueError(f"expected key=value, such as {next(iter(defaults))}=…, got {' '.join(bad)}")
    given = {key: value for key, _, value in (a.partition("=") for a in arguments) if key in defaults}
    return {**defaults, **given}, [a for a in arguments if a.partition("=")[0] not in defaults]


def run_directories(arguments: Sequence[str]) -> tuple[list[Path], Path]:
    """The directories that match the patterns among the arguments, and where ``out=`` says to write; default, here."""
    out = Path(next((a.removeprefix("out=") for a in arguments if a.startswith("out=")), "."))
    found = [Path(p) for a in arguments if not a.startswith("out=") for p in sorted(glob.glob(a))]
    return [path for path in found if path.is_dir()], out  # a sweep keeps a file or two beside its runs


def numbers(text: str, name: str, lowest: int) -> list[int]:
    """Numbers from a text such as ``1,2,4``.

    Raises:
        ValueError: if it is no such text, or a number is too low.
    """
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= lowest for part in parts):
        raise ValueError(f"{name}: expected numbers of at least {lowest} with commas between them, got {text!r}")
    return [int(part) for part in parts]


def composed(overrides: Sequence[str]) -> DictConfig:
    """The config of a training run with these overrides; errors are Hydra's."""
    with initialize_config_module("configs", version_base="1.3"):
        return compose("train", [settable(override, GROUPS) for override in overrides])
