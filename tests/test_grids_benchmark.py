"""Races on hypergrids: what may be asked for, what is made of measurements, and the commands with our side alone."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks import convergence, grids
from experiments.benchmarks.competitors import Competitor, Window
from experiments.benchmarks.convergence import initial
from experiments.benchmarks.convergence_tables import Curve, Point
from experiments.benchmarks.convergence_tables import written as convergence_written
from experiments.benchmarks.grids_cells import parsed, target_length
from experiments.benchmarks.grids_gradients import gradient_error
from experiments.benchmarks.grids_races import Record, Store
from experiments.benchmarks.grids_runs import Cell, task_of
from experiments.benchmarks.grids_tables import draw, written
from experiments.benchmarks.peers import Peer, checked_sides, peers
from experiments.benchmarks.workers.turns import Watch, window
from experiments.benchmarks.workers.with_ours import Ours

CELL = Cell(8, 4, 16, "learned")


def record(side: str, rate: float, cell: Cell = CELL) -> Record:
    """Three windows of about ``rate`` iterations in a CPU second, of trajectories of 15 steps."""
    windows = tuple(Window(100, 100 / (rate * f), 200 / (rate * f), 24000, 300.0, 2.5) for f in (0.5, 1.0, 2.0))
    return Record(cell, side, 3.0, Window(1, 0.25, 0.5, 240), windows, (f"{side} 1.0",))


def rows_of(text: str, start: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_cells_are_all_combinations() -> None:
    assert parsed("8x4+64x2:16+256:learned,8x4:16:uniform") == [
        Cell(8, 4, 16, "learned"),
        Cell(8, 4, 256, "learned"),
        Cell(64, 2, 16, "learned"),
        Cell(64, 2, 256, "learned"),
        Cell(8, 4, 16, "uniform"),
    ]
    assert len(parsed(grids.DEFAULTS["cells"])) == 4 * 3 * 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("cells=8x4", "cells: expected grids, batches and kinds of P_B"),
        ("cells=8:16:learned", "cells: expected such as"),
        ("cells=8x4:16:certain", "cells: expected such as"),
        ("peers=gflownet", "peers: expected none, or some of torchgfn"),
        ("windows=0", "windows: expected numbers"),
        ("trainer.nonsense=1", "nonsense"),
    ],
)
def test_what_does_not_fit_is_told(
    argument: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"cells": "2x1:4:learned", "peers": "none", "out": str(tmp_path)}
    given = [f"{key}={value}" for key, value in known.items() if not argument.startswith(key)]
    assert grids.main([*given, argument]) == 2
    assert message in capsys.readouterr().err


def test_lengths_of_the_target_are_those_of_its_samples() -> None:
    assert target_length(8, 4) == pytest.approx(15)  # by symmetry of the reward: 4 · 3.5, and stopping
    assert target_length(2, 1) == pytest.approx(1.5)


def test_sides_are_compared_cell_by_cell(tmp_path: Path) -> None:
    other = Cell(8, 4, 256, "learned")
    records = [record("ours", 100), record("gfnx", 20), record("ours", 50, other)]
    records.append(Record(other, "gfnx", failure="gfnx died with code 1: …no memory"))
    text = written(records, {CELL: 3e-7})
    rows = rows_of(text, "| 8x4 | 16 |")
    assert rows[0] == ["8x4", "16", "learned", "100 (50–200)", "20 (10–40)"]
    assert rows[1] == ["8x4", "16", "learned", "50 (25–100)", "10 (5–20)"]
    assert rows[2] == ["8x4", "16", "learned", "1600", "5.00"]
    assert rows[3] == ["8x4", "16", "learned", "3.0 + 0.25, 300", "3.0 + 0.25, 300"]
    assert rows[4] == ["8x4", "16", "learned", "15.00", "15.00", "3.0e-07"]
    assert rows_of(text, "| 8x4 | 256 |")[0][3:] == ["50 (25–100)", "–"]
    assert "gfnx on 8x4:256:learned: gfnx died with code 1: …no memory" in text
    assert "ours 1.0, gfnx 1.0" in text
    draw(records, tmp_path / "grids.png")
    assert (tmp_path / "grids.png").read_bytes().startswith(b"\x89PNG")


def test_records_are_kept_and_not_measured_again(tmp_path: Path) -> None:
    store = Store(tmp_path / "grids.json")
    store.add([record("ours", 1.0), record("gfnx", 2.0)])
    store.add([record("gfnx", 3.0)])
    again = Store(tmp_path / "grids.json")
    assert again.records == [record("ours", 1.0), record("gfnx", 3.0)]
    assert again.missing(CELL, ["ours", "gfnx", "torchgfn"], []) == ["torchgfn"]
    assert again.missing(CELL, ["ours", "gfnx"], ["trainer.micro_batch=8"]) == ["ours"]
    assert again.missing(Cell(8, 4, 32, "learned"), ["ours"], []) == ["ours"]


def test_a_watch_stops_after_iterations_or_seconds() -> None:
    watch = Watch(math.inf, 3)
    assert [watch() for _ in range(3)] == [False, False, True]
    assert watch.iterations == 3
    assert 0 <= watch.wall < 1
    assert Watch(0.0, 1000)()


def test_a_peer_is_installed_once_in_an_environment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = list[list[str]]()

    def do(self: Peer, command: list[str]) -> None:
        done.append(command)
        self.folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(Peer, "_do", do)
    peer = Peer("other", "with_other.py", (("other==1.0", "more==2"), ("third",)))
    python = tmp_path / "fgfn" / "peers" / "other-1.0" / "bin" / "python"
    assert [peer.python(), peer.python()] == [python, python]
    assert [command[-2:] for command in done] == [
        ["--clear", str(peer.folder)],
        ["other==1.0", "more==2"],
        ["--quiet", "third"],
    ]


def test_peers_are_chosen_by_name() -> None:
    assert checked_sides("none") == []
    assert checked_sides("torchgfn,gfnx-flat") == ["torchgfn", "gfnx-flat"]
    assert [peer.name for peer in peers().values()] == ["torchgfn", "gfnx"]


def test_a_side_that_dies_tells_why(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such device')"]
    monkeypatch.setattr("experiments.benchmarks.competitors.command_of", lambda side: (command, ""))
    with pytest.raises(RuntimeError, match="gfnx died with code 1: …no such device"):
        Competitor("gfnx", CELL)


def test_the_gradient_of_training_is_that_of_the_plain_loss(tmp_path: Path) -> None:
    cell = Cell(5, 2, 8, "learned")
    start = initial(cell, 0, tmp_path / "some.npz")
    assert gradient_error(cell, start) < 1e-5
    assert gradient_error(replace(cell, backward="uniform"), start) < 1e-5
    assert gradient_error(cell, start, ["objective.reward_exponent=2"]) > 1e-2  # what is measured is not always small


@pytest.mark.slow
def test_the_command_measures_our_side_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmarks.grids_cells.PIECE", 20)
    arguments = [f"out={tmp_path}", "cells=3x1:4:learned", "peers=none", "windows=2", "seconds=0"]
    assert grids.main(arguments) == 0
    (found,) = json.loads((tmp_path / "grids.json").read_text())
    assert [window["iterations"] for window in found["windows"]] == [1, 1]
    assert all(4 <= window["steps"] <= 4 * 3 and window["cpu"] > 0 for window in found["windows"])
    text = (tmp_path / "grids.md").read_text(encoding="utf-8")
    assert len(rows_of(text, "| 3x1 | 4 |")) == 4  # no peers, no ratios
    assert float(rows_of(text, "| 3x1 | 4 |")[3][-1]) < 1e-5
    assert (tmp_path / "grids.png").exists()


class Near:
    """Our side in this process."""

    def __init__(self, side: str, cell: Cell, weights: Path, rates: tuple[float, float], seed: int, config: list[str]):
        self.player = Ours(task_of(cell, config, rates, seed), dict(np.load(weights)))
        self.side, self.versions = side, {"fgfn": "1"}

    def __enter__(self) -> Near:
        return self

    def __exit__(self, *error: object) -> None:
        self.player.folder.cleanup()

    def train(self, **limit: float) -> Window:
        return Window(**window(self.player, limit))

    def keep(self, path: Path) -> None:
        np.savez(path, **self.player.weights())


@pytest.mark.slow
def test_learning_is_timed_to_an_exact_distance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convergence, "Competitor", Near)
    arguments = [f"out={tmp_path}", "grid=3x2", "seeds=0,1", "peers=none", "every=4", "updates=400", "tv=0.1"]
    assert convergence.main(arguments) == 0
    curves = json.loads((tmp_path / "convergence.json").read_text())
    assert [(curve["side"], curve["seed"]) for curve in curves] == [("ours", 0), ("ours", 1)]
    for curve in curves:
        *before, last = [point["tv"] for point in curve["points"]]
        assert last <= 0.1 < min(before)
        assert [point["updates"] for point in curve["points"][:2]] == [5, 9]
    assert (tmp_path / "convergence.png").read_bytes().startswith(b"\x89PNG")
    with monkeypatch.context() as patched:  # nothing is run again
        patched.setattr(convergence, "Competitor", None)
        assert convergence.main(arguments) == 0


def test_medians_of_learning_are_over_seeds() -> None:
    curves = [Curve("ours", s, (Point(101, 1.0, 3.0, 0.09), Point(201, 2.0 + s, 6.0, 0.04))) for s in (0, 1, 2)]
    curves += [Curve("gfnx", s, (Point(101, 5.0, 9.0, 0.2), Point(201, 9.0, 18.0, 0.05 + s))) for s in (0, 1)]
    text = convergence_written(curves, 16, 0.05)
    reached = ["1,616 (1,616–1,616)", "3,216 (3,216–3,216)"]
    assert rows_of(text, "| ours")[0] == ["ours", "3", *reached, "3 (2–4)", "6 (6–6)", "1.00"]
    assert rows_of(text, "| gfnx")[0] == ["gfnx", "2", *["3,216, 1 not"] * 2, "9, 1 not", "18, 1 not", "3.00"]
