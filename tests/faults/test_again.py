"""Promise 6: the same command after a preemption goes on, and its files miss nothing and hold nothing twice."""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gfn import checkpoint
from tests.faults.children import command, ended, start
from tests.trainers import differences

SWEEP = (
    "-m", "divergence=alpha", "divergence.alpha=0,2", "hydra.sweep.dir=sweep", "env.side=4", "policy.width=8",
    "sampler.batch_size=8", "evaluator.every=5", "trainer.steps=12", "trainer.save_every=4", "logger.metrics.every=1",
    "logger.tensorboard.every=1", "~logger.progress",
)  # fmt: skip


def preempt(after: int) -> None:
    """Kill this process in its ``after``-th backward pass."""
    import torch

    real: Callable[..., Any] = torch.Tensor.backward
    calls = 0

    @functools.wraps(real)
    def backward(*arguments: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*arguments, **named)

    torch.Tensor.backward = backward  # type: ignore[method-assign]


def sweep(directory: Path, after: int | None = None) -> int:
    directory.mkdir(exist_ok=True)
    prepare = functools.partial(preempt, after) if after is not None else None
    process = start(functools.partial(command, prepare=prepare), directory, *SWEEP, output=directory / "output")
    return ended(process)


def test_a_sweep_that_is_preempted_twice_goes_on(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    whole, struck = tmp_path / "whole", tmp_path / "struck"
    assert sweep(whole) == 0, (whole / "output").read_text()
    assert sweep(struck, after=7) == -signal.SIGKILL  # the first job has saved step 4 and reached 6
    assert sweep(struck, after=8 + 10) == -signal.SIGKILL  # it ends, and the second has saved step 8 and reached 9
    readme = (struck / "sweep" / "0" / "README.md").read_text()
    assert sweep(struck) == 0, (struck / "output").read_text()
    assert (struck / "sweep" / "0" / "README.md").read_text() == readme, "a job that was over is left as it was"
    assert "| loss |" in readme

    for job in ("0", "1"):
        ours, its = struck / "sweep" / job, whole / "sweep" / job
        assert (ours / "metrics.jsonl").read_bytes() == (its / "metrics.jsonl").read_bytes()
        lines = [json.loads(line) for line in (ours / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, 13))
        last = "checkpoints/step_000000012.pt"
        states = [{**checkpoint.load(place / last), "generators": None} for place in (ours, its)]
        assert not differences(*states)
        events = EventAccumulator(str(ours / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        seen = [(event.step, event.value) for event in events.Scalars("train/loss")]
        assert [step for step, _ in seen] == list(range(1, 13)), "a step is missing or there twice"
        assert [value for _, value in seen] == pytest.approx([line["loss"] for line in lines], rel=1e-6)
        assert [event.step for event in events.Scalars("eval/tv")] == [5, 10, 12]
        assert not list(ours.rglob("*.part"))
