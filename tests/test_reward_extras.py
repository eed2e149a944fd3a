"""Rewards whose packages need not be there: how they are used, by stand-ins, and what is said without them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from envs.synthesis.rewards import ADMET, Desired, Dockstring, Product, Rescaled, Vina, admet, docking
from gfn.environment import RewardError


@pytest.fixture
def nothing_loaded() -> Iterator[None]:
    for function in (admet._model, admet._predictions, docking._search):
        function.cache_clear()
    yield
    for function in (admet._model, admet._predictions, docking._search):
        function.cache_clear()


class FakeFrame(dict[str, dict[str, float]]):
    def to_dict(self) -> dict[str, dict[str, float]]:
        return dict(self)


class FakeModel:
    """Answers as ADMET-AI does: leaves out what it does not know, and is noisy."""

    asked: list[list[str]]

    def __init__(self) -> None:
        type(self).asked = []

    def predict(self, smiles: list[str]) -> FakeFrame:
        print("progress")
        print("progress", file=sys.stderr)
        self.asked.append(smiles)
        known = [text for text in smiles if text != "C"]
        return FakeFrame(
            hERG={text: len(text) / 100 for text in known}, logS={text: -float(len(text)) for text in known}
        )


@pytest.mark.usefixtures("nothing_loaded")
def test_admet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = ModuleType("admet_ai")
    module.ADMETModel = FakeModel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "admet_ai", module)
    reward = Product([ADMET("hERG"), Desired(ADMET("logS"), Rescaled(-10, 0))])
    terms = reward.terms(["CCO", "CC", "CCO"])
    assert terms["hERG"].tolist() == [0.03, 0.02, 0.03]
    assert terms["logS"].tolist() == [-3.0, -2.0, -3.0]
    np.testing.assert_allclose(terms["product"], [0.021, 0.016, 0.021])
    assert FakeModel.asked == [["CCO", "CC"]], "once for all endpoints, and each molecule once"
    assert capsys.readouterr() == ("", "")
    assert ADMET("hERG")([]).shape == (0,)
    with pytest.raises(ValueError, match="no endpoint 'herg'; there are hERG, logS"):
        ADMET("herg")(["CCO"])
    with pytest.raises(RewardError, match=r"hERG: ADMET-AI predicts nothing for C$"):
        ADMET("hERG")(["CCO", "C"])
    with pytest.raises(RewardError, match=r"hERG: expected SMILES that RDKit can read.*'x'"):
        ADMET("hERG")(["x"])


@pytest.mark.usefixtures("nothing_loaded")
def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("admet_ai", "vina", "meeko"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"ADMET needs admet_ai .*pip install 'fgfn\[admet\]'"):
        ADMET("hERG")(["C"])
    with pytest.raises(ImportError, match=r"Vina needs vina .*pip install 'fgfn\[dock\]'"):
        Vina(receptor(tmp_path), center=(0, 0, 0))(["C"])
    monkeypatch.setitem(sys.modules, "vina", fake_vina({}))
    with pytest.raises(ImportError, match=r"Vina needs meeko .*pip install 'fgfn\[dock\]'"):
        Vina(receptor(tmp_path), center=(0, 0, 0))(["C"])


def receptor(folder: Path, text: str = "ATOM\n") -> Path:
    path = folder / "receptor.pdbqt"
    path.write_text(text)
    return path


def fake_vina(seen: dict[str, Any]) -> Any:
    """A module whose score is minus the number of atoms with coordinates, and which cannot dock chlorine."""

    class FakeVina:
        def __init__(self, **settings: Any) -> None:
            seen.update(settings, maps=seen.get("maps", 0))

        def set_receptor(self, path: str) -> None:
            seen["receptor"] = path

        def compute_vina_maps(self, center: list[float], box_size: list[float]) -> None:
            seen.update(center=center, box_size=box_size, maps=seen["maps"] + 1)

        def set_ligand_from_string(self, text: str) -> None:
            self.ligand = text

        def dock(self, exhaustiveness: int, n_poses: int) -> None:
            if "Cl" in self.ligand:
                raise RuntimeError("no pose")
            seen.update(exhaustiveness=exhaustiveness, n_poses=n_poses)

        def energies(self, n_poses: int) -> Any:
            return np.array([[-float(self.ligand.count("\n")), 1.0, 2.0]])

    return SimpleNamespace(Vina=FakeVina)


class FakeWriter:
    @staticmethod
    def write_string(mol: Any) -> tuple[str, bool, str]:
        """One line for each atom, for molecules that have a conformer."""
        positions = mol.GetConformer().GetPositions()
        lines = [f"{atom.GetSymbol()} {position}\n" for atom, position in zip(mol.GetAtoms(), positions, strict=True)]
        return "".join(lines), "B" not in [atom.GetSymbol() for atom in mol.GetAtoms()], "boron"


@pytest.mark.usefixtures("nothing_loaded")
def test_vina(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    meeko = SimpleNamespace(
        MoleculePreparation=lambda: SimpleNamespace(prepare=lambda mol: [mol]), PDBQTWriterLegacy=FakeWriter
    )
    monkeypatch.setitem(sys.modules, "vina", fake_vina(seen))
    monkeypatch.setitem(sys.modules, "meeko", meeko)
    vina = Vina(receptor(tmp_path), center=[1, 2, 3], size=[10, 11, 12], exhaustiveness=4, seed=7)
    assert vina(["C", "CCO"]).tolist() == [-5.0, -9.0], "hydrogens are added"
    assert vina.terms(["C"])["vina"].tolist() == [-5.0]
    assert seen == {
        "sf_name": "vina",
        "cpu": 1,
        "seed": 7,
        "verbosity": 0,
        "receptor": str(tmp_path / "receptor.pdbqt"),
        "center": [1, 2, 3],
        "box_size": [10, 11, 12],
        "maps": 1,
        "exhaustiveness": 4,
        "n_poses": 1,
    }
    with pytest.raises(RewardError, match="vina: cannot dock CCCl: no pose"):
        vina(["C", "CCCl"])
    with pytest.raises(RewardError, match="vina: cannot dock CB: Meeko cannot prepare it: boron"):
        vina(["CB"])
    with pytest.raises(RewardError, match="vina: expected SMILES that RDKit can read"):
        vina(["x"])


def test_vina_is_told_apart_by_what_the_receptor_holds(tmp_path: Path) -> None:
    first = repr(Vina(receptor(tmp_path), center=(0, 0, 0)))
    assert repr(Vina(receptor(tmp_path), center=[0, 0, 0])) == first
    assert repr(Vina(receptor(tmp_path, "HETATM\n"), center=(0, 0, 0))) != first
    with pytest.raises(FileNotFoundError, match=r"no receptor .*missing\.pdbqt"):
        Vina(tmp_path / "missing.pdbqt", center=(0, 0, 0))
    with pytest.raises(ValueError, match=r"three numbers as center.*got \[0, 0\], \[1, 1, 0\], 0"):
        Vina(receptor(tmp_path), center=(0, 0), size=(1, 1, 0), exhaustiveness=0)


FAKE_DOCKSTRING = """
import time
print("a greeting")

