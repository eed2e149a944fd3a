"""Profile, exact evaluation and scaling: what tables say of made-up measurements, and each command in miniature."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments.benchmarks import evaluations, profile, scaling
from experiments.benchmarks.competitors import Window
from experiments.benchmarks.evaluations import Evaluation
from experiments.benchmarks.fits import exponent
from experiments.benchmarks.profile import LABELS, Profile
from experiments.benchmarks.scaling_tables import Growth, Sample

PNG = b"\x89PNG"


def rows_of(text: str, start: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith(start)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_exponents_are_those_of_power_laws() -> None:
    x = [1.0, 3.0, 10.0]
    assert exponent(x, [2 * value**1.5 for value in x]) == pytest.approx(1.5)
    assert exponent([1.0, 10.0, 100.0], [1.0, 10.0, 1.0]) == pytest.approx(0)
    assert math.isnan(exponent([2.0, 2.0], [1.0, 3.0]))
    for bad in ([1.0], [1.0, 0.0]):
        with pytest.raises(ValueError, match="two points or more, of positive numbers"):
            exponent(bad, bad)


def test_evaluations_are_compared_by_their_edges() -> None:
    found = list[Evaluation]()
    for edges, k in ((10_000, 1), (1_000_000, 100)):
        parts = (0.1 * k, 0.2 * k, 0.3 * k), (2.0 * k,), (0.5 * k**2,)
        found.append(Evaluation(f"{edges}x1", 2 * edges, edges, *parts, before=100, memory=300, load=1.0))
    text = evaluations.written(found)
    assert rows_of(text, "| 10000x1")[0][1:5] == ["20,000", "10,000", "0.2 (0.1–0.3)", "2"]
    assert rows_of(text, "| 1000000x1")[0][-2:] == ["300", f"{200 * 2**20 / 1e6:.0f}"]
    assert "listing 1.00, scoring 1.00, programming 2.00." in text


def test_exact_evaluation_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluations, "apart", evaluations.measured)  # in this process, which is quicker
    assert evaluations.main([f"out={tmp_path}", "grids=3x2,4x2", "times=2"]) == 0
    assert [row[1:3] for row in rows_of((tmp_path / "evaluations.md").read_text(), "| 3x2")] == [["18", "21"]]
    assert (tmp_path / "evaluations.png").read_bytes().startswith(PNG)
    found = json.loads((tmp_path / "evaluations.json").read_text())
    assert [len(e[part]) for e in found for part in ("listing", "scoring", "programming")] == [2] * 6
    assert evaluations.main([f"out={tmp_path}", "grids=3x2"]) == 0
    assert json.loads((tmp_path / "evaluations.json").read_text()) == found  # nothing is measured again
    assert evaluations.main(["grids=3"]) == 2
    assert "grids: expected numbers" in capsys.readouterr().err


def test_shares_are_of_the_whole() -> None:
    spent = dict.fromkeys(LABELS, 1.0) | {"networks": 4.0}
    text = profile.written([Profile("hypergrid", ("experiment=grid/tb_8x4",), 10, 160, 2400, spent, 1.0)])
    assert [row for row in rows_of(text, "| ") if row[0] in LABELS] == [
        [label, "40" if label == "networks" else "10"] for label in LABELS
    ]
    assert rows_of(text, "| CPU-ms per iteration") == [["CPU-ms per iteration", "1e+03"]]
    assert rows_of(text, "| steps per trajectory") == [["steps per trajectory", "15"]]


def test_training_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "apart", profile.measured)
    small = (
        "hypergrid.env.side=3",
        "hypergrid.sampler.batch_size=4",
        "bits.env.bits=16",
        "bits.env.modes=4",
        "bits.env.radius=4",
    )
    assert profile.main([f"out={tmp_path}", "cases=hypergrid,bits", "iterations=2", *small]) == 0
    for found in json.loads((tmp_path / "profile.json").read_text()):
        assert found["iterations"] == 2
        assert found["trajectories"] == {"hypergrid": 8, "bits": 32}[found["case"]]
        assert all(found["spent"][label] > 0 for label in LABELS)  # every label is of something that is called
    assert len(rows_of((tmp_path / "profile.md").read_text(), "| environment")[0]) == 3
    for argument, message in (("cases=chess", "expected some of"), ("bits.env.nonsense=1", "nonsense"), ("x=1", "x=1")):
        assert profile.main(["cases=bits", argument] if "cases" not in argument else [argument]) == 2
        assert message in capsys.readouterr().err


def test_growth_has_exponents_and_costs_per_step(tmp_path: Path) -> None:
    samples = tuple(Sample(n, (Window(100, 0.1 * n**2, 1.0, 500, 300.0),)) for n in (10, 20, 40))
    growth = Growth("side", "some grid", samples)
    text = scaling.written([growth])
    assert rows_of(text, "| 10 |")[0] == ["10", "100", "5.0", "2e+04", "300"]
    assert "Cost of a trajectory ∝ side^2.00; from each value to the next 2.00, 2.00." in text
    scaling.draw([growth], tmp_path / "scaling.png")
    assert (tmp_path / "scaling.png").read_bytes().startswith(PNG)
    assert Growth("side", "", samples[:1]).fitted() == ""


def test_scaling_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "apart", scaling.measured)
    arguments = [f"out={tmp_path}", "axes=length", "length=8,16", "windows=2", "seconds=0"]
    assert scaling.main(arguments) == 0
    found = json.loads((tmp_path / "scaling.json").read_text())
    assert list(found) == ["length=8", "length=16"]
    assert [(w["iterations"], w["steps"]) for w in found["length=16"]] == [(16, 256)] * 2
    assert len(rows_of((tmp_path / "scaling.md").read_text(), "| 16 |")) == 1
    assert (tmp_path / "scaling.png").exists()
    for argument, message in (("axes=depth", "axes: expected some of"), ("side=0", "side: expected numbers")):
        assert scaling.main([f"out={tmp_path}", argument]) == 2
        assert message in capsys.readouterr().err
