"""Searchers in processes of Ray: they are killed, hang and fail, and the run is what it would have been."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from envs.hypergrid import Classic, Hypergrid
from gfn.distributed import InProcess, Ray, SearchError
from gfn.environment import RewardError
from gfn.training import Report
from tests.searching import STEPS, Troubled, gone, local_ray, searching
from tests.trainers import Recorder, StopAfter, differences, snapshot

__all__ = ["local_ray"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


class Unsendable(Hypergrid):
    """A grid that holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__(4, 2, Classic(r0=0.1))
        self.lock = threading.Lock()


class Killer:
    """Kills a searcher with signal 9 after some updates."""

    def __init__(self, engine: Ray, step: int) -> None:
        self.engine, self.step = engine, step
        self.killed = 0

    def start(self, step: int) -> None:
        pass

    def __call__(self, report: Report) -> None:
        if report.step == self.step:
            self.killed = max(self.engine.pids().values())
            os.kill(self.killed, signal.SIGKILL)

    def close(self) -> None:
        pass


def test_every_group_is_trained_on_once_though_a_searcher_is_killed() -> None:
    engine = Ray(2)
    run = searching(engine, Troubled(pause=0.02))
    killer, recorder = Killer(engine, 6), Recorder()
    run.callbacks = [killer, recorder]
    run.run()
    pids = engine.pids()
    assert killer.killed not in pids.values()
    notes = run.sampler.notes
    run.sampler.close()
    assert [number for _, numbers, _ in notes for number in numbers] == list(range(60))
    assert all(0 <= step - version <= 2 for step, _, versions in notes for version in versions)
    assert {version for _, _, versions in notes for version in versions} > {0}, "new weights reach the searchers"
    last = recorder.reports[-1].metrics
    assert (last["searchers_replaced"], last["leases_expired"], last["duplicates"]) == (1, 1, 0)
    assert 0 <= last["waited"] <= 1
    assert 0 <= last["idle"] <= 1
    assert all(gone(pid) for pid in pids.values())


def test_with_a_fixed_lag_runs_are_the_same_bit_for_bit_with_any_engine() -> None:
    """Also where a searcher is killed, and the run goes on from a checkpoint, with another number of searchers."""
    env = Troubled(pause=0.01)
    alone = searching(InProcess(), env, fixed_lag=True)
    alone.run()
    engine = Ray(2)
    first = searching(engine, env, fixed_lag=True, steps=8)
    first.callbacks = [Killer(engine, 4)]
    first.run()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    first.sampler.close()
    file.seek(0)
    second = searching(Ray(1), env, fixed_lag=True)
    second.load_state_dict(torch.load(file, weights_only=True))
    second.run()
    state = snapshot(second)
    second.sampler.close()
    assert state["samplers"][0]["ledger"]["expired"] == 1
    state["samplers"][0]["ledger"]["expired"] = 0
    assert not differences(state, snapshot(alone))


def test_what_was_on_its_way_at_a_checkpoint_is_made_again(tmp_path: Path) -> None:
    """The trainer is interrupted two updates after a checkpoint; a new one in a new Ray goes on from there."""
    first = searching(Ray(2), Troubled(pause=0.02), checkpoints=tmp_path, save_every=5)
    stop = StopAfter(7)
    first.stop = lambda: stop.wanted() and bool(1 / 0)  # an error that saves nothing, as a crash would be
    first.callbacks = [stop]
    with pytest.raises(ZeroDivisionError):
        first.run()
    first.sampler.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000005.pt"]
    second = searching(Ray(2), Troubled(pause=0.02), checkpoints=tmp_path)
    assert second.resume()
    second.run()
    notes = [*first.sampler.notes[:5], *second.sampler.notes]
    second.sampler.close()
    assert [step for step, _, _ in notes] == list(range(STEPS))
    assert Counter(number for _, numbers, _ in notes for number in numbers) == Counter(range(60))
    assert all(0 <= step - version <= 2 for step, _, versions in notes for version in versions)


