"""The report of curves: grouping by what differs, medians and ranges over seeds, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.reports.curves import load, main, series, table
from experiments.runs import RunError


def run(folder: Path, name: str, alpha: Any, seed: int, tvs: list[float]) -> Path:
    directory = folder / name
    directory.mkdir(parents=True)
    config = {"seed": seed, "run": name, "divergence": {"alpha": alpha}, "sampler": {"seed": seed, "batch_size": 8}}
    (directory / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    lines = [{"step": i, "trajectories": 8 * i, "regions": i, "eval/tv": tv} for i, tv in enumerate(tvs, 1)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    return [
        run(tmp_path, "a", 0.0, 0, [0.9, 0.1]),
        run(tmp_path, "b", 0.0, 1, [0.7, 0.3]),
        run(tmp_path, "c", {"_target_": "gfn.schedules.Linear", "start": 2.0, "end": 1.0}, 0, [0.9, 0.8]),
    ]


def test_runs_are_grouped_by_what_differs_besides_the_seed(directories: list[Path]) -> None:
    groups = load(directories)
    assert [(g.label, len(g.lines)) for g in groups] == [("alpha = 0.0", 2), ("alpha = linear:2.0:1.0", 1)]
    assert series(groups[0], "eval/tv") == ([8, 16], [[0.9, 0.7], [0.1, 0.3]])
    assert series(groups[0], "nothing") == ([], [])


def test_table_has_medians_and_ranges(directories: list[Path]) -> None:
    rows = table(load(directories)).splitlines()
    assert rows[0].startswith("| runs | seeds | trajectories | total variation |")
    assert rows[2] == "| alpha = 0.0 | 2 | 16 | 0.5 (0.5–0.5) | 1.5 (1.5–1.5) |"
    assert rows[3] == "| alpha = linear:2.0:1.0 | 1 | 16 | 0.85 | 1.5 |"


def test_command_writes_figure_and_table(directories: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = directories[0].parent / "report"
    (directories[0].parent / "multirun.yaml").touch()
    assert main([str(directories[0].parent / "*"), f"out={out}"]) == 0
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "curves.md").read_text() in capsys.readouterr().out
    assert main([str(out / "nothing*")]) == 1
    assert "no run directories" in capsys.readouterr().err
    with pytest.raises(RunError, match="not a run directory"):
        load([out])
