"""Checkpoints: atomic, verified, harmless."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from gfn import checkpoint
from gfn.checkpoint import MAGIC, TRAILER, CheckpointError
from tests.trainers import parts_of, same, small_trainer

STATE = {"step": 3, "weights": torch.arange(4.0), "nested": {"list": [1, 2.5, None, "x", b"y", (True,)]}}


class Crash(BaseException):
    """Stands for the process ending there: nothing in the code under test can catch it."""


def crash(*_: Any, **__: Any) -> Any:
    raise Crash


def with_trailer(body: bytes) -> bytes:
    return body + MAGIC + len(body).to_bytes(8, "big") + hashlib.sha256(body).digest()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return checkpoint.path_of(tmp_path / "checkpoints", 3)


def test_round_trip(path: Path) -> None:
    checkpoint.save(path, STATE)
    assert same(checkpoint.load(path), STATE)
    assert parts_of(path.parent) == ["step_000000003.pt"]


def test_tensors_come_back_with_their_types_and_bits(path: Path) -> None:
    tensors = {
        str(dtype): torch.tensor([0, 1, 2]).to(dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    }
    special = {"nan": torch.tensor([float("nan"), float("inf"), -0.0]), "empty": torch.zeros(0, dtype=torch.long)}
    checkpoint.save(path, {**tensors, **special})
    loaded = checkpoint.load(path)
    assert all(loaded[name].dtype == t.dtype and torch.equal(loaded[name], t) for name, t in tensors.items())
    assert same({name: loaded[name] for name in special}, special)


@pytest.mark.parametrize("where", ["os.replace", "os.fsync", "write"])
def test_a_crash_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    checkpoint.save(path, STATE)
    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr("builtins.open", lambda *_, **__: HalfWritten(path.with_name(f".{path.name}.part")))
        else:
            patch.setattr(where, crash)
        with pytest.raises(Crash):
            checkpoint.save(path, {"step": 4})
    assert same(checkpoint.load(path), STATE)
    assert checkpoint.all_in(path.parent) == [path], "what the crash left is taken for a checkpoint"
    checkpoint.save(path, {"step": 4})
    assert checkpoint.load(path) == {"step": 4}


class HalfWritten:
    """A file that takes half of what it is given before the process ends."""

    def __init__(self, part: Path) -> None:
        self.part = part

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def write(self, data: Any) -> None:
        self.part.write_bytes(bytes(data)[: len(data) // 2])
        raise Crash


def test_order_of_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is on disk before the name points to it, and the name before ``save`` returns."""
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        calls.append("fsync directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "fsync file")
        fsync(handle)

    def noted_replace(source: Any, target: Any) -> None:
        calls.append(f"rename {Path(source).stat().st_size}")
        replace(source, target)

    monkeypatch.setattr("os.fsync", noted_fsync)
    monkeypatch.setattr("os.replace", noted_replace)
    checkpoint.save(path, STATE)
    assert calls == ["fsync file", f"rename {path.stat().st_size}", "fsync directory"]


def test_every_truncation_is_detected(path: Path) -> None:
    checkpoint.save(path, STATE)
    data = path.read_bytes()
    body = len(data) - TRAILER
    lengths = {0, 1, TRAILER - 1, TRAILER, TRAILER + 1, 2 * TRAILER, body // 2, body - 1, body, body + 1}
    lengths |= {body + len(MAGIC), body + len(MAGIC) + 8, len(data) - 32, len(data) - 1, *range(0, len(data), 97)}
    for length in sorted(lengths):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"step_000000003\.pt"):
            checkpoint.load(path)
    for longer in (data + b"\0", data + data, data[: len(data) // 2] + data):
        path.write_bytes(longer)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)


def test_every_flipped_bit_is_detected(path: Path) -> None:
    """One random bit of every 3rd byte of the body, and every bit of the trailer: more than 700 flips."""
    checkpoint.save(path, STATE)
    data = path.read_bytes()
    draw = random.Random(0)
    body = [(at, draw.randrange(8)) for at in range(0, len(data) - TRAILER, 3)]
    flips = body + [(at, bit) for at in range(len(data) - TRAILER, len(data)) for bit in range(8)]
    assert len(flips) > 700
    for at, bit in flips:
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        path.write_bytes(flipped)
        with pytest.raises(CheckpointError):
            checkpoint.load(path)
    path.write_bytes(data)
    assert same(checkpoint.load(path), STATE)


@pytest.mark.parametrize("content", [b"", b"garbage", os.urandom(4096), b"\0" * 4096, with_trailer(b"garbage")])
def test_garbage_is_refused(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"step_000000003\.pt"):
        checkpoint.load(path)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*step_000000003\.pt.*No such file"):
        checkpoint.load(path)


def test_the_state_of_a_run_is_a_dict(path: Path) -> None:
    buffer = io.BytesIO()
    torch.save([1, 2], buffer)
    path.parent.mkdir()
    path.write_bytes(with_trailer(buffer.getvalue()))
    with pytest.raises(CheckpointError, match="holds a list"):
        checkpoint.load(path)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("form", ["pickle", "torch zip", "torch legacy"])
def test_a_hostile_file_executes_nothing(path: Path, tmp_path: Path, form: str, sealed: bool) -> None:
    marker = tmp_path / "executed"
    buffer = io.BytesIO()
    if form == "pickle":
        pickle.dump({"step": Hostile(marker)}, buffer, protocol=2)
        pickle.loads(buffer.getvalue())
    else:
        torch.save({"step": Hostile(marker)}, buffer, _use_new_zipfile_serialization=form == "torch zip")
        torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    assert marker.exists(), "the file is not hostile, so this test shows nothing"
    marker.unlink()
    path.parent.mkdir()
    path.write_bytes(with_trailer(buffer.getvalue()) if sealed else buffer.getvalue())
    with pytest.raises(CheckpointError, match="more than tensors" if sealed else "no trailer"):
        checkpoint.load(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ({"a": {"b": [0, Path("x")]}}, r"state\.a\.b\[1\] is a pathlib"),
        ({"loss": numpy.float64(1.0)}, r"state\.loss is a numpy\.float64"),
        ({"buffer": numpy.zeros(2)}, r"state\.buffer is a numpy\.ndarray"),
        ({(1, Path("x")): 0}, r"a key of state\[1\]"),
        ({"policy": torch.nn.Linear(1, 1)}, r"state\.policy is a torch\.nn"),
        ({"f": len}, r"state\.f"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(path: Path, state: dict[str, Any], place: str) -> None:
    with pytest.raises(CheckpointError, match=place):
        checkpoint.save(path, state)
    assert not path.exists()


def test_a_checkpoint_of_a_run_holds_tensors_and_plain_values_only(tmp_path: Path) -> None:
    trainer = small_trainer(steps=2, checkpoints=tmp_path)
    trainer.run()
    data = checkpoint.path_of(tmp_path, 2).read_bytes()
    needed = set(torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(data[:-TRAILER])))
    assert needed == set(), "weights_only loading needs an allow-list for these"

    def leaves(value: Any) -> set[type]:
        if isinstance(value, dict):
            return {type(key) for key in value} | {t for inner in value.values() for t in leaves(inner)}
        return {t for inner in value for t in leaves(inner)} if isinstance(value, list | tuple) else {type(value)}

    assert leaves(checkpoint.load(checkpoint.path_of(tmp_path, 2))) <= {
        torch.Tensor, str, int, float, bool, type(None)
    }  # fmt: skip


def write_one(directory: Path) -> None:
    checkpoint.save(checkpoint.path_of(directory, 1), STATE)


def claim_it(directory: Path) -> None:
    checkpoint.claim(directory, 0)


@pytest.mark.parametrize("act", [write_one, claim_it])
def test_a_path_that_cannot_be_written_is_named(tmp_path: Path, act: Callable[[Path], None]) -> None:
    (tmp_path / "file").write_text("not a directory")
    directory = tmp_path / "file" / "checkpoints"
    with pytest.raises(CheckpointError) as caught:
        act(directory)
    message = str(caught.value)
    assert str(directory) in message
    assert "choose a run directory that can be written" in message
    assert "free space" not in message


def test_a_full_disk_is_named_and_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(path, STATE)
    size = path.stat().st_size

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError) as caught:
        checkpoint.save(path, STATE)
    message = str(caught.value)
    assert str(path) in message
    assert f"No space left on device ({size} bytes to write, " in message
    assert f"bytes free in {path.parent}); free space there, then run the same command again" in message
    assert same(checkpoint.load(path), STATE)
    assert parts_of(path.parent) == [path.name], "the unfinished file takes up the space that is missing"
