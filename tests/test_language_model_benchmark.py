"""The race with TRL: what may be asked for, and what is made of the steps that were measured."""

from __future__ import annotations

import pytest

from experiments.benchmarks import tuning
from experiments.benchmarks.language_models import Race, main, parsed, written
from experiments.benchmarks.tuning import Case, Step


def step(scale: float, memory: float) -> Step:
    spent = {"generation": 6.0, "forward and loss": 3.0, "backward": 5.0, "optimiser": 1.0, "reference": 2.0}
    return Step({label: scale * seconds for label, seconds in spent.items()}, 20.0 * scale, 100, memory)


def test_cases_are_read() -> None:
    assert parsed("eos:lora:4,newline:full:16") == [Case("eos", "lora", 4), Case("newline", "full", 16)]
    assert [case.max_tokens for case in parsed("eos:lora:4,newline:full:16")] == [64, 8]


def test_the_table_has_medians_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmarks.language_models.version", lambda name: "1")
    ours, theirs = [step(1, 10), step(2, 30), step(9, 20)], [step(4, 90), step(4, 60), step(4, 60)]
    lines = written([Race(Case("eos", "lora", 4), {"ours": ours, "TRL": theirs}, 1.5)], 3).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| LoRA")]
    name = "LoRA r16, K=4, until eos or 64 tokens"
    generation, forward, backward, optimiser = "12 (6–54)", "6 (3–27)", "10 (5–45)", "2 (1–9)"
    shares = [generation, forward, backward, optimiser, "4 (2–18)", "18 (9–81)", "40 (20–180)"]
    assert rows[0] == [name, "ours", *shares, "100 (100–100)", "30"]
    assert rows[1][:3] == [name, "TRL", "24 (24–24)"]
    assert rows[2] == [name, "2.00", "2.00", "2.00", "3.00"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("cases=eos:lora", "cases: expected numbers"),
        ("cases=eos:lora:1", "numbers of at least 2"),
        ("cases=stop:lora:4", "expected newline or eos"),
        ("rounds=0", "rounds: expected numbers"),
        ("nonsense=1", "expected the options out"),
    ],
)
def test_what_does_not_fit_is_told(argument: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 2
    assert message in capsys.readouterr().err


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(__import__("sys").modules, "trl", None)
    with pytest.raises(ImportError, match=r"fgfn\[bench\]"):
        tuning.trl_package()
    assert main([]) == 2
    assert "pip install 'fgfn[bench]'" in capsys.readouterr().err
