"""The sEH proxy: its file, its features, what its network computes, and, where the weights are, its values."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rdkit import Chem
from torch import nn
from torch_geometric.nn import NNConv, Set2Set

from envs.synthesis.rewards import SEH, Power
from envs.synthesis.rewards.seh_network import HEAVIEST, NO_BOND, PARAMETERS, Graphs, Network, graphs, network_of
from envs.synthesis.rewards.seh_weights import read_arrays
from gfn.environment import RewardError

SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "O=C(NC1CCCCC1)NC1CCCCC1",
    "C",
    "[Na+].[Cl-]",
    "CC#N",
    "C[N+](=O)[O-]",
    "OB(O)c1ccccc1",
    "O=S(=O)(N)c1ccc(I)cc1",
    "FC(F)(F)c1ccc(Br)cc1",
]
UNUSED = {12: (512, 64), 13: (512,), 14: (105, 512), 15: (105,)}


def random_arrays(seed: int = 0) -> list[Any]:
    """Arrays of the shapes of the published file, large enough that every part of the network matters."""
    generator = np.random.default_rng(seed)
    shapes = {name: tuple(p.shape) for name, p in Network().named_parameters()}
    return [
        generator.normal(0, 0.15, shapes[name] if name else UNUSED[i]).astype(np.float32)
        for i, name in enumerate(PARAMETERS)
    ]


def write(path: Path, content: Any, protocol: int = 3) -> Path:
    with gzip.open(path, "wb") as file:
        pickle.dump(content, file, protocol=protocol)
    return path


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> SEH:
    return SEH(write(tmp_path_factory.mktemp("weights") / "random.pkl.gz", random_arrays()), sha256=None)


# The file


@pytest.mark.parametrize("protocol", [3, 4])
def test_arrays_are_read_as_they_were_written(tmp_path: Path, protocol: int) -> None:
    arrays = random_arrays()
    arrays[0] = np.asfortranarray(arrays[0])
    read = read_arrays(write(tmp_path / "w", arrays, protocol), None)
    assert len(read) == len(arrays)
    for ours, theirs in zip(read, arrays, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs)


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    wants = {
        f"{os.name}.mkdir": Hostile(os.mkdir, str(mark)),
        "builtins.eval": Hostile(eval, f"open({str(mark)!r}, 'w')"),
        "builtins.getattr": Hostile(getattr, "text", "upper"),
        "_codecs.encode": Hostile(codecs.encode, "text", "latin1"),
    }
    for name, content in wants.items():
        for whole in (content, [*random_arrays(), content]):
            path = write(tmp_path / "hostile", whole)
            with pytest.raises(ValueError, match=re.escape(f"it asks for {name}, which no array needs")):
                SEH(path, sha256=None)
    assert not mark.exists()
    pickle.loads(pickle.dumps(wants[f"{os.name}.mkdir"]))
    assert mark.exists(), "what was refused does run elsewhere"


def crafted(*opcodes: bytes) -> bytes:
    return b"\x80\x03" + b"".join(opcodes) + b"."


NEW_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"a": 1}), "it holds something else"),
        (pickle.dumps([1.0, 2.0]), "it holds something else"),
        (pickle.dumps([np.zeros(2)], 3), "an array has the type 'f8'"),
        (pickle.dumps([np.zeros(2, object)], 3), "an array has the type 'O8'"),
        (pickle.dumps([np.zeros(2, ">f4")], 3), "an array has the byte order '>'"),
        (pickle.dumps([np.zeros(2, np.float32)], 3)[:-20], ""),
        (crafted(b"]", NEW_ARRAY, b"cnumpy\nndarray\n", b"\x85", b"R", b"a"), "an array has no content"),
        (crafted(b"]", NEW_ARRAY, b"K\x01\x85R", b"a"), "an array is of no known class"),
        (crafted(b"cnumpy\ndtype\n", b"K\x01\x85R"), "an array has the type 1"),
        (crafted(b"cnumpy\nndarray\n", b")R"), "it holds something else"),
        (b"", ""),
        (b"\x80\x03K\x01", ""),
        (b"no pickle at all", ""),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "weights"
    path.write_bytes(gzip.compress(content))
    with pytest.raises(
        ValueError, match=f"weights: expected a gzipped pickle of one list of float32 arrays: .*{message}"
    ):
        SEH(path, sha256=None)


def test_files_are_verified(tmp_path: Path) -> None:
    path = write(tmp_path / "weights", random_arrays())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert SEH(path, sha256=digest).sha256 == SEH(path, sha256=None).sha256 == digest
    with pytest.raises(ValueError, match=f"expected a file with SHA-256 f76ab480.*, got {digest}; if you trust it"):
        SEH(path)
    with pytest.raises(FileNotFoundError, match=r"no file of weights .*missing; the published one is at https://"):
        SEH(tmp_path / "missing")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="expected a gzipped pickle"):
        SEH(path, sha256=None)
    path.write_bytes(b"plain bytes")
    with pytest.raises(ValueError, match="expected a gzipped pickle"):
        SEH(path, sha256=None)


def test_arrays_of_other_shapes_are_refused(tmp_path: Path) -> None:
    arrays = random_arrays()
    with pytest.raises(ValueError, match="expected 22 arrays of weights, got 21"):
        SEH(write(tmp_path / "few", arrays[:-1]), sha256=None)
    arrays[0], arrays[8] = arrays[0].T, arrays[8][:5]
    message = r"array 0 \(atoms.weight\) of shape \[64, 71\], got \[71, 64\]; array 8 .* got \[5, 64\]"
    with pytest.raises(ValueError, match=message):
        SEH(write(tmp_path / "wrong", arrays), sha256=None)
    with pytest.raises(ValueError, match="scale > 0, floor ≥ 0, batch ≥ 1, got 0, -1, 0"):
        SEH(tmp_path / "few", scale=0, floor=-1, batch=0)


# The features


def graph(smiles: str) -> Graphs:
    return graphs([Chem.MolFromSmiles(smiles)], [smiles])


def test_features_by_hand() -> None:
    atoms = graph("O=CC#N").atoms
    assert atoms.shape == (4, 71)
    # element among H C N O F other, aromatic, sp, sp2, sp3, hydrogens, and the atomic number
    expected = [{3, 11, 14 + 7}, {1, 11, 13, 14 + 5}, {1, 10, 14 + 5}, {2, 10, 14 + 6}]
    assert [set(row.nonzero().flatten().tolist()) for row in atoms] == expected
    bromine = graph("Brc1ccccc1").atoms
    assert set(bromine[0].nonzero().flatten().tolist()) == {5, 12, 14 + 34}
    assert set(bromine[1].nonzero().flatten().tolist()) == {1, 9, 11, 14 + 5}
    assert graph("C").atoms[0, 13] == 4
    assert graph("[Ba+2]").atoms[0, 14 + HEAVIEST - 1] == 1


def test_edges_by_hand() -> None:
    batch = graphs([Chem.MolFromSmiles(text) for text in ("C=CC#N", "c1cc[nH]c1", "C")], ["", "", ""])
    edges = sorted(zip(batch.source.tolist(), batch.target.tolist(), batch.kind.tolist(), strict=True))
    first = [(0, 1, 1), (1, 0, 1), (1, 2, 0), (2, 1, 0), (2, 3, 2), (3, 2, 2)]
    assert edges[:6] == first
    assert {kind for source, _, kind in edges if 4 <= source < 9} == {3}
    assert edges[-1] == (9, 9, NO_BOND), "a molecule without bonds has one edge, without features"
    assert len(edges) == 6 + 10 + 1
    assert batch.molecule.tolist() == [0] * 4 + [1] * 5 + [2]
    assert batch.count == 3


def test_what_has_no_features_is_named(proxy: SEH) -> None:
    with pytest.raises(RewardError, match=r"seh: there are no features for the element Au of \[Au\]Cl"):
        proxy(["C", "[Au]Cl"])
    with pytest.raises(RewardError, match="no features for the element "):
        proxy(["*C"])
    with pytest.raises(RewardError, match=r"seh: there are no features for the DATIVE bond of N->\[Fe\]"):
        proxy(["N->[Fe]"])
    with pytest.raises(RewardError, match=r"seh: expected SMILES that RDKit can read.*'x'"):
        proxy(["x"])


# The network


class Published(nn.Module):
    """The same network, of the layers the paper's code is made of."""

    def __init__(self, arrays: list[Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(71, 64), nn.Linear(128, 1)
        matrices = nn.Sequential(nn.Linear(4, 128), nn.LeakyReLU(), nn.Linear(128, 4096))
        self.convolution = NNConv(64, 64, matrices, aggr="mean")
        self.gru, self.set2set = nn.GRU(64, 64), Set2Set(64, processing_steps=3)
        names = ["first.weight", "first.bias", "convolution.lin.weight", "convolution.bias"]
        names += [f"convolution.nn.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
        names += [f"gru.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")] + [""] * 4
        names += [f"set2set.lstm.{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        names += ["last.weight", "last.bias"]
        self.load_state_dict({n: torch.from_numpy(a) for n, a in zip(names, arrays, strict=True) if n})

    def forward(self, batch: Graphs) -> Any:
        bonds = torch.eye(NO_BOND + 1, NO_BOND)[batch.kind]
        atoms = nn.functional.leaky_relu(self.first(batch.atoms))
        hidden = atoms.unsqueeze(0)
        for _ in range(12):
            received = self.convolution(atoms, torch.stack([batch.source, batch.target]), bonds)
            atoms, hidden = self.gru(nn.functional.leaky_relu(received).unsqueeze(0), hidden)
            atoms = atoms.squeeze(0)
        return self.last(self.set2set(atoms, batch.molecule)).squeeze(1)


def test_it_computes_what_the_published_layers_compute() -> None:
    arrays = random_arrays(3)
    batch = graphs([Chem.MolFromSmiles(text) for text in SMILES], SMILES)
    with torch.no_grad():
        ours, theirs = network_of(arrays)(batch), Published(arrays)(batch)
    assert float(ours.std()) > 0.05
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_company_and_order_do_not_matter(proxy: SEH) -> None:
    together = proxy.terms(SMILES)["seh_proxy"]
    assert together.std() > 0.05
    alone = [proxy.terms([text])["seh_proxy"][0] for text in SMILES]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(proxy.terms(SMILES[::-1])["seh_proxy"][::-1], together, atol=1e-5)
    small = SEH(proxy.weights, proxy.sha256, batch=2)
    np.testing.assert_allclose(small.terms(SMILES)["seh_proxy"], together, atol=1e-5)


def test_the_order_of_atoms_does_not_matter(proxy: SEH) -> None:
    mol = Chem.MolFromSmiles(SMILES[1])
    written = [Chem.MolToSmiles(mol, doRandom=True) for _ in range(10)]
    assert len(set(written)) > 5
    assert np.ptp(proxy.terms(written)["seh_proxy"]) < 1e-5


def test_the_reward_is_the_scaled_prediction_with_a_floor(proxy: SEH) -> None:
    terms = proxy.terms(SMILES)
    np.testing.assert_array_equal(proxy(SMILES), terms["seh"])
    np.testing.assert_allclose(terms["seh"], np.maximum(terms["seh_proxy"] / 8, 1e-4))
    middle = float(np.median(terms["seh_proxy"]))
    high = SEH(proxy.weights, proxy.sha256, scale=2.0, floor=abs(middle))(SMILES)
    np.testing.assert_allclose(high, np.maximum(terms["seh_proxy"] / 2, abs(middle)))
    assert proxy([]).shape == (0,)
    assert Power(proxy, 2.0).name == "seh^2"


def test_it_is_told_apart_by_its_weights_and_not_their_place(proxy: SEH, tmp_path: Path) -> None:
    copied, other = tmp_path / "copy", write(tmp_path / "other", random_arrays(1))
    copied.write_bytes(Path(proxy.weights).read_bytes())
    assert repr(SEH(copied, sha256=None)) == repr(proxy) == repr(pickle.loads(pickle.dumps(proxy)))
    assert repr(SEH(other, sha256=None)) != repr(proxy)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(proxy))(SMILES), proxy(SMILES))


if "FGFN_SEH_WEIGHTS" in os.environ:
    PUBLISHED = {  # of the same weights in the layers of the paper's code
        "C": -0.4156431,
        "[Na+].[Cl-]": 1.3703012,
        "CC(C)Cc1ccc(cc1)C(C)C(=O)O": 3.1067431,
        "O=C(NC1CCCCC1)NC1CCCCC1": 3.5129533,
        "FC(F)(F)c1ccc(Br)cc1": 2.3882253,
        "O=S(=O)(N)c1ccccc1I": 1.7955458,
    }

    def test_published_weights_give_the_published_values() -> None:
        reward = SEH(os.environ["FGFN_SEH_WEIGHTS"])
        np.testing.assert_allclose(reward.terms(list(PUBLISHED))["seh_proxy"], list(PUBLISHED.values()), atol=1e-5)
        batch = graphs([Chem.MolFromSmiles(text) for text in SMILES], SMILES)
        with torch.no_grad():
            theirs = Published(read_arrays(Path(reward.weights), reward.sha256))(batch)
        np.testing.assert_allclose(reward.terms(SMILES)["seh_proxy"], theirs.numpy(), atol=1e-5)