@pytest.mark.parametrize("order", ["fail", "die", "hang once"])
def test_trouble_in_a_reward(order: str, tmp_path: Path) -> None:
    trouble = tmp_path / "trouble"
    run = searching(Ray(1, time_limit=5.0), Troubled(trouble=trouble), checkpoints=tmp_path / "kept")
    run.callbacks = [recorder := Recorder()]
    run.steps = 3
    run.run()
    trouble.write_text(order)
    run.steps = 9
    if order == "hang once":
        run.run()
        assert recorder.reports[-1].metrics["searchers_replaced"] == 1
        assert [number for _, numbers, _ in run.sampler.notes for number in numbers] == list(range(36))
        run.sampler.close()
        return
    kind = RewardError if order == "fail" else SearchError
    message = (
        "^the oracle is out of order\n" if order == "fail" else r"group \d+ was given to searchers 5 times .* died"
    )
    with pytest.raises(kind, match=message):
        run.run()
    done = run.step
    assert done < 9
    assert (tmp_path / "kept" / f"step_{done:09d}.pt").exists(), "the updates before are kept"
    trouble.unlink()
    run.sampler.close()
    run.run()
    assert run.step == 9
    assert [number for _, numbers, _ in run.sampler.notes for number in numbers] == list(range(36))
    run.sampler.close()


def test_a_trainer_that_waits_in_vain_is_told_what_for() -> None:
    run = searching(Ray(1, timeout=40.0), Troubled(pause=1000.0))
    message = (
        r"no group has come for timeout=40 s, and the trainer waits for 4: 1 groups given out, "
        r"0 trained on, 0 waiting; being made: 0 with searcher-0; .* searcher-0 at group 0 for \d+ s; 0 replaced"
    )
    with pytest.raises(SearchError, match=message):
        run.run()
    (pid,) = run.sampler.engine.pids().values()
    del run
    gc.collect()  # the traceback of the error may be part of a cycle
    assert gone(pid), "searchers end with their sampler, closed or not"


def test_two_runs_in_one_process_do_not_disturb_each_other() -> None:
    engines = Ray(1), Ray(1)
    runs = [searching(engine, Troubled()) for engine in engines]
    for run in runs:
        run.steps = 4
        run.run()
    assert len({*engines[0].pids().values(), *engines[1].pids().values()}) == 2
    runs[0].sampler.close()
    runs[1].steps = 8
    runs[1].run()
    assert [number for _, numbers, _ in runs[1].sampler.notes for number in numbers] == list(range(32))
    runs[1].sampler.close()


def test_what_cannot_be_sent_is_told() -> None:
    with pytest.raises(SearchError, match=r"cannot be pickled: .*lock.*; give the class a __getstate__"):
        searching(Ray(1), Unsendable()).run()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost"])
def test_a_cluster_that_is_not_there(address: str) -> None:
    began = time.monotonic()
    with pytest.raises(SearchError, match=f"cannot join the Ray cluster at {address}: .*; start one with `ray start"):
        searching(Ray(1, address=address), Troubled()).run()
    assert time.monotonic() - began < 30


COMMAND = [
    "sampler=asynchronous", "sampler/engine=ray", "sampler.batch_size=8", "sampler.group_size=4", "env.side=4",
    "policy.width=8", "logger=quiet", "logger.metrics.every=1", "evaluator.every=1000", "trainer.lr=0.01",
]  # fmt: skip


def test_the_command_is_interrupted_and_goes_on(tmp_path: Path) -> None:
    """SIGTERM ends the step and saves, though Ray would leave at once; no searcher is left behind."""
    command = [sys.executable, "-m", "experiments.train", *COMMAND, f"run={tmp_path / 'run'}"]
    settings = {"stderr": subprocess.STDOUT, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([*command, "trainer.steps=100000"], **settings)
    metrics = tmp_path / "run" / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and metrics.read_text().count("\n") > 20:
            break
        time.sleep(0.1)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, output
    (saved,) = (tmp_path / "run" / "checkpoints").glob("step_*.pt")
    done = int(saved.stem.removeprefix("step_"))
    assert done > 20
    more = [*command, f"trainer.steps={done + 5}", "sampler.engine.searchers=1"]
    again = subprocess.run(more, timeout=300, check=False, **settings)
    assert again.returncode == 0, again.stdout
    assert f"{done + 5} of {done + 5} steps" in again.stdout
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if "loss" in json.loads(line)]
    assert steps == list(range(1, done + 6))
