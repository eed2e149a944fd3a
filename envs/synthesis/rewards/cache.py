"""Values that were computed before, in memory and in a file that processes share."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import rdkit
from cachetools import LRUCache
from rdkit import Chem

from envs.synthesis.rewards.reward import Score, Values, molecules, on_failure, require_values
from envs.synthesis.rewards.store import Store, Terms


class Cached:
    """A reward or score whose values are kept: the latest in memory, all of them in a SQLite file.

    The file is keyed by what the values depend on (the ``repr`` of the score, or ``fingerprint``, and
    the version of RDKit) and the canonical SMILES, so several scores and several processes may share
    it. A file that is damaged is set aside with a warning, and a new one begun; a value that is
    damaged is computed again. All terms are kept, so what is missing is computed by ``terms``. What
    raises is not kept; what stands for a failure (``on_failure`` of a :class:`Pool`) is kept in memory only, so that
    a later process tries the molecule again.

    Args:
        score: a reward or score.
        path: of the file, which is made, like its folder; default, memory only.
        memory: molecules kept in memory.
        fingerprint: stands for the parameters of a score whose ``repr`` does not state them.

    Raises:
        ValueError: if the ``repr`` of the score holds an address, or ``memory`` is not positive.
        OSError: if the file cannot be read or written.
        RewardError: when called with a SMILES that RDKit cannot read, or as the score does.
    """

    def __init__(
        self,
        score: Score,
        path: Path | str | None = None,
        memory: int = 100_000,
        fingerprint: str | None = None,
    ) -> None:
        if memory < 1:
            raise ValueError(f"Cached: expected memory ≥ 1 molecules, got {memory}")
        self.score = score
        self.fingerprint = _described(score) if fingerprint is None else fingerprint
        self._key = hashlib.sha256(f"{self.fingerprint}\nRDKit {rdkit.__version__}".encode()).hexdigest()
        self._memory: LRUCache[str, Terms] = LRUCache(memory)
        self._store = None if path is None else Store(Path(path).absolute())

    @property
    def name(self) -> str:
        """That of the score."""
        return self.score.name

    @property
    def on_failure(self) -> float | str | None:
        """That of the score, if it has one."""
        return on_failure(self.score)

    def __repr__(self) -> str:
        """What the values depend on."""
        return f"Cached({self.fingerprint})"

    def __call__(self, smiles: Sequence[str]) -> Values:
        return np.array([terms[self.name] for terms in self._terms(smiles)], dtype=np.float64)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        rows = self._terms(smiles)
        names = dict.fromkeys(name for row in rows for name in row) or (self.name,)
        return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}

    def _terms(self, smiles: Sequence[str]) -> list[Terms]:
        found = {text: terms for text in set(smiles) if (terms := self._memory.get(text)) is not None}
        missing = [text for text in dict.fromkeys(smiles) if text not in found]
        canonical = dict(zip(missing, map(Chem.MolToSmiles, molecules(self.name, missing)), strict=True))
        known = self._known(list(dict.fromkeys(canonical.values())))
        for text, standard in canonical.items():
            found[text] = self._memory[text] = known[standard]
        return [found[text] for text in smiles]

    def _known(self, smiles: Sequence[str]) -> dict[str, Terms]:
        """Terms of distinct canonical SMILES: from the file, or else computed and written there."""
        kept = {} if self._store is None else self._store.read(self._key, smiles)
        missing = [text for text in smiles if text not in kept]
        if missing:
            made = self._computed(missing)
            kept |= made
            if self._store is not None:
                self._store.write(self._key, {text: terms for text, terms in made.items() if self._lasts(terms)})
        return kept

    def _lasts(self, terms: Terms) -> bool:
        return not math.isnan(terms[self.name]) and terms[self.name] != self.on_failure

    def _computed(self, smiles: Sequence[str]) -> dict[str, Terms]:
        terms = {name: np.asarray(values, dtype=np.float64) for name, values in self.score.terms(smiles).items()}
        terms[self.name] = require_values(
            self.name, terms.get(self.name), smiles, signed=True, unknown=self.on_failure == "mask"
        )
        return {text: {name: float(values[i]) for name, values in terms.items()} for i, text in enumerate(smiles)}


def _described(score: Score) -> str:
    text = repr(score)
    if re.search(r"\bat 0x[0-9a-fA-F]+", text):
        raise ValueError(f"Cached: {text} does not state what its values depend on; give a fingerprint= that does")
    return text
