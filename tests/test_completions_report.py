"""The report on objectives for language models: what it reads from runs, and which of them hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments.reports.completions import chosen, load, main, table
from experiments.runs import RunError

BETA, RIGHT = 0.25, 0.3  # of the reference
LOG_Z = math.log(1 - RIGHT + RIGHT * math.exp(1 / BETA))


def write_run(folder: Path, method: str, lag: int, rate: float, kl: float) -> Path:
    config = {"name": method, "env": {"temperature": BETA}, "sampler": {"lag": lag}, "trainer": {"lr": rate}}
    if rate > 1e-3:
        config["trainer"]["lr"] = {"_target_": "gfn.schedules.Cosine", "start": rate, "end": 0.0, "steps": 9}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    lines = [{"step": 1, "loss": 1.0}]
    for step in (10, 20):
        measured = {
            "kl_model_target": kl * 20 / step, "tv_coarse": kl / 4, "log_z_error": -kl, "log_z_importance": LOG_Z,
            "log_z_exact": LOG_Z, "exceptions_mass": 0.8 - 0.1 * kl, "exceptions_mass_target": 0.96,
            "unique_right": 9.0, "entropy": 4.0, "kl_prior": 1.0, "reward": 0.8,
        }  # fmt: skip
        lines.append({"step": step, **{f"eval/{name}": value for name, value in measured.items()}})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return folder


def test_runs_are_read_grouped_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = LOG_Z - RIGHT / BETA  # KL from the reference to the target
    runs = [
        write_run(tmp_path / f"runs/{method}_{lag}_{rate}_{seed}", method, lag, rate, kl)
        for method, lag, rate, seed, kl in (
            ("a", 0, 1e-3, 0, 0.2), ("a", 0, 1e-3, 1, 0.4), ("a", 0, 1e-3, 2, start + 0.01),
            ("a", 50, 3e-3, 0, start - 0.01), ("b", 50, 1e-3, 0, 30.0),
        )
    ]  # fmt: skip
    outcomes = load(runs)
    assert [o.holds for o in outcomes] == [True, True, False, True, False]
    assert len(chosen(outcomes, method="a", lag=0)) == 3
    rows = [row.split(" | ") for row in table(outcomes).splitlines()[2:]]
    assert [row[:5] for row in rows] == [
        ["| a", "0", "0.001", "3", "2"], ["| a", "50", "0.003", "1", "1"], ["| b", "50", "0.001", "1", "0"],
    ]  # fmt: skip
    assert rows[0][5] == f"0.4 (0.2–{start + 0.01:.3g})"
    assert rows[2][5] == "30"
    assert main([str(tmp_path / "runs/*"), f"out={tmp_path / 'report'}"]) == 0
    assert (tmp_path / "report/completions.png").stat().st_size > 10_000
    assert (tmp_path / "report/completions.md").read_text(encoding="utf-8") in capsys.readouterr().out


def test_what_is_no_such_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunError, match="no run directories were given"):
        load([])
    assert main([str(tmp_path / "nothing*")]) == 1
    other = write_run(tmp_path / "other", "a", 0, 1e-3, 0.1)
    (other / "metrics.jsonl").write_text('{"step": 1, "eval/tv": 0.1}', encoding="utf-8")
    assert main([str(other)]) == 1
    assert "has no evaluation against an exact target of completions; run env=tokens" in capsys.readouterr().err
    (other / "config.yaml").unlink()
    with pytest.raises(RunError, match=r"other is not a run directory: it has no config\.yaml"):
        load([other])
