"""What was computed before a failure is kept, and the run goes on from it once the cause is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gfn import checkpoint
from gfn.environment import RewardError
from tests.trainers import small_trainer


def broken_after(trainer: Any, calls: int) -> None:
    """Let the reward become NaN after so many calls."""
    env, good = trainer.sampler.env, trainer.sampler.env.reward
    count = 0

    class Breaking(type(good)):
        def __call__(self, coords: Tensor, side: int) -> Tensor:
            nonlocal count
            count += 1
            reward = super().__call__(coords, side)
            return reward * torch.nan if count > calls else reward

    env.reward = Breaking(**vars(good))


def test_updates_before_a_failure_are_kept(tmp_path: Path) -> None:
    trainer = small_trainer(steps=12, evaluate_every=None, checkpoints=tmp_path, save_every=5)
    broken_after(trainer, 8)
    with pytest.raises(RewardError, match="is nan"):
        trainer.run()
    assert trainer.step == 8
    path, state = checkpoint.newest(tmp_path) or pytest.fail("nothing was saved")
    assert (path.name, state["step"]) == ("step_000000008.pt", 8)
    mended = small_trainer(steps=12, evaluate_every=None, checkpoints=tmp_path, save_every=5)
    assert mended.resume()
    report = mended.run()
    assert report is not None
    assert report.step == 12


def test_a_checkpoint_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    trainer = small_trainer(steps=12, evaluate_every=None, checkpoints=tmp_path, save_every=5)
    broken_after(trainer, 5)
    with pytest.raises(RewardError):
        trainer.run()
    whole = small_trainer(steps=5, evaluate_every=None, checkpoints=tmp_path / "whole", save_every=5)
    whole.run()
    names = "step_000000005.pt"
    assert checkpoint.load(tmp_path / names)["samplers"][0]["generator"].equal(
        checkpoint.load(tmp_path / "whole" / names)["samplers"][0]["generator"]
    )


def test_a_failure_before_the_first_update_leaves_nothing(tmp_path: Path) -> None:
    trainer = small_trainer(steps=12, evaluate_every=None, checkpoints=tmp_path, save_every=5)
    broken_after(trainer, 0)
    with pytest.raises(RewardError):
        trainer.run()
    assert checkpoint.all_in(tmp_path) == []
