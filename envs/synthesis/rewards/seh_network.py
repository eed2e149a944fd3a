"""The network that Bengio et al. (2021, arXiv:2106.04399) trained to predict docking to soluble epoxide hydrolase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rdkit.Chem import BondType, HybridizationType
from torch import Tensor, nn

from gfn.environment import RewardError

WIDTH = 64
ROUNDS = 12  # of message passing
READS = 3  # of the attention that sums up a molecule
HEAVIEST = 56  # largest atomic number with a feature
N_FEATURES = 14 + HEAVIEST + 1
SYMBOLS = ("H", "C", "N", "O", "F")  # columns 0 to 4; any other element is column 5, 6 to 8 are empty
AROMATIC, HYBRIDIZATION, HYDROGENS, ELEMENT = 9, 10, 13, 14  # first columns; the last of all marked stems, and is empty
HYBRIDIZATIONS = (HybridizationType.SP, HybridizationType.SP2, HybridizationType.SP3)
BONDS = {
    BondType.SINGLE: 0,
    BondType.UNSPECIFIED: 0,
    BondType.DOUBLE: 1,
    BondType.TRIPLE: 2,
    BondType.AROMATIC: 3,
}
NO_BOND = len(set(BONDS.values()))  # the kind of an edge that has no features
# Where each array of the published file belongs; the four without a name are of a part that the proxy does not use.
PARAMETERS = (
    "atoms.weight",
    "atoms.bias",
    "itself.weight",
    "bias",
    "bonds.0.weight",
    "bonds.0.bias",
    "bonds.2.weight",
    "bonds.2.bias",
    "memory.weight_ih",
    "memory.weight_hh",
    "memory.bias_ih",
    "memory.bias_hh",
    *[""] * 4,
    "reader.weight_ih",
    "reader.weight_hh",
    "reader.bias_ih",
    "reader.bias_hh",
    "value.weight",
    "value.bias",
)


@dataclass(frozen=True)
class Graphs:
    """Molecules as one graph: A atoms, and each bond as two edges.

    Attributes:
        atoms: features, float32 ``[A, 71]``.
        source, target: atoms that an edge joins, long ``[E]``.
        kind: of its bond, long ``[E]``.
        molecule: of each atom, long ``[A]``.
        count: number of molecules.
    """

    atoms: Tensor
    source: Tensor
    target: Tensor
    kind: Tensor
    molecule: Tensor
    count: int

    def to(self, device: torch.device | str) -> Graphs:
        """The same on another device."""
        atoms, source, target = self.atoms.to(device), self.source.to(device), self.target.to(device)
        return Graphs(atoms, source, target, self.kind.to(device), self.molecule.to(device), self.count)


def graphs(mols: Sequence[Any], smiles: Sequence[str]) -> Graphs:
    """The graphs of RDKit molecules, with the features the network was trained on.

    Raises:
        RewardError: naming a molecule with an element or a kind of bond that it has no features for.
    """
    sizes = [mol.GetNumAtoms() for mol in mols]
    atoms = np.zeros((sum(sizes), N_FEATURES), dtype=np.float32)
    edges: list[tuple[int, int, int]] = []
    first = 0
    for mol, size, text in zip(mols, sizes, smiles, strict=True):
        _fill(atoms[first : first + size], mol, text)
        edges += [(first + i, first + j, kind) for i, j, kind in _edges(mol, text)]
        first += size
    table = torch.tensor(edges, dtype=torch.long).reshape(-1, 3)
    molecule = torch.arange(len(mols)).repeat_interleave(torch.tensor(sizes, dtype=torch.long))
    return Graphs(torch.from_numpy(atoms), table[:, 0], table[:, 1], table[:, 2], molecule, len(mols))


def _fill(rows: NDArray[np.float32], mol: Any, smiles: str) -> None:
    """Write the features of a molecule's atoms."""
    for row, atom in zip(rows, mol.GetAtoms(), strict=True):
        number, symbol, hybridization = atom.GetAtomicNum(), atom.GetSymbol(), atom.GetHybridization()
        if not 1 <= number <= HEAVIEST:
            raise RewardError(f"seh: there are no features for the element {symbol} of {smiles}")
        row[SYMBOLS.index(symbol) if symbol in SYMBOLS else len(SYMBOLS)] = 1
        row[AROMATIC] = atom.GetIsAromatic()
        if hybridization in HYBRIDIZATIONS:
            row[HYBRIDIZATION + HYBRIDIZATIONS.index(hybridization)] = 1
        row[HYDROGENS] = atom.GetTotalNumHs(includeNeighbors=True)
        row[ELEMENT + number - 1] = 1


