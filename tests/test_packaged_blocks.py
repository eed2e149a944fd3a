"""Blocks that come with packages: read without importing them, and from pickles without running what is in them."""

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem

from envs.synthesis import libraries
from envs.synthesis.blocks import BlockError, Record, clean
from envs.synthesis.libraries import library

Package = Callable[[str, dict[str, bytes]], Path]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package of some name with some data files, found before an installed one; it cannot be imported."""

    def make(name: str, files: dict[str, bytes]) -> Path:
        place = tmp_path / "packages" / name
        for file, content in {"__init__.py": b"raise ImportError('imported')", **files}.items():
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_bytes(content)
        monkeypatch.syspath_prepend(str(place.parent))
        return place

    return make


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "fgfn").iterdir())


def pickled(content: Any) -> bytes:
    return bz2.compress(pickle.dumps(content))


class Molecule:
    """Pickled as RDKit pickled molecules when the file of synspace was made."""

    def __init__(self, text: str):
        self.reduced = Chem.Mol, (Chem.MolFromSmiles(text).ToBinary(),)

    def __reduce__(self) -> Any:
        return self.reduced


def molecules(*texts: str) -> list[Molecule]:
    return [Molecule(text) for text in texts]


def test_pickles_are_converted_once_and_nothing_is_imported(
    tmp_path: Path, package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = pickled({"one": [molecules("CCO", "CCN"), molecules("CCN")], "two": [molecules("CCCN", "OCC")]})
    package("synspace", {"rxn_data/blocks.pk.bz2": content})
    made = library("synspace")
    assert [(b.smiles, b.id) for b in made.blocks] == [
        ("CCCN", "synspace-3"),
        ("CCN", "synspace-2"),
        ("CCO", "synspace-1"),
    ]
    converted = next(path for path in cached(tmp_path) if path.name.startswith("synspace"))
    assert gzip.decompress(converted.read_bytes()).decode().splitlines()[1:] == [
        "CCO synspace-1",
        "CCN synspace-2",
        "CCCN synspace-3",
    ]
    assert "synspace" not in sys.modules
    with monkeypatch.context() as patch:
        patch.setattr(libraries, "_OnlyMolecules", None)
        assert len(library("synspace", stereo=True)) == 3, "cleaned otherwise, and yet not unpickled again"
    converted.write_bytes(converted.read_bytes()[:-3])
    with pytest.warns(UserWarning, match="making this file of the cache anew"):
        assert len(library("synspace", max_atoms=20)) == 3


class Hostile:
    """Calls something with something when unpickled."""

    def __init__(self, call: Callable[..., Any], *arguments: Any):
        self.reduced = call, arguments

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    "hostile",
    [
        Hostile(os.mkdir, "HERE"),
        {"a": [[Hostile(os.mkdir, "HERE")]]},
        Hostile(eval, "__import__('os').mkdir('HERE')"),
        Hostile(getattr, Chem.Mol, "__class__"),
        Hostile(Chem.Atom, 6),
        {"a": [[Chem.Mol, Chem.Bond]]},
    ],
)
def test_hostile_pickles_run_nothing(
    tmp_path: Path, package: Package, monkeypatch: pytest.MonkeyPatch, hostile: object
) -> None:
    monkeypatch.chdir(tmp_path)
    package("synspace", {"rxn_data/blocks.pk.bz2": pickled(hostile)})
    with pytest.raises(BlockError, match=r"it asks for .*, and only molecules are expected"):
        library("synspace")
    assert not (tmp_path / "HERE").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"rubbish",
        bz2.compress(b"rubbish"),
        pickled([1, 2]),
        pickled({"a": [[b"no molecule"]]}),
        pickled({"a": [["CCO"]]}),
    ],
)
def test_pickles_of_other_things_are_refused(package: Package, content: bytes) -> None:
    package("synspace", {"rxn_data/blocks.pk.bz2": content})
    with pytest.raises(BlockError, match=r"blocks\.pk\.bz2: is no file of molecules as synspace 1\.0\.0 has it"):
        library("synspace")


def test_packages_that_are_missing_or_different(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    package("synspace", {})
    with pytest.raises(BlockError, match=r"lacks the file, so it is another release: pip install 'fgfn\[blocks\]'"):
        library("synspace")

    def nothing(_: str) -> None:
        return None

    monkeypatch.setattr(libraries, "find_spec", nothing)
    for name in ("synspace", "chemicals"):
        with pytest.raises(BlockError, match=rf"needs the package {name}: pip install 'fgfn\[blocks\]'"):
            library(name)
    assert library("all") == library("nci")


def test_all_that_is_installed(package: Package) -> None:
    package("synspace", {"rxn_data/blocks.pk.bz2": pickled({"a": [molecules("CCO", "C1CC1N")]})})
    row = "702\t64-17-5\tC2H6O\t46.07\tCCO\tC2H6O/x\tKEY\tethanol\n"
    package(
        "chemicals",
        {f"Identifiers/chemical identifiers pubchem {part}.tsv": row.encode() for part in ("small", "large")},
    )
    made = library("all")
    assert made.name == "chemicals+synspace+nci"
    ethanol = next(block for block in made.blocks if block.smiles == "CCO")
    assert (ethanol.id, ethanol.source, ethanol.cas) == ("CID702", "chemicals", "64-17-5")
    assert [r.source for r in made.rejections[:2]] == ["chemicals", "synspace"]
    assert all("duplicate of CID702 (chemicals)" in r.reason for r in made.rejections[:2])
    assert {block.source for block in made.blocks} == {"chemicals", "synspace", "nci"}
    assert "chemicals" not in sys.modules


@pytest.mark.slow
def test_purchasable_blocks_of_synspace(tmp_path: Path) -> None:
    (source,) = libraries._sources("synspace", tmp_path)  # pyright: ignore[reportPrivateUsage]
    records = list(source.read())
    assert len(records) == len({record.smiles for record in records}) == 77_778
    made = clean(islice(records, 0, None, 100))
    assert len(made) + len(made.rejections) == 778
    assert len(made) > 760
    assert "synspace" not in sys.modules


def test_compounds_of_chemicals(tmp_path: Path) -> None:
    (source,) = libraries._sources("chemicals", tmp_path)  # pyright: ignore[reportPrivateUsage]
    records = list(source.read())
    assert len(records) == 73_162
    assert sum(record.cas is None for record in records) == 0
    known = {record.id: (record.smiles, record.cas) for record in records}
    assert known["CID702"] == ("CCO", "64-17-5")
    made = clean(islice(records, 0, None, 100))
    assert 400 < len(made) < 732 == len(made) + len(made.rejections)
    assert "chemicals" not in sys.modules


@pytest.mark.full
def test_whole_libraries(tmp_path: Path) -> None:
    cold = library("all")
    assert 125_000 < len(cold) < 140_000
    assert library("all") == cold
    assert sum(block.cas is not None for block in cold.blocks) > 50_000
    apart = [library(name) for name in ("chemicals", "synspace", "nci")]
    assert {b.smiles for b in cold.blocks} == {b.smiles for part in apart for b in part.blocks}
    sizes = [{b.smiles for b in library("synspace", size).blocks} for size in (1000, 5000, 20_000)]
    assert [len(some) for some in sizes] == [1000, 5000, 20_000]
    assert sizes[0] < sizes[1] < sizes[2]
    again = clean([Record(1, block.smiles, block.smiles, block.id, block.source) for block in cold.blocks], strict=True)
    assert again.digest == cold.digest
    assert again.rejections == ()
