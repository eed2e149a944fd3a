"""Promise 5: SIGTERM and SIGINT end a run after its step, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gfn import checkpoint
from tests.faults.children import command, ended, start

SMALL = ("env.side=4", "policy.width=8", "sampler.batch_size=8", "evaluator.every=3", "logger=quiet")
SMALL += ("logger.metrics.every=1", "trainer.save_every=4", "trainer.steps=100000", "run=run")
WHERE = {  # in which function of which place of the program the signal strikes, and at which of its calls
    "rollout": ("envs.hypergrid.Hypergrid.step", 20),
    "backward pass": ("torch.Tensor.backward", 6),
    "evaluation": ("gfn.evaluation.Evaluator.__call__", 2),
    "save": ("gfn.storage.replace", 5),
    "building": ("experiments.build.build_parts", 1),
}


def strike(name: str, at: int, number: int, times: int, within: bool) -> None:
    """Have this process send itself signals in the ``at``-th call of a function, before it or once it has begun."""
    import pydoc

    owner_name, _, attribute = name.rpartition(".")
    owner: Any = pydoc.locate(owner_name)
    real: Callable[..., Any] = getattr(owner, attribute)
    calls = 0

    @functools.wraps(real)
    def struck(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            if within:  # of a save: the file is half written
                os.fsync = _once(os.fsync, number, times)
            else:
                _send(number, times)
        return real(*arguments, **named)

    setattr(owner, attribute, struck)


def _once(real: Callable[[int], None], number: int, times: int) -> Callable[[int], None]:
    def fsync(handle: int) -> None:
        os.fsync = real
        _send(number, times)
        real(handle)

    return fsync


def _send(number: int, times: int) -> None:
    Path("struck").write_text(str(time.time()))
    for _ in range(times):
        os.kill(os.getpid(), number)


def run(directory: Path, phase: str, number: int, times: int = 1) -> tuple[int, float, list[dict[str, Any]]]:
    """Let a run be struck in a phase: its exit code, seconds it took to end, and the lines it has written."""
    name, at = WHERE[phase]
    prepare = functools.partial(strike, name, at, number, times, phase == "save")
    process = start(functools.partial(command, prepare=prepare), directory, *SMALL, output=directory / "output")
    code = ended(process)
    seconds = time.time() - float((directory / "struck").read_text())
    path = directory / "run" / "metrics.jsonl"
    return code, seconds, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


CASES = [(phase, signal.SIGTERM if i % 2 else signal.SIGINT) for i, phase in enumerate(WHERE)]
REST = [(phase, n) for phase in WHERE for n in (signal.SIGTERM, signal.SIGINT) if (phase, n) not in CASES]


@pytest.mark.parametrize(("phase", "number"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST)])
def test_the_step_is_finished_and_saved(phase: str, number: int, tmp_path: Path) -> None:
    code, seconds, lines = run(tmp_path, phase, number)
    output = (tmp_path / "output").read_text()
    assert code == 128 + number, output
    assert "Traceback" not in output
    newest = checkpoint.all_in(tmp_path / "run" / "checkpoints")[0]
    assert checkpoint.load(newest)["step"] == lines[-1]["step"], "the last step that was told is the one that is saved"
    assert (tmp_path / "run" / "README.md").is_file()
    assert not list((tmp_path / "run").rglob("*.part"))
    print(f"{signal.Signals(number).name} in {phase}: exit {code} after {seconds:.1f} s, at step {lines[-1]['step']}")


@pytest.mark.parametrize(
    ("phase", "number"),
    [("rollout", signal.SIGTERM), ("save", signal.SIGINT)]
    + [pytest.param(phase, n, marks=pytest.mark.slow) for phase, n in CASES],
)
def test_a_second_signal_ends_it_at_once(phase: str, number: int, tmp_path: Path) -> None:
    code, seconds, lines = run(tmp_path, phase, number, times=2)
    output = (tmp_path / "output").read_text()
    assert code == 128 + number, output
    assert "Traceback" not in output
    directory = tmp_path / "run" / "checkpoints"
    saved = [checkpoint.load(path)["step"] for path in checkpoint.all_in(directory)]
    assert all(step % 4 == 0 for step in saved), "only the saves that were due anyway"
    assert not (tmp_path / "run" / "README.md").exists()
    print(f"two {signal.Signals(number).name} in {phase}: exit {code} after {seconds:.1f} s, {len(lines)} lines")
