"""What the console commands print, called within this process: help, completion, dry runs, tables of sweeps."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

from tests.composing import SMALL, built
from tests.test_callbacks import Terminal

CONSOLE = {"train": "gfn-train", "evaluate": "gfn-eval", "sample": "gfn-sample", "check": "gfn-check"}
CONSOLE["export"] = "gfn-export"


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty directory, and without a trace of the command afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def command(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """Run a console command with these arguments; its exit code."""
    monkeypatch.setattr(sys, "argv", [CONSOLE[name], *arguments])
    try:
        importlib.import_module(f"experiments.{name}").cli()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    "name", ["evaluate", *(pytest.param(n, marks=pytest.mark.slow) for n in CONSOLE if n != "evaluate")]
)
def test_help_has_examples_and_values(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, name, "--help") == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{CONSOLE[name]}: ")
    examples = shown.partition("== Examples ==")[2].partition("==")[0]
    assert examples.count(CONSOLE[name]) >= 3
    assert ("run:" if name == "export" else "threads: 1") in shown.partition("== Values")[2]


def test_shells_can_complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "train", "-sc", "install=bash") == 0
    assert "complete -o nospace" in capsys.readouterr().out
    monkeypatch.setenv("COMP_LINE", "gfn-train env=hyp")
    monkeypatch.setenv("COMP_POINT", "17")
    GlobalHydra.instance().clear()
    assert command(monkeypatch, "train", "-sc", "query=bash") == 0
    assert capsys.readouterr().out.split() == ["env=hypergrid"]


def test_the_nearest_option_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(monkeypatch, "train", "env=hypergird") == 2
    told = capsys.readouterr().err
    assert "env: there is no 'hypergird'; did you mean hypergrid? (to choose from: bits" in told
    assert "custom" in told


def test_no_steps_show_what_would_be_trained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = [value for value in SMALL if "steps" not in value]
    assert command(monkeypatch, "train", *dry, "partition=learned", "trainer.steps=0", "run=dry") == 0
    shown = capsys.readouterr().out
    for text in (
        "gfn.policies.MLPPolicy",
        "gfn.objectives.balance.trajectory_balance",
        "171 parameters",  # 8·8 + 8 + 8·8 + 8 + 3·8 + 3
        "trained: log_z, 1 parameters, learning rate 0.1",
        "32 states, 16 of them terminal, 40 edges, exact log Z",
        "0 of 0 steps",
    ):
        assert text in shown, shown


def test_a_terminal_shows_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    few = [value for value in SMALL if value.split("=")[0] not in ("trainer.steps", "logger")]
    assert command(monkeypatch, "train", *few, "run=watched", "trainer.steps=6", "~logger.tensorboard") == 0
    for word in ("loss", "logZ", "exact", "TV", "regions", "6/6"):
        assert word in shown.getvalue(), word


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Four short runs of two α and two seeds, and a directory that is no run."""
    from experiments import runs

    for number, (alpha, seed) in enumerate((a, s) for a in (0.0, 2.0) for s in (0, 1)):
        directory = tmp_path / f"sweep/{number}"
        chosen = ["divergence=alpha", f"divergence.alpha={alpha}", f"seed={seed}", "logger=quiet"]
        run = built(directory, *SMALL, *chosen)
        directory.mkdir(parents=True)
        runs.prepare(run, directory, chosen)
        run.trainer.run()
    (tmp_path / "sweep/none").mkdir()
    return tmp_path / "sweep"


def test_a_sweep_becomes_a_table(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, "evaluate", "runs=sweep/*", "n_samples=16", "out=tables/all.csv") == 0
    shown = capsys.readouterr()
    rows = list(csv.DictReader(Path("tables/all.csv").read_text().splitlines()))
    settings = [(row["run"], row["alpha"], row["seed"], row["step"]) for row in rows]
    assert settings == [(f"sweep/{i}", alpha, str(i % 2), "3") for i, alpha in enumerate(["0.0", "0.0", "2.0", "2.0"])]
    assert all(0 < float(row["tv"]) < 1 for row in rows)
    lines = Path("tables/all.md").read_text().splitlines()
    assert lines[0].startswith("| alpha | seeds | tv | jsd_nats | kl_model_target | log_z |")
    low, high = sorted(float(row["tv"]) for row in rows[:2])
    assert lines[2].startswith(f"| 0.0 | 2 | {(low + high) / 2:.4g} ({low:.4g}–{high:.4g}) |")
    assert len(lines) == 4
    assert "\n".join(lines) in shown.out
    assert "4 of 5 runs" in shown.out
    assert "left out: sweep/none is not a run directory" in shown.err
    assert (sweep / "3/evaluation.json").is_file()


def test_what_cannot_be_evaluated_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert command(monkeypatch, "evaluate", "runs=nothing/*") == 1
    assert "no run directories match" in capsys.readouterr().err
    GlobalHydra.instance().clear()
    assert command(monkeypatch, "evaluate", "runs=empt*") == 1
    assert "none of the 1 directories holds a run" in capsys.readouterr().err
    GlobalHydra.instance().clear()
    assert command(monkeypatch, "evaluate", "runs=empt*", "run=empty") == 2
    assert "both were given" in capsys.readouterr().err
