"""Predictions of ADMET-AI: absorption, distribution, metabolism, excretion and toxicity."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from envs.synthesis.rewards.reward import Values, imported, molecules, require_values
from gfn.environment import RewardError


@dataclass(frozen=True)
class ADMET:
    """One of the endpoints of ADMET-AI (Swanson et al. 2024, doi:10.1093/bioinformatics/btae416).

    Needs the extra ``admet``. All endpoints are predicted together, some 70 ms for a molecule, and those
    of the latest batches are remembered, so several endpoints in one product cost little more than one.

    Args:
        endpoint: column of ADMET-AI, such as ``hERG``, ``AMES``, ``DILI``, ``ClinTox`` or ``BBB_Martins``
            (probabilities), ``Solubility_AqSolDB`` (log mol/L, negative: a score for a desirability), or one
            of their ``…_drugbank_approved_percentile`` (0 to 100).

    Raises:
        ImportError: when called, if ADMET-AI is not installed, naming the extra.
        ValueError: when called, if there is no such endpoint; the message lists all.
        RewardError: when called, for molecules that have no prediction.
    """

    endpoint: str

    @property
    def name(self) -> str:
        """That of the endpoint."""
        return self.endpoint

    def __call__(self, smiles: Sequence[str]) -> Values:
        if not smiles:
            return np.zeros(0)
        molecules(self.name, smiles)  # ADMET-AI leaves out what cannot be read
        table = _predictions(tuple(dict.fromkeys(smiles)))
        if self.endpoint not in table:
            raise ValueError(f"ADMET: there is no endpoint {self.endpoint!r}; there are {', '.join(table)}")
        column = table[self.endpoint]
        missing = [text for text in smiles if text not in column]
        if missing:
            raise RewardError(f"{self.name}: ADMET-AI predicts nothing for {', '.join(missing[:5])}")
        return require_values(self.name, np.array([column[text] for text in smiles]), smiles, signed=True)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}


@lru_cache(maxsize=4)
def _predictions(smiles: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Value of each endpoint and distinct molecule."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # ten progress bars for each batch
        return _model().predict(smiles=list(smiles)).to_dict()


@cache
def _model() -> Any:
    """The models, which take some 20 s to load."""
    model = imported("admet_ai", "admet", "ADMET").ADMETModel()
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they announce the device twice for each batch
    return model
