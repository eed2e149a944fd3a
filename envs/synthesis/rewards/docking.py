"""Docking scores: AutoDock Vina in this process, and the targets of dockstring in a process of its own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from rdkit import Chem
from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

from envs.synthesis.rewards.reward import Values, imported, molecules, require_values
from gfn.environment import RewardError

PROCESS = Path(__file__).with_name("dockstring_process.py")


@dataclass(frozen=True)
class Vina:
    """Score of the best pose that AutoDock Vina finds, in kcal/mol: the lower, the better.

    A score and no reward, being negative: see :class:`Desired` and :class:`Rescaled`. It takes seconds for
    a molecule, and may crash: see :class:`Pool` and :class:`Cached`. Needs the extra ``dock``.

    Args:
        receptor: PDBQT file.
        center: of the box to search, Å.
        size: edges of the box, Å.
        exhaustiveness: of the search; its time is proportional to it.
        seed: of the conformer and the search, which both depend on nothing else.
        name: in reports.

    Raises:
        FileNotFoundError: if there is no receptor.
        ImportError: when called, if Vina or Meeko is not installed, naming the extra.
        RewardError: when called, naming the molecule that cannot be embedded, prepared or docked.

    Source: Eberhardt et al. 2021, doi:10.1021/acs.jcim.1c00203.
    """

    receptor: Path | str = field(repr=False)
    center: Sequence[float]
    size: Sequence[float] = (20.0, 20.0, 20.0)
    exhaustiveness: int = 8
    seed: int = 1
    name: str = "vina"
    receptor_sha256: str = field(init=False)

    def __post_init__(self) -> None:
        if len(self.center) != 3 or len(self.size) != 3 or min(self.size) <= 0 or self.exhaustiveness < 1:
            raise ValueError(
                "Vina: expected three numbers as center, three > 0 as size, exhaustiveness ≥ 1, "
                f"got {list(self.center)}, {list(self.size)}, {self.exhaustiveness}"
            )
        path = Path(self.receptor)
        if not path.is_file():
            raise FileNotFoundError(f"Vina: there is no receptor {path.absolute()}; expected a PDBQT file")
        object.__setattr__(self, "receptor", str(path.absolute()))
        object.__setattr__(self, "center", tuple(self.center))
        object.__setattr__(self, "size", tuple(self.size))
        object.__setattr__(self, "receptor_sha256", hashlib.sha256(path.read_bytes()).hexdigest())

    def __call__(self, smiles: Sequence[str]) -> Values:
        mols = molecules(self.name, smiles)
        scores = [self._docked(mol, text) for mol, text in zip(mols, smiles, strict=True)]
        return require_values(self.name, np.array(scores, dtype=np.float64), smiles, signed=True)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}

    def _docked(self, mol: Any, smiles: str) -> float:
        try:
            search = _search(self)
            search.set_ligand_from_string(_pdbqt(mol, self.seed))
            search.dock(exhaustiveness=self.exhaustiveness, n_poses=1)
            return float(search.energies(n_poses=1)[0][0])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise RewardError(f"{self.name}: cannot dock {smiles}: {error}") from error


@lru_cache(maxsize=2)
def _search(vina: Vina) -> Any:
    """A Vina with the maps of a receptor, whose computation takes seconds."""
    search = imported("vina", "dock", "Vina").Vina(sf_name="vina", cpu=1, seed=vina.seed, verbosity=0)
    search.set_receptor(str(vina.receptor))
    search.compute_vina_maps(center=list(vina.center), box_size=list(vina.size))
    return search


def _pdbqt(mol: Any, seed: int) -> str:
    """A molecule with hydrogens and one conformer, in the format of Vina.

    Raises:
        ValueError: if it has no conformer, or Meeko cannot prepare it.
    """
    meeko = imported("meeko", "dock", "Vina")
    whole = Chem.AddHs(mol)
    if rdDistGeom.EmbedMolecule(whole, randomSeed=seed) != 0:
        raise ValueError("RDKit finds no conformer")
    if rdForceFieldHelpers.MMFFHasAllMoleculeParams(whole):
        rdForceFieldHelpers.MMFFOptimizeMolecule(whole)
    text, sound, reason = meeko.PDBQTWriterLegacy.write_string(meeko.MoleculePreparation().prepare(whole)[0])
    if not sound:
        raise ValueError(f"Meeko cannot prepare it: {reason}")
    return text


@dataclass(frozen=True)
class Dockstring:
    """Docking score to one of the targets of dockstring, in kcal/mol: the lower, the better.

    A score and no reward, being negative: see :class:`Desired`. It takes half a minute for a molecule. Needs
    the extra ``dockstring``, here or, since it uses Open Babel, whose licence is the GPL, in an
    environment of its own: all of it runs in another process.

    Args:
        target: such as ``DRD2``, ``KIT`` or ``PARP1``.
        python: interpreter that has dockstring; default, this one.
        cpus: of the search for each molecule.
        time_limit: seconds for each molecule.
        name: default, that of the target.

    Raises:
        RewardError: when called, naming the molecule that cannot be docked, or that took too long.
        RuntimeError: when called, if the process fails for another reason, such as a missing package.

    Source: García-Ortegón et al. 2022, doi:10.1021/acs.jcim.1c01334.
    """

    target: str
    python: Path | str = field(default=sys.executable, repr=False)
    cpus: int = field(default=1, repr=False)
    time_limit: float = field(default=600.0, repr=False)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.target)

    def __call__(self, smiles: Sequence[str]) -> Values:
        if not smiles:
            return np.zeros(0)
        scores = [self._score(text, answer) for text, answer in zip(smiles, self._answers(smiles), strict=True)]
        return require_values(self.name, np.array(scores, dtype=np.float64), smiles, signed=True)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}

    def _answers(self, smiles: Sequence[str]) -> list[dict[str, Any]]:
        """What the process says of each molecule."""
        question = json.dumps({"target": self.target, "cpus": self.cpus, "smiles": list(smiles)})
        limit = self.time_limit * len(smiles)
        command = [str(self.python), str(PROCESS)]
        programs = f"{Path(self.python).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # Open Babel lies beside it
        environment = {**os.environ, "PATH": programs}
        try:
            ended = subprocess.run(
                command, input=question, env=environment, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise RewardError(
                f"{self.name}: dockstring took longer than {limit:g} s for {', '.join(smiles[:5])}; it was killed"
            ) from error
        except OSError as error:
            raise RuntimeError(f"Dockstring: cannot run the interpreter {self.python}: {error}") from error
        if ended.returncode != 0:
            reason = (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
            fix = "; install it there with: pip install 'fgfn[dockstring]'" if "ModuleNotFoundError" in reason else ""
            raise RuntimeError(f"Dockstring: {self.python} failed: {reason}{fix}")
        return json.loads(ended.stdout.splitlines()[-1])  # what comes before is not ours

    def _score(self, smiles: str, answer: dict[str, Any]) -> float:
        if "error" in answer:
            raise RewardError(f"{self.name}: cannot dock {smiles}: {answer['error']}")
        return float(answer["score"])
