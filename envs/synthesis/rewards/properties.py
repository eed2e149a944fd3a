"""Properties of molecules that RDKit computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rdkit.Chem import QED, Descriptors, rdMolDescriptors
from rdkit.Contrib.SA_Score import sascorer  # pyright: ignore[reportMissingImports]

from envs.synthesis.rewards.reward import Values, molecules, require_values

DESCRIPTORS: Any = Descriptors  # makes its functions when imported, where no type checker sees them
FUNCTIONS: Mapping[str, Callable[[Any], float]] = {
    "qed": QED.qed,
    "sa": sascorer.calculateScore,
    "logp": DESCRIPTORS.MolLogP,
    "tpsa": rdMolDescriptors.CalcTPSA,
    "weight": DESCRIPTORS.MolWt,
    "donors": rdMolDescriptors.CalcNumHBD,
    "acceptors": rdMolDescriptors.CalcNumHBA,
    "rotatable_bonds": rdMolDescriptors.CalcNumRotatableBonds,
    "rings": rdMolDescriptors.CalcNumRings,
    "aromatic_rings": rdMolDescriptors.CalcNumAromaticRings,
    "heavy_atoms": rdMolDescriptors.CalcNumHeavyAtoms,
    "fraction_sp3": rdMolDescriptors.CalcFractionCSP3,
    "stereocenters": rdMolDescriptors.CalcNumAtomStereoCenters,
}


@dataclass(frozen=True)
class Property:
    """One property of a molecule; all but ``logp`` are rewards as they are.

    Args:
        name: ``qed`` (drug-likeness, 0 to 1; Bickerton et al. 2012, doi:10.1038/nchem.1243), ``sa``
            (synthetic accessibility, 1 easy to 10 hard; Ertl and Schuffenhauer 2009,
            doi:10.1186/1758-2946-1-8), ``logp`` (Crippen), ``tpsa`` (Å²), ``weight`` (g/mol), ``donors``,
            ``acceptors``, ``rotatable_bonds``, ``rings``, ``aromatic_rings``, ``heavy_atoms``,
            ``fraction_sp3`` (of the carbons) or ``stereocenters``.

    Raises:
        ValueError: if there is no such property.
        RewardError: when called with a SMILES that RDKit cannot read.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in FUNCTIONS:
            raise ValueError(f"Property: there is no property {self.name!r}; there are {', '.join(FUNCTIONS)}")

    def __call__(self, smiles: Sequence[str]) -> Values:
        function = FUNCTIONS[self.name]
        values = np.array([function(mol) for mol in molecules(self.name, smiles)], dtype=np.float64)
        return require_values(self.name, values, smiles, signed=True)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}
