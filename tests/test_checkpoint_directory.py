"""Directories of checkpoints: which one counts, which ones go, and whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfn import checkpoint
from gfn.checkpoint import CheckpointError
from tests.trainers import parts_of, small_trainer


def saved(directory: Path, *steps: int) -> None:
    for step in steps:
        checkpoint.save(checkpoint.path_of(directory, step), {"step": step})


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_newest_sound_one_wins(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "absent") is None
    saved(tmp_path, 900, 999_999_999, 5, 1_000_000_000)
    path, state = checkpoint.newest(tmp_path) or pytest.fail("nothing found")
    assert (path.name, state["step"]) == ("step_1000000000.pt", 1_000_000_000)
    damage(path)
    (tmp_path / "step_999999999.pt").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"skipping.*step_") as warned:
        found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[1] == {"step": 900}
    assert [str(w.message).split("step_")[1][:10] for w in warned] == ["1000000000", "999999999."]


def test_if_none_is_sound_each_is_listed(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3)
    for path in checkpoint.all_in(tmp_path):
        damage(path)
    with pytest.warns(UserWarning, match="skipping"), pytest.raises(CheckpointError) as caught:
        checkpoint.newest(tmp_path)
    assert all(f"step_00000000{step}.pt is damaged" in str(caught.value) for step in (1, 2, 3))
    assert "delete them" in str(caught.value)


def test_prune(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10, 15, 20)
    strangers = ["step_7.pt", "step_000000001.pt.bak", "best.pt", ".step_000000025.pt.part"]
    for name in strangers:
        (tmp_path / name).touch()
    assert [p.name for p in checkpoint.all_in(tmp_path)] == [f"step_{s:09d}.pt" for s in (20, 15, 10, 5)]
    checkpoint.prune(tmp_path, 2)
    kept = {"step_000000015.pt", "step_000000020.pt", *strangers} - {".step_000000025.pt.part"}
    assert set(parts_of(tmp_path)) == kept


def test_runs_that_end_before_they_prune_leave_one_too_many_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prune = checkpoint.prune
    for steps in range(1, 7):  # each ends right after it has saved
        trainer = small_trainer(steps=steps, checkpoints=tmp_path, keep=2, save_every=10)
        trainer.resume()
        asked: list[int] = []
        monkeypatch.setattr(
            checkpoint, "prune", lambda *given, asked=asked: asked.append(1) or len(asked) > 1 or prune(*given)
        )
        trainer.run()
        assert len(asked) == 2
        assert len(list(tmp_path.iterdir())) <= 3


def test_claim_refuses_the_directory_of_another_run(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    checkpoint.claim(tmp_path, 10)
    assert parts_of(tmp_path) == ["step_000000010.pt"]
    with pytest.raises(CheckpointError, match=r"another run, up to step_000000010\.pt, and this run is at step 9"):
        checkpoint.claim(tmp_path, 9)


def test_set_aside_renames_only_what_is_newer(tmp_path: Path) -> None:
    saved(tmp_path, 10, 20, 30)
    checkpoint.set_aside(checkpoint.path_of(tmp_path, 10))
    assert parts_of(tmp_path) == ["step_000000010.pt", "step_000000020.pt.damaged", "step_000000030.pt.damaged"]
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[1] == {"step": 10}