def _edges(mol: Any, smiles: str) -> list[tuple[int, int, int]]:
    """Source, target and kind of the edges of a molecule."""
    edges: list[tuple[int, int, int]] = []
    for bond in mol.GetBonds():
        if bond.GetBondType() not in BONDS:
            raise RewardError(f"seh: there are no features for the {bond.GetBondType().name} bond of {smiles}")
        i, j, kind = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx(), BONDS[bond.GetBondType()]
        edges += [(i, j, kind), (j, i, kind)]
    return edges or [(0, 0, NO_BOND)]  # the published code gives a molecule without bonds this one edge


class Network(nn.Module):
    """Message passing over atoms with matrices that depend on the bond, and an attention over atoms in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Linear(N_FEATURES, WIDTH)
        self.bonds = nn.Sequential(nn.Linear(NO_BOND, 2 * WIDTH), nn.LeakyReLU(), nn.Linear(2 * WIDTH, WIDTH * WIDTH))
        self.itself = nn.Linear(WIDTH, WIDTH, bias=False)
        self.bias = nn.Parameter(torch.zeros(WIDTH))
        self.memory = nn.GRUCell(WIDTH, WIDTH)
        self.reader = nn.LSTMCell(2 * WIDTH, WIDTH)
        self.value = nn.Linear(2 * WIDTH, 1)
        self.activation = nn.LeakyReLU()

    def forward(self, batch: Graphs) -> Tensor:
        """Predicted value of each molecule, float32 ``[N]``."""
        matrices = self._matrices()
        incoming = torch.bincount(batch.target, minlength=len(batch.atoms)).clamp(min=1).unsqueeze(1)
        atoms = self.activation(self.atoms(batch.atoms))
        for _ in range(ROUNDS):
            # each atom through the matrix of each kind of bond: far fewer products than one for each edge
            sent = (atoms @ matrices).reshape(-1, WIDTH)[batch.source * (NO_BOND + 1) + batch.kind]
            received = torch.zeros_like(atoms).index_add(0, batch.target, sent) / incoming
            atoms = self.memory(self.activation(received + self.itself(atoms) + self.bias), atoms)
        return self.value(self._read(atoms, batch)).squeeze(1)

    def _matrices(self) -> Tensor:
        """The matrices of the kinds of bonds, the kind without features last, side by side: ``[64, 5 · 64]``."""
        kinds = torch.eye(NO_BOND + 1, NO_BOND, device=self.bias.device)
        return self.bonds(kinds).reshape(-1, WIDTH, WIDTH).transpose(0, 1).reshape(WIDTH, -1)

    def _read(self, atoms: Tensor, batch: Graphs) -> Tensor:
        """Set2Set (Vinyals et al. 2016, arXiv:1511.06391): an LSTM whose queries weigh the atoms, ``[N, 128]``."""
        where, shape = batch.molecule, (batch.count, WIDTH)
        summary = atoms.new_zeros(batch.count, 2 * WIDTH)
        hidden = cell = atoms.new_zeros(shape)
        for _ in range(READS):
            hidden, cell = self.reader(summary, (hidden, cell))
            scores = (atoms * hidden[where]).sum(1)
            highest = scores.new_full((batch.count,), -torch.inf).scatter_reduce(0, where, scores, "amax")
            weights = (scores - highest[where]).exp()
            total = weights.new_zeros(batch.count).index_add(0, where, weights)
            read = atoms.new_zeros(shape).index_add(0, where, atoms * (weights / total[where]).unsqueeze(1))
            summary = torch.cat([hidden, read], 1)
        return summary


def network_of(arrays: Sequence[NDArray[np.float32]]) -> Network:
    """The network with the 22 arrays of the published file, in its order.

    The file holds the matrix of an atom's own message as the public code takes it, with outputs in rows.

    Raises:
        ValueError: if there are more or fewer arrays, or of other shapes; all of them are told.
    """
    network = Network().requires_grad_(False).eval()
    expected = {name: tuple(p.shape) for name, p in network.named_parameters()}
    if len(arrays) != len(PARAMETERS):
        raise ValueError(f"expected {len(PARAMETERS)} arrays of weights, got {len(arrays)}")
    named = [(i, name, array) for i, (name, array) in enumerate(zip(PARAMETERS, arrays, strict=True)) if name]
    wrong = [
        f"array {i} ({name}) of shape {list(expected[name])}, got {list(array.shape)}"
        for i, name, array in named
        if array.shape != expected[name]
    ]
    if wrong:
        raise ValueError(f"expected {'; '.join(wrong)}")
    network.load_state_dict({name: torch.from_numpy(array) for _, name, array in named})
    return network