class Target:
    def __init__(self, name):
        self.name = name

    def dock(self, smiles, num_cpus):
        if smiles == "Cl":
            raise ValueError("cannot embed")
        if smiles == "Br":
            time.sleep(60)
        return (None if smiles == "F" else -len(smiles) - num_cpus / 10), {}

def load_target(name):
    if name != "DRD2":
        raise KeyError(name)
    return Target(name)
"""


def test_dockstring_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dockstring.py").write_text(FAKE_DOCKSTRING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    score = Dockstring("DRD2", cpus=2)
    assert score.terms(["CCO", "C"])["DRD2"].tolist() == [-3.2, -1.2]
    assert score([]).shape == (0,)
    assert "dockstring" not in sys.modules
    with pytest.raises(RewardError, match="DRD2: cannot dock Cl: ValueError: cannot embed"):
        score(["CCO", "Cl"])
    with pytest.raises(RewardError, match="DRD2: cannot dock F: it gives no score"):
        score(["F"])
    with pytest.raises(RewardError, match=r"DRD2: dockstring took longer than 0\.5 s for Br"):
        Dockstring("DRD2", time_limit=0.5)(["Br"])
    with pytest.raises(RuntimeError, match=r"failed: KeyError: 'KIT'$"):
        Dockstring("KIT")(["C"])


def test_missing_dockstring_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dockstring.py").write_text("raise ModuleNotFoundError('No module named dockstring')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"No module named dockstring; install it there .*'fgfn\[dockstring\]'"):
        Dockstring("DRD2")(["C"])
    with pytest.raises(RuntimeError, match="cannot run the interpreter /nowhere/python"):
        Dockstring("DRD2", python="/nowhere/python")(["C"])
