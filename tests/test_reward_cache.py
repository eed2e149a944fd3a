"""Values kept from one call, and from one process, to the next."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.synthesis.rewards import Cached, Function, Pool, Power, Property, store
from gfn.environment import RewardError


def atoms(smiles: str) -> float:
    """Number of atoms of an alkane or alcohol."""
    return float(len(smiles))


def troubled(smiles: str) -> float:
    """Fails for fluorine, and gives nitrogen no number."""
    if smiles == "F":
        raise KeyError("no parameters for fluorine")
    return math.nan if smiles == "N" else 7.0


def noted(place: str, smiles: Sequence[str]) -> list[float]:
    """Writes down what it was asked."""
    with Path(place).open("a") as file:
        file.writelines(f"{text}\n" for text in smiles)
    return [atoms(text) / 3 for text in smiles]


def calls(place: Path) -> list[str]:
    return place.read_text().split() if place.exists() else []


def noting(place: Path, **settings: Any) -> Function:
    return Function(partial(noted, str(place)), batched=True, **settings)


@pytest.mark.parametrize("stored", [True, False])
def test_hits_are_not_computed_again(tmp_path: Path, stored: bool) -> None:
    log = tmp_path / "calls"
    cached = Cached(noting(log), tmp_path / "new" / "cache.sqlite" if stored else None)
    first = cached(["CCO", "OCC", "CC", "CCO"])
    assert first.tolist() == [1.0, 1.0, 2 / 3, 1.0]
    assert calls(log) == ["CCO", "CC"], "once for each molecule, however it is written"
    assert cached(["CC", "C(O)C", "C"]).tolist() == [2 / 3, 1.0, 1 / 3]
    assert cached.terms(["CC"])["noted"].tolist() == [2 / 3]
    assert calls(log) == (["CCO", "CC", "C"] if stored else ["CCO", "CC", "CCO", "C"])
    assert cached([]).shape == (0,)


def test_values_outlive_the_process_bit_by_bit(tmp_path: Path) -> None:
    log, path = tmp_path / "calls", tmp_path / "cache.sqlite"
    program = (
        "import sys; from pathlib import Path; from tests.test_reward_cache import Cached, noting\n"
        "print(Cached(noting(Path(sys.argv[1])), sys.argv[2])(['CC', 'CCO']).tolist())"
    )
    command = [sys.executable, "-c", program, str(log), str(path)]
    root = str(Path(__file__).parent.parent)
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.strip() == str([2 / 3, 1.0])
    assert Cached(noting(log), path)(["CC", "CCO"]).tolist() == [2 / 3, 1.0]
    assert calls(log) == ["CC", "CCO"]


def test_many_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "AT_ONCE", 3)
    log, path, many = tmp_path / "calls", tmp_path / "cache.sqlite", ["C" * n for n in range(1, 11)]
    Cached(noting(log), path)(many)
    assert Cached(noting(log), path)(many).tolist() == [n / 3 for n in range(1, 11)]
    assert calls(log) == many


def test_scores_with_other_parameters_do_not_meet(tmp_path: Path) -> None:
    path, other = tmp_path / "cache.sqlite", tmp_path / "other"
    for number, exponent in enumerate((1.0, 2.0, 1.0)):
        cached = Cached(Power(noting(tmp_path / "calls"), exponent), path)
        assert cached(["CC"]).tolist() == [(2 / 3) ** exponent]
        assert len(calls(tmp_path / "calls")) == min(number + 1, 2)
    Cached(noting(tmp_path / "calls", version="2"), path)(["CC"])
    assert len(calls(tmp_path / "calls")) == 3
    Cached(noting(other), path)(["CC"])
    assert len(calls(other)) == 1, "the arguments of a partial function are parameters"


def test_memory_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    cached = Cached(noting(log), memory=2)
    assert cached(["C", "CC", "CCC"]).tolist() == [1 / 3, 2 / 3, 1.0]
    cached(["CCC"])
    cached(["C"])
    assert calls(log) == ["C", "CC", "CCC", "C"]


def test_a_floor_is_not_written_down(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    pool = Pool(Function(troubled), workers=0, retries=0, on_failure=0.5)
    cached = Cached(pool, path)
    for _ in range(2):
        assert cached(["F", "CCO"]).tolist() == [0.5, 7.0]
    assert pool.failures == {"KeyError": 1}, "it is remembered while this process lives"
    assert Cached(pool, path)(["F"]).tolist() == [0.5]
    assert pool.failures == {"KeyError": 2}


def test_what_raises_is_not_kept(tmp_path: Path) -> None:
    cached = Cached(Function(troubled), tmp_path / "cache.sqlite")
    for _ in range(2):
        with pytest.raises(RewardError, match="got nan for N"):
            cached(["CCO", "N"])
    with pytest.raises(RewardError, match=r"troubled: expected SMILES that RDKit can read.*'C1CC'"):
        cached(["C1CC"])


@pytest.mark.parametrize("damage", ["header", "pages"])
def test_a_damaged_file_is_set_aside(tmp_path: Path, damage: str) -> None:
    log, path = tmp_path / "calls", tmp_path / "cache.sqlite"
    many = ["C" * n for n in range(1, 200)]
    Cached(noting(log), path)(many)
    content = bytearray(path.read_bytes())
    start = 0 if damage == "header" else len(content) // 2
    content[start : start + 5000] = b"?" * 5000
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"cache\.sqlite is damaged .*cache\.sqlite\.damaged, and a new cache begun"):
        cached = Cached(noting(log), path)
    assert cached(["C", "CC"]).tolist() == [1 / 3, 2 / 3]
    assert len(calls(log)) == 201
    assert (tmp_path / "cache.sqlite.damaged").read_bytes() == content
    path.write_bytes(b"?" * 5000)
    with pytest.warns(UserWarning, match=r"cache\.sqlite\.damaged1"):
        cached(["CCC"])


def test_a_damaged_value_is_computed_again(tmp_path: Path) -> None:
    log, path = tmp_path / "calls", tmp_path / "cache.sqlite"
    Cached(noting(log), path)(["C", "CC"])
    with sqlite3.connect(path) as file:
        file.execute("UPDATE reward_terms SET terms = replace(terms, '0.6666', '0.6667') WHERE smiles = 'CC'")
    file.close()
    with pytest.warns(UserWarning, match="1 damaged values are computed again"):
        assert Cached(noting(log), path)(["C", "CC"]).tolist() == [1 / 3, 2 / 3]
    assert Cached(noting(log), path)(["CC"]).tolist() == [2 / 3]
    assert calls(log) == ["C", "CC", "CC"]


def test_a_file_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "cache.sqlite"):
        with pytest.raises(OSError, match=r"cannot use .* as a reward cache: .*give another path"):
            Cached(Property("qed"), path)


def test_a_score_that_does_not_state_its_parameters_is_refused() -> None:
    class Plain:
        name = "plain"

        def __call__(self, smiles: Sequence[str]) -> Any:
            return np.ones(len(smiles))

        def terms(self, smiles: Sequence[str]) -> dict[str, Any]:
            return {self.name: self(smiles)}

    with pytest.raises(ValueError, match="does not state what its values depend on; give a fingerprint"):
        Cached(Plain())
    assert Cached(Plain(), fingerprint="ones")(["C"]).tolist() == [1.0]
    with pytest.raises(ValueError, match="memory ≥ 1"):
        Cached(Property("qed"), memory=0)


@dataclass(frozen=True)
class Slow:
    """Takes its time, so that several processes meet in the file."""

    name: str = "slow"

    def __call__(self, smiles: Sequence[str]) -> Any:
        time.sleep(0.01)
        return np.array([atoms(text) for text in smiles])

    def terms(self, smiles: Sequence[str]) -> dict[str, Any]:
        return {self.name: self(smiles)}


@pytest.mark.slow
def test_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    many = ["C" * n for n in range(1, 41)]
    with Pool(Cached(Slow(), path), workers=2, batch=2) as pool:
        assert pool(many * 2).tolist() == [float(len(text)) for text in many * 2]
    assert Cached(Slow(), path)(many).tolist() == [float(len(text)) for text in many]
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM reward_terms").fetchone() == (40,)
    file.close()
