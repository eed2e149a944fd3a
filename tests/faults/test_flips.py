"""Promise 3: a flipped bit, a truncation, garbage or an empty file is detected before anything is used."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from experiments import runs
from experiments.runs import RunError, open_run, stored_config
from gfn import checkpoint
from gfn.callbacks import JSONLines, read_lines
from gfn.checkpoint import CheckpointError
from tests.composing import SMALL, built
from tests.trainers import same


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with two checkpoints of a real run: networks, optimizer, generators, discoveries."""
    place = tmp_path_factory.mktemp("run")
    run = built(place, *SMALL, "trainer.save_every=2", "logger.metrics.every=1")
    runs.prepare(run, place, [])
    run.trainer.run()
    return place


def flips(data: bytes, count: int | None) -> Iterator[bytes]:
    """The content with one bit flipped: every one there is, or so many at random."""
    chance, bits = random.Random(0), 8 * len(data)
    for bit in range(bits) if count is None else (chance.randrange(bits) for _ in range(count)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def damage(data: bytes) -> Iterator[bytes]:
    """Other ways in which a file is not what it was."""
    chance = random.Random(1)
    yield from (b"", b"\0" * len(data), b"garbage", chance.randbytes(len(data)), data + b"\0", data + data, data[1:])
    for length in chance.sample(range(len(data)), 50):
        yield data[:length]
        yield data[:length] + b"\0" * (len(data) - length)  # what a machine leaves that stops while it writes
    for _ in range(50):
        start = chance.randrange(len(data) - 1)
        stop = start + chance.randrange(1, 4096)
        yield data[:start] + chance.randbytes(len(data[start:stop])) + data[stop:]


@pytest.mark.parametrize("count", [3000, pytest.param(60_000, marks=pytest.mark.slow)])
def test_every_flip_in_a_checkpoint_is_detected(directory: Path, tmp_path: Path, count: int) -> None:
    data = checkpoint.all_in(directory / "checkpoints")[0].read_bytes()
    path = tmp_path / "step_000000003.pt"
    for altered in [*flips(data, count), *damage(data)]:
        path.write_bytes(altered)
        with pytest.raises(CheckpointError, match=r"damaged|no trailer"):
            checkpoint.load(path)
    print(f"{count} flips of {8 * len(data)} bits detected, and {len(list(damage(data)))} other damages")
    path.write_bytes(data)
    assert checkpoint.load(path)["step"] == 3


@pytest.mark.parametrize("how", [lambda d: next(flips(d, 1)), lambda d: d[: len(d) // 2], lambda d: b""])
def test_auto_falls_back_with_a_warning(directory: Path, tmp_path: Path, how: Callable[[bytes], bytes]) -> None:
    place = copied(directory, tmp_path / "run")
    newest, older = checkpoint.all_in(place / "checkpoints")
    newest.write_bytes(how(newest.read_bytes()))
    run = built(place, *SMALL, "trainer.save_every=2", "logger.metrics.every=1")
    with pytest.warns(UserWarning, match=rf"skipping a checkpoint: .*{newest.name}"):
        runs.prepare(run, place, [])
    assert run.trainer.step == checkpoint.load(older)["step"] == 2
    run.trainer.run()
    whole = checkpoint.load(directory / "checkpoints" / newest.name)
    assert same(checkpoint.load(newest), whole)
    assert (place / "metrics.jsonl").read_bytes() == (directory / "metrics.jsonl").read_bytes()


def copied(directory: Path, place: Path) -> Path:
    import shutil

    shutil.copytree(directory, place)
    return place


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_damaged_config_is_not_used(directory: Path, tmp_path: Path, count: int) -> None:
    data = (directory / "config.yaml").read_bytes()
    sound, refused = stored_config(directory), 0
    for altered in [*flips(data, count), *damage(data)]:
        (tmp_path / "config.yaml").write_bytes(altered)
        try:
            assert stored_config(tmp_path) == sound, "harmless, as in the words of the first line"
        except RunError:
            refused += 1
    print(f"{refused} of {count + len(list(damage(data)))} damaged configs refused; the others say the same")
    assert refused > 0.9 * count
    (tmp_path / "config.yaml").write_bytes(b"")
    with pytest.raises(RunError, match="is not the config of a run"):
        open_run(tmp_path)


@pytest.mark.parametrize("count", [150, pytest.param(5000, marks=pytest.mark.slow)])
def test_whatever_became_of_the_metrics_a_run_goes_on(directory: Path, tmp_path: Path, count: int) -> None:
    data, path = (directory / "metrics.jsonl").read_bytes(), tmp_path / "metrics.jsonl"
    for altered in [*flips(data, count), *damage(data), b"[" * 100_000, b'{"step": 1e999}\n[1]\n"x"\n{"step": true}\n']:
        path.write_bytes(altered)
        lines = JSONLines(path)
        lines.start(2)
        lines.close()
        assert all(line["step"] <= 2 for line in read_lines(path))
        assert path.read_bytes().count(b"\n") == len(read_lines(path)), "what is left is whole lines"
