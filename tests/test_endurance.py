"""The benchmark of endurance: its account is right, and small runs of it endure."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks import endurance, proc
from experiments.benchmarks.blows import Blow, Ordeal, Weight, endure
from experiments.benchmarks.endurance import DEFAULTS, account, blows, drawn, flatness, main, plan_of
from experiments.benchmarks.endured import Account, Plan, trainer
from gfn import checkpoint
from gfn.distributed import InProcess

PLAN = Plan(groups=12, per_step=2, group_size=2, save_every=2)


def finished(directory: Path, plan: Plan = PLAN) -> Account:
    """A run in this process, with checkpoints; its sampler."""
    run = trainer(plan, InProcess(), checkpoints=directory / "checkpoints", save_every=plan.save_every)
    run.run()
    assert isinstance(run.sampler, Account)
    return run.sampler


def test_a_run_that_went_well_is_accounted_for(tmp_path: Path) -> None:
    finished(tmp_path)
    lines, wrong = account(PLAN, Ordeal(), tmp_path)
    assert not wrong
    assert lines[0] == "12 groups trained on, 12 unique, 0 missing, 0 twice; 6 of 6 updates"
    assert lines[1] == "age 0 to 2 updates, bound 2; 0 leases expired, 0 duplicates ignored"


def test_what_was_trained_on_after_a_checkpoint_is_not_in_the_account_of_a_run_that_goes_on_from_it(
    tmp_path: Path,
) -> None:
    first = trainer(PLAN, InProcess(), checkpoints=tmp_path, save_every=2)
    first.steps = 3
    first.save = lambda: checkpoint.save(checkpoint.path_of(tmp_path, first.step), first.state_dict())  # of each step
    first.run()
    checkpoint.path_of(tmp_path, 3).unlink(missing_ok=True)
    second = trainer(PLAN, InProcess(), checkpoints=tmp_path)
    assert second.resume()
    assert second.step == 2
    assert isinstance(second.sampler, Account)
    assert second.sampler.trained.tolist() == [1] * 4 + [0] * 8
    second.run()
    assert second.sampler.trained.tolist() == [1] * 12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trained": torch.tensor([2] + [1] * 11)}, "not every group was trained on exactly once"),
        ({"trained": torch.tensor([0] + [1] * 11)}, "not every group was trained on exactly once"),
        ({"ages": [0, 3]}, "a group was 3 updates old"),
        ({"ages": [-1, 2]}, "a group was -1 updates old"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    finished(tmp_path)
    newest = checkpoint.newest(tmp_path / "checkpoints")
    assert newest is not None
    path, state = newest
    state["samplers"][0].update(change)
    checkpoint.save(path, state)
    assert account(PLAN, Ordeal(), tmp_path)[1] == [message]
    assert account(PLAN, Ordeal(trouble=["it hangs"]), tmp_path)[1] == ["it hangs", message]
    assert account(PLAN, Ordeal(trouble=["it failed"]), tmp_path / "none")[1] == [
        "it failed",
        "it has left no checkpoint",
    ]


def test_with_a_fixed_lag_the_model_has_to_be_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    plan = Plan(groups=12, per_step=2, group_size=2, fixed_lag=True, seed=4)
    finished(tmp_path, plan)
    lines, wrong = account(plan, Ordeal(), tmp_path)
    assert not wrong
    assert lines[-1] == "the model is that of an undisturbed run, bit for bit"
    other = Plan(groups=12, per_step=2, group_size=2, fixed_lag=True, seed=5)
    assert account(other, Ordeal(), tmp_path)[1] == [
        "with a fixed lag, the model is another than that of an undisturbed run"
    ]


def test_memory_that_grows_is_not_flat() -> None:
    process = proc.Process(1, 1)

    def told(slope: float, seconds: int = 400) -> list[bool]:
        weights = [Weight(t, 200 + slope * t, 0.0) for t in range(seconds)]
        return [flat for _, flat in flatness(Ordeal(memory={("trainer", process): weights}))]

    assert (told(0.0), told(0.02), told(0.2), told(0.2, 60)) == ([True], [True], [False], [True])


def test_blows_are_drawn_within_the_run_and_in_order() -> None:
    struck = blows(Plan(groups=400), 5, 2, 1, random.Random(0))
    assert sorted(blow.kind for blow in struck) == ["freeze"] * 2 + ["kill"] * 5 + ["trainer"]
    assert [blow.step for blow in struck] == sorted(blow.step for blow in struck)
    assert all(0 <= blow.step < 90 for blow in struck)
    plans = [drawn(random.Random(i), "somewhere")[0] for i in range(40)]
    assert all(plan.groups % plan.per_step == 0 for plan in plans)
    assert {plan.address for plan in plans} == {None, "somewhere"}
    assert {plan.fixed_lag for plan in plans} == {True, False}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("groups=7", "groups: expected a multiple of per_step=4, got 7"),
        ("group_size=1", "group_size: expected at least 2"),
        ("fixed_lag=yes", "fixed_lag: expected true or false, got 'yes'"),
        ("pause=-1", "pause: expected a number of seconds, got '-1'"),
        ("kills=many", "kills: expected numbers"),
        ("colour=red", "expected the options out, runs"),
        ("out=/proc", "/proc is not empty"),
    ],
)
def test_options_that_do_not_fit(option: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 2
    assert message in capsys.readouterr().err


def test_options_reach_the_plan() -> None:
    given = {**DEFAULTS, "groups": "20", "staleness": "0", "fixed_lag": "true", "pause": "0.5", "width": "8"}
    assert plan_of(given) == Plan(20, 4, 4, 3, 0, True, 8, 0.5, 5, 10.0, None, 0)


def test_processes_of_linux() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    process = proc.of(child.pid)
    assert process is not None
    assert process in proc.descendants(os.getpid())
    assert process.running
    assert process.memory[0] > 0
    assert not proc.Process(child.pid, process.born + 1).running, "another one that had the same number"
    process.send(signal.SIGKILL)
    child.wait()
    assert not process.running
    assert (process.memory, process.name, proc.of(child.pid)) == ((0.0, 0.0), "", None)
    assert proc.left_of([process], 0.0) == []


@pytest.mark.slow
def test_a_run_whose_searchers_and_trainer_are_killed_endures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["groups=120", "searchers=2", "kills=1", "freezes=1", "time_limit=5", "fixed_lag=true"]
    assert main([*options, f"out={tmp_path / 'run'}"]) == 0
    told = capsys.readouterr().out
    assert "120 groups trained on, 120 unique, 0 missing, 0 twice; 30 of 30 updates" in told
    assert "1 searchers killed, 1 frozen, 1 trainers killed; " in told
    assert "1 resumes" in told
    assert "the model is that of an undisturbed run, bit for bit" in told


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_and_its_stacks_are_told(tmp_path: Path) -> None:
    plan = Plan(groups=8, searchers=1, pause=10_000.0, time_limit=20_000.0)
    ordeal = endure(plan, [Blow("kill", 3, 0.0)], tmp_path, limit=25.0)
    (trouble,) = ordeal.trouble
    assert trouble.startswith("it hangs, and is ended; stacks: ")
    assert "in wait_for_group" in trouble
    assert ordeal.missed == 1


@pytest.mark.slow
def test_random_runs_endure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endurance, "DEFAULTS", {**DEFAULTS, "limit": "300"})
    assert main(["runs=1", "seed=1"]) == 0, capsys.readouterr().out
