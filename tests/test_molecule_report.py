"""The report on runs that make molecules: the last evaluation of each run, by what sets the runs apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.reports import molecules
from experiments.reports.curves import load, table


def run_of(folder: Path, seed: int, alpha: float, rewards: list[float]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"seed: {seed}\ndivergence: {{alpha: {alpha}}}\n", encoding="utf-8")
    lines = [
        {"step": i, "trajectories": 64 * i, "eval/reward_mean": reward, "good_scaffolds": 10 * i}
        for i, reward in enumerate(rewards, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def test_report_tells_the_last_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, reward in enumerate((0.5, 0.7, 0.6)):
        run_of(tmp_path / f"low{seed}", seed, 0.5, [0.1, 0.2, reward])
        run_of(tmp_path / f"high{seed}", seed, 1.0, [0.3, 0.4, reward + 0.2])
    assert molecules.main([f"{tmp_path}/*", f"out={tmp_path / 'out'}"]) == 0
    rows = (tmp_path / "out" / "molecules.md").read_text(encoding="utf-8").splitlines()
    assert rows[2] == "| alpha = 0.5 | 3 | 192 | 0.6 (0.5–0.7) | 30 (30–30) |"
    assert rows[3] == "| alpha = 1.0 | 3 | 192 | 0.8 (0.7–0.9) | 30 (30–30) |"
    assert (tmp_path / "out" / "molecules.png").stat().st_size > 10_000
    assert "mean reward" in capsys.readouterr().out
    whole = table(load([tmp_path / "low0"]), molecules.PANELS, last=3)
    assert "| 0.2 |" in whole


def test_report_without_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert molecules.main([f"{tmp_path}/nothing*", f"out={tmp_path}"]) == 1
    assert "molecules: no run directories" in capsys.readouterr().err
    run_of(tmp_path / "fresh", 0, 1.0, [])
    assert molecules.main([f"{tmp_path}/fresh", f"out={tmp_path}"]) == 1
    assert "have none of the metrics eval/reward_mean" in capsys.readouterr().err
