"""The sEH proxy of Bengio et al. (2021), with weights from a file of yours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from envs.synthesis.rewards.reward import Values, molecules, require_values
from envs.synthesis.rewards.seh_network import Network, graphs, network_of
from envs.synthesis.rewards.seh_weights import checksum, read_arrays

PUBLISHED_SHA256 = "f76ab480b62e23dda04fd45fefe0e7ae2374b3f8c3f18fb7e00651cad05b9e1f"
SOURCE = "https://github.com/GFNOrg/gflownet/raw/master/mols/data/pretrained_proxy/best_params.pkl.gz"


@dataclass(frozen=True)
class SEH:
    """Predicted binding to soluble epoxide hydrolase, as the reward that is usual with it: max(proxy / 8, 10⁻⁴).

    The proxy predicts docking scores on a scale on which the molecules it was trained on have mean 4
    and standard deviation 1, higher being better; 8 counts as very good. Its terms are ``seh_proxy``,
    the prediction itself, and ``seh``.

    Args:
        weights: the published file, which cannot be part of this package; see ``SOURCE``.
        sha256: its checksum; that of another file if you trust one, None for any.
        scale: what the prediction is divided by.
        floor: the smallest reward, for predictions near and below 0.
        batch: molecules that go through the network at once.
        device: where it runs.

    Raises:
        FileNotFoundError: if there is no file of weights, with the address of the published one.
        ValueError: if the file is not what it should be, or a number not positive.
        RewardError: when called with a molecule that the network has no features for (an element
            beyond barium, a bond that is not single, double, triple or aromatic).

    Source: arXiv:2106.04399, section 4.3; the reward as in the code that later work shares.
    """

    weights: Path | str = field(repr=False)
    sha256: str | None = PUBLISHED_SHA256
    scale: float = 8.0
    floor: float = 1e-4
    batch: int = field(default=256, repr=False)
    device: str = field(default="cpu", repr=False)
    name: str = field(default="seh", init=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.scale > 0 and self.floor >= 0 and self.batch >= 1):
            raise ValueError(
                f"SEH: expected scale > 0, floor ≥ 0, batch ≥ 1, got {self.scale}, {self.floor}, {self.batch}"
            )
        path = Path(self.weights).absolute()
        if not path.is_file():
            raise FileNotFoundError(f"SEH: there is no file of weights {path}; the published one is at {SOURCE}")
        if self.sha256 is None:
            object.__setattr__(self, "sha256", checksum(path))  # caches tell weights apart by it
        self._network()

    def __call__(self, smiles: Sequence[str]) -> Values:
        return self.terms(smiles)[self.name]

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        mols = molecules(self.name, smiles)
        starts = range(0, len(mols), self.batch)
        parts = [self._predicted(mols[i : i + self.batch], smiles[i : i + self.batch]) for i in starts]
        proxy = require_values("seh_proxy", np.concatenate([np.zeros(0), *parts]), smiles, signed=True)
        return {"seh_proxy": proxy, self.name: np.maximum(proxy / self.scale, self.floor)}

    @torch.inference_mode()
    def _predicted(self, mols: Sequence[Any], smiles: Sequence[str]) -> Values:
        return self._network()(graphs(mols, smiles).to(self.device)).double().cpu().numpy()

    def _network(self) -> Network:
        return _loaded(Path(self.weights).absolute(), self.sha256, self.device)


@lru_cache(maxsize=4)
def _loaded(path: Path, sha256: str | None, device: str) -> Network:
    """The network of a file, once in a process."""
    try:
        return network_of(read_arrays(path, sha256)).to(device)
    except ValueError as error:
        raise ValueError(f"SEH: {path}: {error}") from error
