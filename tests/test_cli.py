"""The console commands, as a person types them: subprocesses in an empty directory."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SMALL = ["env.side=4", "policy.width=8", "sampler.batch_size=8", "evaluator.every=5"]


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", f"from experiments.{name} import cli; cli()", *arguments]


def call(cwd: Path, name: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", **extra}
    return subprocess.run(command(name, *arguments), cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short finished run."""
    cwd = tmp_path_factory.mktemp("cli")
    done = call(cwd, "train", *SMALL, "run=first", "trainer.steps=20", "name=toy_name", "seed=7")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "without a terminal a short run is quiet"
    return cwd / "first"


def test_run_directory_tells_how_it_came_to_be(finished: Path) -> None:
    for name in (
        "metrics.jsonl",
        "config.yaml",
        "overrides.txt",
        ".hydra/config.yaml",
        "figures/distribution.png",
        "figures/progress.png",
        "checkpoints/step_000000020.pt",
    ):
        assert (finished / name).stat().st_size > 0, name
    assert list((finished / "tensorboard").iterdir())
    text = (finished / "README.md").read_text()
    for part in ("toy_name", "20 of 20 updates", "160 trajectories", "seed 7", "env.side=4", "torch 2", "eval/tv"):
        assert part in text, part
    assert (finished / "figures/progress.png").read_bytes().startswith(b"\x89PNG")


def test_evaluate_and_sample(finished: Path) -> None:
    done = call(finished.parent, "evaluate", "run=first", "n_samples=64")
    assert done.returncode == 0, done.stderr
    written = json.loads((finished / "evaluation.json").read_text())
    trained = json.loads((finished / "metrics.jsonl").read_text().splitlines()[-1])
    assert written["tv"] == pytest.approx(trained["eval/tv"], abs=1e-12)
    assert written["step"] == 20

    assert call(finished.parent, "sample", "run=first", "n=1500").returncode == 0
    rows = list(csv.DictReader((finished / "samples.csv").open()))
    assert len(rows) == 1500
    again = call(finished.parent, "sample", "run=first", "n=3", "format=jsonl", "out=-")
    lines = [json.loads(line) for line in again.stdout.splitlines()]
    assert len(lines) == 3
    assert all(line["log_reward"] < 1 and line["log_pf"] < 0 for line in lines)
    other = call(finished.parent, "sample", "run=first", "n=3", "format=jsonl", "out=-", "seed=1").stdout
    assert other != again.stdout
    refused = call(finished.parent, "sample", "run=first", "format=sdf")
    assert refused.returncode == 2
    assert "sdf is for molecules, and this is a run of Hypergrid; choose csv or jsonl" in refused.stderr


EXPORTING = """
from envs.hypergrid import Hypergrid

class Grid(Hypergrid):
    def export(self, t, directory, log_p=None):
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / "corners.txt"
        estimates = [] if log_p is None else log_p.exp().tolist()
        target.write_text(f"{len(t)} {sum(estimates)}")
        return [target]
"""


@pytest.mark.slow
def test_an_environment_may_write_files_about_samples(tmp_path: Path) -> None:
    (tmp_path / "own_grid.py").write_text(EXPORTING, encoding="utf-8")
    own = ["env=custom", "env._target_=own_grid.Grid", "env.side=2", "env.ndim=1", "sampler.batch_size=4"]
    assert call(tmp_path, "train", *own, "run=own", "trainer.steps=2").returncode == 0
    place = tmp_path / "own/samples/corners.txt"
    assert call(tmp_path, "sample", "run=own", "n=5", "out=-").returncode == 0
    assert call(tmp_path, "sample", "run=own", "n=5", "files=null").returncode == 0
    assert not place.exists()
    done = call(tmp_path, "sample", "run=own", "n=1030", "backward_samples=2")
    assert "1 files about them written to own/samples" in done.stdout, done.stderr
    count, total = place.read_text().split()
    assert count == "1030", "all batches"
    assert 400 < float(total) < 630, "estimates of probabilities, each near one half"


def test_resumes_with_the_overrides_it_began_with(finished: Path) -> None:
    before = (finished / "metrics.jsonl").read_text()
    done = call(finished.parent, "train", "run=first", "trainer.steps=30")
    assert done.returncode == 0, done.stderr
    assert "after step 20" in done.stdout
    after = (finished / "metrics.jsonl").read_text()
    assert after.startswith(before)
    assert json.loads(after.splitlines()[-1])["step"] == 30
    again = call(finished.parent, "train", "run=first")
    assert again.returncode == 0
    assert (finished / "metrics.jsonl").read_text() == after
    other = call(finished.parent, "train", "run=first", "env.side=5")
    assert other.returncode == 1
    assert "env.side: 4 when it was started, 5 now" in other.stderr
    fresh = call(finished.parent, "train", "run=first", "resume=never")
    assert fresh.returncode == 1
    assert "resume=never" in fresh.stderr


def test_signal_stops_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    arguments = [*SMALL, "run=killed", "trainer.steps=1000000", "logger=quiet", "logger.metrics.every=1"]
    process = subprocess.Popen(command("train", *arguments), cwd=tmp_path, stderr=subprocess.PIPE)
    metrics = tmp_path / "killed/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size > 2000):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    last = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert (tmp_path / f"killed/checkpoints/step_{last:09d}.pt").exists()


