"""The search for hyper-parameters: what is asked, told, given up and resumed."""

from __future__ import annotations

import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.tune import Watch, main, split
from gfn.reporting import Report

SMALL = ["env.side=4", "policy.width=8", "sampler.batch_size=8", "trainer.steps=4", "evaluator.every=2"]


def test_what_is_searched_is_told_from_what_is_fixed() -> None:
    searched, fixed = split(
        ["trainer.lr=log:1e-4:1e-2", "trainer.steps=5", "exploration.epsilon=linear:0.1:0", "a=choice:x:y"]
    )
    assert searched == {"trainer.lr": ["log", "1e-4", "1e-2"], "a": ["choice", "x", "y"]}
    assert fixed == ["trainer.steps=5", "exploration.epsilon=linear:0.1:0"]
    with pytest.raises(ValueError, match="expected log:low:high, got log:1"):
        split(["trainer.lr=log:1"])
    with pytest.raises(ValueError, match="nothing is searched"):
        split(["trainer.steps=5"])


def test_a_trial_that_is_behind_is_given_up_but_not_at_its_end() -> None:
    told: list[tuple[float, int]] = []
    trial: Any = SimpleNamespace(report=lambda value, step: told.append((value, step)), should_prune=lambda: True)
    watch = Watch(trial, "eval/tv")
    watch(Report(1, 4, 8, {"loss": 1.0}, None))
    assert not watch.wanted()
    watch(Report(2, 4, 16, {"loss": 1.0}, {"tv": 0.5}))
    assert watch.wanted()
    watch(Report(4, 4, 32, {"loss": 1.0}, {"tv": 0.25}))
    assert not watch.wanted()
    assert told == [(0.5, 2), (0.25, 4)]
    with pytest.raises(ValueError, match="goal: there is no 'eval/tv' among eval/jsd"):
        watch(Report(4, 4, 32, {"loss": 1.0}, {"jsd": 0.25}))


@pytest.mark.slow
def test_a_search_is_stored_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        *SMALL, "divergence=alpha", "divergence.alpha=range:0:1", "trainer.lr=log:1e-4:1e-1",
        f"storage=sqlite:///{tmp_path / 'tune.db'}", f"out={tmp_path}",
    ]  # fmt: skip
    assert main([*arguments, "trials=2"]) == 0
    before = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["state"] for row in before] == ["complete"] * 2
    assert main([*arguments, "trials=3"]) == 0
    after = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert after[:2] == before
    assert len(after) == 3
    best = min(float(row["value"]) for row in after)
    assert f"eval/tv {best:.5g} with divergence.alpha=" in capsys.readouterr().out


def test_arguments_that_do_not_fit_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*SMALL, "trainer.lrr=log:1e-4:1e-2", "trials=1"]) == 2
    assert "did you mean lr" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([]) == 2
    assert "pip install 'fgfn[tune]'" in capsys.readouterr().err
