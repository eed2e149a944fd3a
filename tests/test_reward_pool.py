"""Rewards that fail in every way, in processes that can be killed."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem

from envs.synthesis.rewards import Function, Pool, Power, Property
from gfn.environment import RewardError

SMILES = ["CCO", "c1ccccc1", "CC(=O)O", "CCN", "C1CCCCC1", "CCCC", "CCCl"]

SLOW = {"CS": 0.5, "CSC": 1.5}  # seconds


def atoms(smiles: str) -> float:
    """A well-behaved reward."""
    return float(Chem.MolFromSmiles(smiles).GetNumAtoms())


def troubled(smiles: str) -> Any:
    """Fails in a way that the molecule stands for."""
    if smiles in SLOW:
        time.sleep(SLOW[smiles])
        return SLOW[smiles]
    if smiles == "F":
        raise KeyError("no parameters for fluorine")
    if smiles == "Cl":
        time.sleep(60)
    if smiles == "Br":
        os._exit(3)
    if smiles == "I":
        sys.exit(2)
    return {"N": math.nan, "O": math.inf, "S": -1.0, "P": [1.0, 2.0], "B": "many", "C": 1j}.get(smiles, 7.0)


def recovering(place: str, smiles: str) -> float:
    """Dies at the first try of a molecule, never ends for chlorine, and writes down every try."""
    marks = Path(place)
    with marks.open("a") as file:
        file.write(f"{smiles}\n")
    if smiles == "Cl":
        time.sleep(60)
    if marks.read_text().splitlines().count(smiles) == 1 and smiles != "CCO":
        os._exit(1)
    return 3.0


def whole_batch(smiles: Sequence[str]) -> list[float]:
    if "F" in smiles:
        raise ValueError("a batch with fluorine")
    return [atoms(text) for text in smiles]


REASONS = {
    "F": ("KeyError", "troubled raised KeyError for F: 'no parameters for fluorine'"),
    "Cl": ("time limit", "it took longer than the limit of 3 s"),
    "Br": ("worker died", "its process ended with exit code 3"),
    "I": ("SystemExit", "raised SystemExit: 2"),
    "N": ("RewardError", "troubled: expected finite numbers ≥ 0 .* got nan for N"),
    "O": ("RewardError", "got inf for O"),
    "S": ("RewardError", "got -1 for S"),
    "P": ("RewardError", r"expected one number for each of 1 molecules, got shape \[1, 2\] for P"),
    "B": ("RewardError", r"expected real numbers, got \['many'\] for B"),
    "C": ("RewardError", r"expected real numbers, got \[1j\] for C"),
}
KILLING = ("Cl", "Br")  # what a process cannot survive on its own


@pytest.fixture(scope="module")
def strict() -> Iterator[Pool]:
    with Pool(Function(troubled), workers=2, time_limit=3.0, retries=0) as pool:
        pool(["CCO"])
        yield pool


@pytest.mark.parametrize("smiles", [pytest.param(s, marks=pytest.mark.slow) if s in KILLING else s for s in REASONS])
def test_a_failure_names_the_molecule_and_the_reason(strict: Pool, smiles: str) -> None:
    begun = time.monotonic()
    with pytest.raises(RewardError, match=rf"troubled failed for {smiles}: .*{REASONS[smiles][1]}.* on_failure="):
        strict(["CCO", smiles])
    assert time.monotonic() - begun < 15
    if smiles not in KILLING:
        with pytest.raises(RewardError, match=rf"troubled failed for {smiles}: .*{REASONS[smiles][1]}"):
            Pool(Function(troubled), workers=0, retries=0)([smiles])


def in_parallel(pool: Pool) -> bool:
    """Whether two workers are up."""
    begun = time.monotonic()
    pool(["CS", "CS"])
    return time.monotonic() - begun < 2 * SLOW["CS"]


def test_what_a_failure_leaves_behind_is_ended(strict: Pool) -> None:
    assert any(in_parallel(strict) for _ in range(20))
    with pytest.raises(RewardError, match="troubled failed for F"):
        strict(["F", "CS"])
    assert strict(["CCO", "CSC"]).tolist() == [7.0, 1.5], "the value of CS would come first"


def test_failures_get_the_floor_and_are_counted() -> None:
    batch = ["CCO", *REASONS, "CCN"]
    begun = time.monotonic()
    with Pool(Function(troubled), workers=2, time_limit=3.0, retries=0, on_failure=0.5) as pool:
        assert pool(batch).tolist() == [7.0] + [0.5] * len(REASONS) + [7.0]
        assert dict(pool.failures) == {
            "KeyError": 1,
            "time limit": 1,
            "worker died": 1,
            "SystemExit": 1,
            "RewardError": 6,
        }
        assert pool.terms(["CCO", "N"])["troubled"].tolist() == [7.0, 0.5]
        assert pool(batch[:1]).tolist() == [7.0], "workers that died were replaced"
    assert time.monotonic() - begun < 30


def test_results_do_not_depend_on_the_workers() -> None:
    reward = Power(Property("qed"), 2.0)
    expected = reward.terms(SMILES)
    for workers, batch in ((0, 1), (0, 3), (1, 2), (2, 1)):
        with Pool(reward, workers=workers, batch=batch) as pool:
            assert pool.name == "qed^2"
            assert pool(SMILES).tolist() == expected["qed^2"].tolist()
            assert {k: v.tolist() for k, v in pool.terms(SMILES).items()} == {
                k: v.tolist() for k, v in expected.items()
            }
            assert pool([]).shape == pool.terms([])["qed^2"].shape == (0,)


def test_a_bad_molecule_costs_its_batch_nothing() -> None:
    pool = Pool(Function(whole_batch, batched=True), workers=0, batch=4, on_failure=0.0, retries=0)
    assert pool(["C", "CC", "F", "CCC", "CCCC"]).tolist() == [1.0, 2.0, 0.0, 3.0, 4.0]
    assert pool.failures == {"ValueError": 1}


def test_retries(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    with Pool(Function(partial(recovering, str(tries))), workers=1, retries=1) as pool:
        assert pool(["CCO", "CCN"]).tolist() == [3.0, 3.0]
    assert sorted(tries.read_text().split()) == ["CCN", "CCN", "CCO"]


@pytest.mark.slow
def test_what_ran_out_of_time_is_not_tried_again_but_its_batch_is(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    reward = Function(partial(recovering, str(tries)))
    with Pool(reward, workers=1, retries=2, time_limit=3.0, batch=2, on_failure=0.5) as pool:
        assert pool(["CCO", "Cl"]).tolist() == [3.0, 0.5]
        assert pool.failures == {"time limit": 1}
    assert tries.read_text().split() == ["CCO", "Cl"] * 2


def test_other_terms_of_a_failure_are_unknown() -> None:
    with Pool(Power(Function(troubled), 2.0), workers=0, on_failure=0.25, retries=0) as pool:
        terms = pool.terms(["CCO", "F"])
    assert terms["troubled^2"].tolist() == [49.0, 0.25]
    assert terms["troubled"].tolist()[0] == 7.0
    assert math.isnan(terms["troubled"][1])


def test_signed_scores_are_asked_for() -> None:
    logp = Property("logp")
    assert Pool(logp, workers=0, signed=True)(["O"]).tolist() == logp(["O"]).tolist() < [0.0]
    with pytest.raises(RewardError, match="logp failed for O: logp: expected finite numbers ≥ 0"):
        Pool(logp, workers=0)(["O"])


@pytest.mark.slow
def test_a_copy_starts_its_own_workers() -> None:
    with Pool(Function(atoms), workers=1) as pool:
        assert pool(["CCO"]).tolist() == [3.0]
        with pickle.loads(pickle.dumps(pool)) as copy:
            assert copy(["CCN"]).tolist() == [3.0]
        pool.close()
        assert pool(["CC"]).tolist() == [2.0], "it starts again"


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cannot be sent to another process .* top level"):
        Pool(Function(lambda smiles: 1.0), workers=1)
    numbers: dict[str, Any] = {"workers": -1, "time_limit": 0.0, "retries": -1, "batch": 0, "on_failure": -1.0}
    with pytest.raises(
        ValueError, match=r"workers ≥ 0.*time_limit > 0.*retries ≥ 0.*batch ≥ 1.*on_failure: mask or finite, ≥ 0"
    ):
        Pool(Property("qed"), **numbers)
    assert Pool(Property("logp"), workers=0, on_failure=-1.0, signed=True).on_failure == -1.0


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("from envs.synthesis.rewards import Pool, Property\nPool(Property('qed'), workers=1)(['CCO'])\n")
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "RuntimeError: a worker process ended with exit code 1 before it could start" in ended.stderr
    assert '__name__ == "__main__"' in ended.stderr


def sleeping_with_child(place: str, smiles: str) -> float:
    """Starts a program that outlasts the time limit."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(place).write_text(str(child.pid))
    return float(child.wait())


@pytest.mark.slow
def test_what_a_killed_worker_started_ends_with_it(tmp_path: Path) -> None:
    place = tmp_path / "pid"
    with Pool(Function(partial(sleeping_with_child, str(place))), workers=1, time_limit=3.0, on_failure=0.0) as pool:
        assert pool(["C"]).tolist() == [0.0]
        assert pool.failures == {"time limit": 1}
    child, ended = int(place.read_text()), time.monotonic() + 10
    while time.monotonic() < ended and runs(child):
        time.sleep(0.05)
    assert not runs(child)


def runs(process: int) -> bool:
    """Whether it exists and is no zombie, which nobody may have waited for."""
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"