def test_sweep_and_help(tmp_path: Path) -> None:
    done = call(
        tmp_path, "train", "-m", *SMALL, "trainer.steps=2", "logger=quiet", "divergence=alpha", "divergence.alpha=0,2"
    )
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("runs/four_corners/sweep_*/*/metrics.jsonl"))
    assert [json.loads(f.read_text().splitlines()[-1])["alpha"] for f in files] == [0.0, 2.0]
    shown = call(tmp_path, "train", "--help")
    assert shown.returncode == 0
    assert "jensen_shannon" in shown.stdout
    assert "alpha:" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [("joblib", "hydra.launcher.n_jobs=2"), ("submitit_local", "hydra.launcher.timeout_min=3")]
)
def test_launchers_of_sweeps(launcher: tuple[str, str], tmp_path: Path) -> None:
    """Runs of a sweep side by side: processes of joblib, and jobs of submitit on this machine as on a cluster."""
    name, setting = launcher
    done = call(
        tmp_path,
        "train",
        "-m",
        f"hydra/launcher={name}",
        setting,
        *SMALL,
        "trainer.steps=2",
        "logger=quiet",
        "seed=0,1",
    )
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("runs/four_corners/sweep_*/[01]/metrics.jsonl"))
    assert [json.loads(f.read_text().splitlines()[-1])["step"] for f in files] == [2, 2]
    assert len({f.read_text() for f in files}) == 2, "each has a seed of its own"


@pytest.mark.slow
def test_processes_train_together_and_resume(tmp_path: Path) -> None:
    """torchrun: two processes, each with its own trajectories, one run directory, the first reports."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for steps in (4, 6):
        arguments = [
            *launcher,
            "-m",
            "experiments.train",
            *SMALL,
            "run=joint",
            f"trainer.steps={steps}",
            "logger=quiet",
        ]
        done = subprocess.run(arguments, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"{steps} of {steps} steps") == 1
    last = json.loads((tmp_path / "joint/metrics.jsonl").read_text().splitlines()[-1])
    assert last["trajectories"] == 6 * 2 * 8
    alone = call(tmp_path, "train", "run=joint", "trainer.steps=8")
    assert alone.returncode == 1
    assert "made by 2 processes and there are 1 now" in alone.stderr


BAD = {  # arguments: exit code, and what the message must say
    ("env.sidee=3", "trainer.steps=abc", "divergence.alpha=foo"): (
        2,
        ["did you mean side", "trainer.steps", "schedule"],
    ),
    ("env=nosuch",): (2, ["hypergrid", "custom"]),
    ("env=hypergird",): (2, ["env: there is no 'hypergird'; did you mean hypergrid?"]),
    ("env=custom",): (2, ["env._target_", "missing"]),
    ("env=custom", "env._target_=nosuch.Env"): (2, ["cannot import nosuch", "working directory"]),
    ("env=custom", "env._target_=os.system", "env.command=touch\\ stolen"): (2, ["GFN_TRUST=os"]),
    ("env=custom", "env._target_=gfn.storage.os.system", "env.command=touch\\ stolen"): (
        2,
        ["outside what configs"],
    ),
    ("env/reward=user", "env.reward.function=os.getpid"): (2, ["GFN_TRUST=os"]),
    ("logger.wandb.mode=online",): (2, ["logger.wandb: nothing says what this is", "logger=…"]),
    ("env.side=1",): (2, ["side >= 2", "side=1"]),
    ("env.reward.r0=-1",): (2, ["env.reward", "not negative", "-1"]),
    ("sampler.batch_size=1",): (2, ["DevGrad", "at least 2", "partition=learned"]),
    ("sampler.batch_size=10", "sampler.group_size=4"): (2, ["multiple of group_size"]),
    ("env=custom", "env._target_=envs.hypergrid.Hypergrid", "env.side=???"): (2, ["env.side", "missing"]),
    ("run=file/below",): (1, ["file/below", "choose another run directory"]),
    ("partition=exact", "env.side=20", "env.ndim=6", "evaluator.exact=false"): (2, ["too many to list"]),
    ("env/reward=sparse", "env.reward.floor=0", "divergence=reverse_kl"): (1, ["reward zero", "alpha below 1"]),
}


BROKEN = """
import torch
from envs.hypergrid import Hypergrid

class Stuck(Hypergrid):
    def forward_mask(self, states):
        return super().forward_mask(states) & (states.coords.sum(1, keepdim=True) < 2)

class Endless(Hypergrid):
    def is_terminal(self, states):
        return torch.zeros(len(states.coords), dtype=torch.bool)
    def step(self, states, actions):
        return states

class NoReward(Hypergrid):
    def log_reward(self, states):
        return torch.where(states.coords[:, 0] == 1, torch.nan, 0.0)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Stuck", ["states allow no action", "check the mask"]),
        pytest.param("Endless", ["have not ended after max_steps=7", "is_terminal"], marks=pytest.mark.slow),
        pytest.param("NoReward", ["log-reward of state 1 0 stop is nan"], marks=pytest.mark.slow),
    ],
)
def test_broken_environment_is_named(name: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(BROKEN)
    target = ["env=custom", f"env._target_=mine.{name}", "env.side=4", "logger=quiet", "evaluator.exact=false"]
    done = call(tmp_path, "train", *target)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments", [pytest.param(case, marks=[pytest.mark.slow] if i % 4 else []) for i, case in enumerate(BAD)]
)
def test_bad_input_gets_one_clear_message(arguments: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, words = BAD[arguments]
    done = call(tmp_path, "train", *arguments)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("evaluate", (), ["run: a value is missing"]),
        ("evaluate", ("run=nowhere",), ["nowhere", "not a run directory"]),
        ("sample", ("run=nowhere", "format=xml", "n=0"), ["format: expected csv or jsonl", "n: expected at least 1"]),
        ("check", ("env=custom", "env._target_=nosuch.Env"), ["cannot import nosuch"]),
    ],
)
def test_bad_input_of_other_commands(name: str, arguments: tuple[str, ...], words: list[str], tmp_path: Path) -> None:
    done = call(tmp_path, name, *arguments)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
