"""Checkpoints: atomic to write, verified before use, and unable to execute anything.

A checkpoint is one file: what ``torch.save`` writes, followed by a trailer with its length and
SHA-256, because the archive format itself lets flipped bits through.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

MAGIC = b"f-GFN checkpoint"
TRAILER = len(MAGIC) + 8 + 32
NAME = re.compile(r"step_(\d{9})\.pt")


class CheckpointError(RuntimeError):
    """A checkpoint is missing, damaged or not ours."""


def path_of(directory: Path, step: int) -> Path:
    """Where the checkpoint of ``step`` lies in ``directory``."""
    return directory / f"step_{step:09d}.pt"


def save(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values so that a crash at any moment leaves the old file or the new one.

    Raises:
        CheckpointError: if the file cannot be written; the message names it, and what was there stays.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    body = buffer.getbuffer()
    trailer = MAGIC + len(body).to_bytes(8, "big") + hashlib.sha256(body).digest()
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(body)
            file.write(trailer)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_directory(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(
            f"cannot write checkpoint {path} ({len(body) + TRAILER} bytes): {error.strerror or error}; "
            "free space or choose another run directory, then run the same command again to go on"
        ) from error


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: Path) -> dict[str, Any]:
    """Verify a checkpoint and read it onto the CPU, as tensors and plain values only.

    Raises:
        CheckpointError: if it is missing, truncated, altered in any bit, or holds anything else.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read checkpoint {path}: {error.strerror or error}") from error
    body, trailer = data[:-TRAILER], data[-TRAILER:]
    if len(data) < TRAILER or not trailer.startswith(MAGIC):
        raise CheckpointError(f"{path} ({len(data)} bytes) is not a complete f-GFN checkpoint: it has no trailer")
    length, digest = int.from_bytes(trailer[len(MAGIC) : -32], "big"), trailer[-32:]
    if length != len(body) or hashlib.sha256(body).digest() != digest:
        raise CheckpointError(f"{path} is damaged: its content does not match its SHA-256")
    try:
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file provokes inside the reader
        raise CheckpointError(f"{path} holds more than tensors and plain values and was not loaded: {error}") from error


def all_in(directory: Path) -> list[Path]:
    """Checkpoints in ``directory``, newest step first; leftovers of interrupted writes are not among them."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


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
        raise CheckpointError("no checkpoint can be used:\n  " + "\n  ".join(problems))
    return None


def prune(directory: Path, keep: int) -> None:
    """Delete all but the newest ``keep`` checkpoints, and leftovers of interrupted writes."""
    for path in all_in(directory)[keep:]:
        path.unlink(missing_ok=True)
    for leftover in directory.glob(".step_*.part"):
        leftover.unlink(missing_ok=True)
