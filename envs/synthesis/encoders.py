"""Networks from molecules to vectors, by torch-geometric's message passing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GINEConv, GPSConv, global_add_pool, global_mean_pool
from torch_geometric.nn.norm import LayerNorm

from envs.synthesis.graphs import BOND_SIZE, N_ATOM_CODES, N_BITS, GraphBatch

POOLED = 0.1  # scale of the sum over atoms, of which there are tens


def _perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))


class Embedding(nn.Module):
    """Vectors of atoms and of bonds, each the sum of those of its properties."""

    def __init__(self, width: int):
        super().__init__()
        self.atom = nn.EmbeddingBag(N_ATOM_CODES, width, mode="sum")
        self.bond = nn.Embedding(BOND_SIZE, width)

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Atoms ``[A, width]`` and directions of bonds ``[E, width]``."""
        return self.atom(batch.atoms), self.bond(batch.orders)


class GINE(nn.Module):
    """Graph isomorphism network with bonds (Xu et al. 2019; Hu et al. 2020, arXiv:1905.12265): small and fast.

    Raises:
        ValueError: unless ``width`` and ``layers`` are positive.
    """

    def __init__(self, width: int = 64, layers: int = 3):
        super().__init__()
        _require_positive(width=width, layers=layers)
        self.width = width
        self.embedding = Embedding(width)
        self.layers = nn.ModuleList(GINEConv(_perceptron(width)) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.pool = nn.Linear(2 * width, width)

    def forward(self, batch: GraphBatch) -> Tensor:
        """One vector for each molecule, ``[M, width]``."""
        atoms, bonds = self.embedding(batch)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            atoms = atoms + layer(norm(atoms), batch.bonds, bonds).relu()
        return self.pool(_pooled(atoms, batch))


class GraphTransformer(nn.Module):
    """Message passing along bonds beside attention between all atoms (Rampášek et al. 2022, arXiv:2205.12454).

    Raises:
        ValueError: unless the numbers are positive and ``heads`` divides ``width``.
    """

    def __init__(self, width: int = 128, layers: int = 4, heads: int = 4):
        super().__init__()
        _require_positive(width=width, layers=layers, heads=heads)
        if width % heads:
            raise ValueError(f"GraphTransformer: heads must divide width, got {width=} {heads=}")
        self.width = width
        self.embedding = Embedding(width)
        self.layers = nn.ModuleList(
            GPSConv(width, GINEConv(_perceptron(width)), heads, norm=None) for _ in range(layers)
        )
        self.norms = nn.ModuleList(LayerNorm(width, mode="node") for _ in range(layers))
        self.pool = nn.Linear(2 * width, width)

    def forward(self, batch: GraphBatch) -> Tensor:
        """One vector for each molecule, ``[M, width]``."""
        atoms, bonds = self.embedding(batch)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            atoms = layer(norm(atoms), batch.bonds, batch.owner, edge_attr=bonds)
        return self.pool(_pooled(atoms, batch))


def _pooled(atoms: Tensor, batch: GraphBatch) -> Tensor:
    total = global_add_pool(atoms, batch.owner, batch.size)
    return torch.cat([global_mean_pool(atoms, batch.owner, batch.size), POOLED * total], 1)


class Fingerprints(nn.Module):
    """A learned projection of fingerprints: the sum of one vector for each bit that is set."""

    def __init__(self, width: int):
        super().__init__()
        self.bag = nn.EmbeddingBag(N_BITS, width, mode="sum")
        nn.init.normal_(self.bag.weight, std=0.2)  # some 25 bits are set, so sums come out near one

    def forward(self, bits: Tensor, starts: Tensor) -> Tensor:
        """Vectors of molecules, ``[M, width]``, given all their bits and where those of each start."""
        return self.bag(bits, starts)


def _require_positive(**numbers: Any) -> None:
    if any(number < 1 for number in numbers.values()):
        raise ValueError(f"a network of molecules needs positive numbers, got {numbers}")
