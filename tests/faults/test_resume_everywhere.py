"""Promise 4: a run that was interrupted ends bit for bit where an undisturbed one does, in every environment."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import runs
from tests.faults.small_runs import ENVIRONMENTS, small_run
from tests.trainers import differences, snapshot


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_resume_is_bit_exact(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = small_run(name, tmp_path / "whole")
    runs.prepare(whole, tmp_path / "whole", [])
    whole.trainer.run()
    torch.manual_seed(0)
    for stop_after, reached in ((2, 2), (3, 5), (None, 8)):
        part = small_run(name, tmp_path / "parts", stop_after)
        runs.prepare(part, tmp_path / "parts", [])
        part.trainer.run()
        assert part.trainer.step == reached
        torch.manual_seed(reached)  # nothing may depend on what the last process left
    assert not differences(snapshot(part.trainer), snapshot(whole.trainer))
    lines = (tmp_path / "whole" / "metrics.jsonl").read_bytes()
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == lines
    assert lines.count(b"eval/") > 0
    assert len(whole.parts["sampler"].buffer) > 8, "something has been stored, and drawn again"
