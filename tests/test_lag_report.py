"""The report on lags: runs are told apart by environment, method and lag, and those that were harmed are counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from experiments.reports.lag import load, main, table
from experiments.runs import RunError


def written(folder: Path, name: str, lag: int, seed: int, distances: list[float], env: str, steps: int = 40) -> Path:
    directory = folder / f"{env}_{name}_{lag}_{seed}"
    directory.mkdir()
    config = {"name": name, "sampler": {"lag": lag}, "env": {"_target_": f"envs.{env}"}, "trainer": {"steps": steps}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    modes = {"eval/regions_kept": 4.0 - seed} if env == "Grid" else {"eval/unique_right": 10.0 + seed}
    lines = [{"step": 10 * (i + 1), "eval/kl_model_target": d, **modes} for i, d in enumerate(distances)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (directory / "metrics.jsonl").write_text(text, encoding="utf-8")
    return directory


def test_runs_are_told_apart_and_the_harmed_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, late in enumerate(([3.0, 0.5, 0.1, 0.3], [3.0, 0.5, 0.2, 0.4], [3.0, 9.0, 8.0, 9.0])):
        written(tmp_path, "tb", 50, seed, late, "Grid")
    written(tmp_path, "tb", 0, 0, [3.0, 0.1, 0.1, 0.1], "Grid")
    written(tmp_path, "ppo", 0, 0, [3.0, 0.5, 0.2], "Grid")  # broke off after 30 of 40 updates
    written(tmp_path, "tb", 0, 0, [1.0, 1.0, 1.0, 1.0], "Text")
    written(tmp_path, "tb", 5, 0, [], "Text")
    assert main([f"{tmp_path}/*_*", f"out={tmp_path / 'out'}"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows == [
        "| method | lag | seeds | worse | KL(policy‖target), nats | modes kept |",
        "| ppo | 0 | 1 | 1 | 0.2 | 4 |",
        "| tb | 0 | 1 | 0 | 0.1 | 4 |",
        "| tb | 50 | 3 | 1 | 0.4 (0.3–9) | 3 (2–4) |",
        "| method | lag | seeds | worse | KL(policy‖target), nats | right and distinct |",
        "| tb | 0 | 1 | 0 | 1 | 10 |",
        "| tb | 5 | 1 | 1 | – | – |",
    ]
    assert (tmp_path / "out" / "lag.png").stat().st_size > 10_000
    assert (tmp_path / "out" / "lag.md").read_text(encoding="utf-8") == table(load(sorted(tmp_path.glob("*_*"))))


def test_what_has_no_exact_distance_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nowhere/*"]) == 1
    assert "no run directories were given" in capsys.readouterr().err
    with pytest.raises(RunError, match="is not a run directory"):
        load([tmp_path])
    run = written(tmp_path, "tb", 0, 0, [], "Grid")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 40, "loss": 1.0}) + "\n", encoding="utf-8")
    with pytest.raises(RunError, match="has no exact distance from its target"):
        load([run])
