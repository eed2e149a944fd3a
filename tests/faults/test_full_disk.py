"""Promise 2: a full disk never corrupts. The kernel really says that no space is left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gfn import checkpoint, storage
from gfn.callbacks import JSONLines, SampleTable, TensorBoard, read_lines
from gfn.checkpoint import CheckpointError
from gfn.examples import Example
from gfn.training import Report
from tests.faults.test_kills import trainer
from tests.trainers import differences, same

FULL = "No space left on device"
STATE = {"step": 3, "weights": [1.0] * 1000}


def fill(path: Path) -> None:
    """Have whatever is written to ``path`` next meet a device without space."""
    path.with_name(f".{path.name}.part").symlink_to("/dev/full")


def test_a_checkpoint(tmp_path: Path) -> None:
    path = checkpoint.path_of(tmp_path, 3)
    checkpoint.save(path, STATE)
    fill(path)
    with pytest.raises(CheckpointError) as told:
        checkpoint.save(path, {"step": 4})
    message = str(told.value)
    assert message.startswith(f"cannot write checkpoint {path}: {FULL} (")
    assert f" bytes free in {tmp_path}); free space there, then run the same command again to go on" in message
    assert same(checkpoint.load(path), STATE)
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "what was begun is gone"


def test_any_file_that_is_replaced(tmp_path: Path) -> None:
    """config.yaml, overrides.txt, samples.md, README.md, evaluation.json and metrics are written by one function."""
    path = tmp_path / "config.yaml"
    storage.replace(path, b"old")
    fill(path)
    with pytest.raises(OSError, match=rf"{FULL} \(9000 bytes to write, \d+ bytes free in .*config\.yaml"):
        storage.replace(path, b"x" * 9000)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["config.yaml"]


def test_the_table_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "samples.md"
    path.write_text("old")
    fill(path)
    report = Report(1, 1, 1, {}, {}, [Example("x", 0.0, True)])
    with pytest.raises(OSError, match=FULL):
        SampleTable(path)(report)
    assert path.read_text() == "old"


def test_metrics_that_meet_a_full_disk_lose_nothing(tmp_path: Path) -> None:
    """The run stops with a message; once there is space it goes on as if nothing had happened."""

    class Fills(JSONLines):
        def __call__(self, report: Report) -> None:
            if report.step == 5 and self.file is not None:
                os.dup2(os.open("/dev/full", os.O_WRONLY), self.file.fileno())
            super().__call__(report)

    run = trainer(tmp_path / "struck", 8, False)
    run.callbacks = [Fills(tmp_path / "struck" / "metrics.jsonl", 1)]
    with pytest.raises(OSError, match=rf"cannot write metrics: {FULL} \(\d+ bytes free in .*metrics\.jsonl"):
        run.run()
    assert [line["step"] for line in read_lines(tmp_path / "struck" / "metrics.jsonl")] == [1, 2, 3, 4]
    again = trainer(tmp_path / "struck", 8, False)
    assert again.resume()
    assert again.step == 4
    again.run()
    trainer(tmp_path / "whole", 8, False).run()
    ours, whole = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("struck", "whole"))
    assert ours == whole


def mounted(place: Path) -> bool:
    """Whether a disk of one megabyte could be put there; that needs rights that not every machine gives."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A directory, and files to fill it with.

    On a small disk, the file is as large as what is free. Where none can be mounted, the files stand in the way of
    what is written next, as links to a device that is always full.
    """
    place = tmp_path / "disk"
    small = mounted(place)
    ballast = [place / "ballast"]
    if not small:
        ballast = [place / "checkpoints" / f".step_{step:09d}.pt.part" for step in range(4, 9)]
    yield place, ballast
    if small:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_run_on_a_disk_that_fills_up_goes_on_once_there_is_space(
    disk: tuple[Path, list[Path]], tmp_path: Path
) -> None:
    place, ballast = disk

    class Fills(TensorBoard):
        """Fills the disk after four updates, to the last byte."""

        def __call__(self, report: Report) -> None:
            super().__call__(report)
            if report.step == 4:
                for path in ballast:
                    _fill_up(path)

    run = trainer(place, 8, False)
    run.callbacks = [JSONLines(place / "metrics.jsonl", 1), Fills(place / "events", 100)]
    with pytest.raises((CheckpointError, OSError), match=FULL) as told:
        run.run()
    assert "bytes free in" in str(told.value)
    found = checkpoint.newest(place / "checkpoints")
    assert found is not None
    assert found[1]["step"] in (3, 4)
    for path in ballast:
        path.unlink(missing_ok=True)
    again = trainer(place, 8, False)
    assert again.resume()
    again.run()
    whole = trainer(tmp_path / "whole", 8, False)
    whole.run()
    assert not differences({**again.state_dict(), "generators": 0}, {**whole.state_dict(), "generators": 0})
    assert (place / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert sorted(path.name for path in (place / "checkpoints").iterdir()) == ["step_000000007.pt", "step_000000008.pt"]


def _fill_up(path: Path) -> None:
    if path.suffix == ".part":
        path.symlink_to("/dev/full")
        return
    with open(path, "wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_events_that_meet_a_full_disk_stop_the_run(tmp_path: Path) -> None:
    """They are written by another thread: its failure is told to the run, and nobody waits for it for ever."""
    board = TensorBoard(tmp_path, 1)
    board.start(0)
    board(Report(1, 9, 8, {"loss": 1.0}, None))
    (events,) = tmp_path.iterdir()
    events.rename(tmp_path / "kept")
    events.symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"cannot write events: {FULL} \(\d+ bytes free in"):
        board(Report(2, 9, 8, {"loss": 1.0}, None))
    board.close()
