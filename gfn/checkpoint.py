"""Checkpoints: atomic to write, verified before use, and unable to execute anything.

A checkpoint is one file: what ``torch.save`` writes, followed by a trailer with its length and
SHA-256, because the archive format itself lets flipped bits through.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from gfn import storage

MAGIC = b"f-GFN checkpoint"
TRAILER = len(MAGIC) + 8 + 32
NAME = re.compile(r"step_\d{9,}\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged or not ours."""


def path_of(directory: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` lies in ``directory``."""
    return directory / f"step_{step:09d}.pt"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values so that a crash at any moment leaves the old file or the new one.

    Raises:
        CheckpointError: if the file cannot be written; the message names it, and what was there stays.
            Also if ``state`` holds anything that :func:`load` would refuse.
    """
    _require_plain(state, "state")
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getbuffer()
    trailer = MAGIC + len(body).to_bytes(8, "big") + hashlib.sha256(body).digest()
    try:
        storage.replace(path, body, trailer)
    except OSError as error:
        raise _not_written(f"checkpoint {path}", error) from error


def _require_plain(value: Any, place: str) -> None:
    """Refuse what would be written as a reference to code."""
    if isinstance(value, Tensor) or type(value) in (type(None), bool, int, float, str, bytes):
        return
    if type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            _require_plain(key, f"a key of {place}")
            _require_plain(inner, f"{place}.{key}")
    elif type(value) in (list, tuple):
        for i, inner in enumerate(value):
            _require_plain(inner, f"{place}[{i}]")
    else:
        raise CheckpointError(
            f"a checkpoint holds tensors and plain values only; {place} is a {type(value).__module__}."
            f"{type(value).__qualname__}: let its state_dict give tensors, numbers, strings, lists and dicts"
        )


def _not_written(what: str, error: OSError) -> CheckpointError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    cure = "free space there" if full else "choose a run directory that can be written"
    return CheckpointError(
        f"cannot write {what}: {error.strerror or error}; {cure}, then run the same command again to go on"
    )


def load(path: Path) -> dict[str, Any]:
    """Verify a checkpoint and read it onto the CPU, as tensors and plain values only.

    Raises:
        CheckpointError: if it is missing, truncated, altered in any bit, or holds anything else.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    body, trailer = memoryview(data)[:-TRAILER], data[-TRAILER:]
    if len(data) < TRAILER or not trailer.startswith(MAGIC):
        raise CheckpointError(f"{path} ({len(data)} bytes) is not a complete f-GFN checkpoint: it has no trailer")
    length, digest = int.from_bytes(trailer[len(MAGIC) : -32], "big"), trailer[-32:]
    if length != len(body) or hashlib.sha256(body).digest() != digest:
        raise CheckpointError(f"{path} is damaged: its content does not match its SHA-256")
    try:
        state = torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file provokes inside the reader
        raise CheckpointError(f"{path} holds more than tensors and plain values and was not loaded: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds a {type(state).__name__} where the state of a run is expected")
    return cast("dict[str, Any]", state)


def all_in(directory: Path) -> list[Path]:
    """Checkpoints in ``directory``, newest step first; leftovers of interrupted writes are not among them."""
    if not directory.is_dir():
        return []
    found = [path for path in directory.iterdir() if NAME.fullmatch(path.name)]
    return sorted(found, key=_step_of, reverse=True)


def newest(directory: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that verifies, or None if there is none at all; damaged ones are reported and skipped.

    Raises:
        CheckpointError: if there are checkpoints and none of them is sound.
    """
    problems: list[str] = []
    for path in all_in(directory):
        try:
            state = load(path)
        except CheckpointError as error:
            problems.append(str(error))
            warnings.warn(f"skipping a checkpoint: {error}", stacklevel=2)
            continue
        return path, state
    if problems:
        listed = "\n  ".join(problems)
        raise CheckpointError(f"no checkpoint can be used:\n  {listed}\ndelete them to start from the beginning")
    return None


def prune(directory: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and leftovers of interrupted writes."""
    for path in all_in(directory)[keep:]:
        path.unlink(missing_ok=True)
    for leftover in directory.glob(".step_*.part"):
        leftover.unlink(missing_ok=True)


def claim(directory: Path, step: int) -> None:
    """Make sure, before any work is done, that a run after ``step`` updates can keep its checkpoints here.

    Raises:
        CheckpointError: if the directory cannot be written, or holds checkpoints of later steps: mixed
            with those of this run, they would be taken for its newest.
    """
    later = _later(directory, step)
    if later:
        raise CheckpointError(
            f"{directory} holds checkpoints of another run, up to {later[0].name}, and this run is at step {step}: "
            "resume it, or choose another directory"
        )
    probe = directory / ".step_probe.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise _not_written(f"checkpoints to {directory}", error) from error


def set_aside(path: Path) -> None:
    """Rename the checkpoints newer than ``path``, which :func:`newest` found damaged, to ``*.damaged``.

    Raises:
        CheckpointError: if the directory cannot be written.
    """
    for damaged in _later(path.parent, _step_of(path)):
        try:
            damaged.rename(damaged.with_name(damaged.name + ".damaged"))
        except OSError as error:
            raise _not_written(f"checkpoints to {path.parent}", error) from error


def _step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step_"))


def _later(directory: Path, step: int) -> list[Path]:
    return [path for path in all_in(directory) if _step_of(path) > step]
