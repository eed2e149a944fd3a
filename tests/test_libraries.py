"""Libraries of building blocks: files, lists and the set of RDKit; choices by size; and a cache that may be damaged."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from envs.synthesis import libraries
from envs.synthesis.blocks import BlockError
from envs.synthesis.libraries import library, load, store
from gfn.storage import cache_directory

SOME = ["CCO", "CCN.Cl", "c1ccccc1Br", "OB(O)c1ccccc1", "C[N+](C)(C)C", "OCC", "NCC(=O)O", "CC#N"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "fgfn").iterdir())


def smiles(blocks: Any, **options: Any) -> list[str]:
    return [block.smiles for block in library(blocks, **options).blocks]


def test_a_list() -> None:
    made = library(SOME)
    assert smiles(SOME) == ["Brc1ccccc1", "CC#N", "CCN", "CCO", "NCC(=O)O", "OB(O)c1ccccc1"]
    assert {block.smiles: block.id for block in made.blocks}["CCN"] == "list:2"
    assert [(r.line, r.text) for r in made.rejections] == [(5, "C[N+](C)(C)C"), (6, "OCC")]
    assert library(tuple(SOME)) == made == library(SOME)
    with pytest.raises(BlockError, match=r"(?s)list: 1 that cannot be used.*line 5: .*charge of \+1"):
        library(SOME, strict=True)
    with pytest.raises(BlockError, match="line 2: '7' is no text but int"):
        library(["CCO", 7], strict=True)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BlockError, match=r"(?s)list: 2 that cannot be used.*line 1: 'C' has 1 heavy atoms"):
        library(["C", "O"])
    with pytest.raises(BlockError, match="list: there is no molecule in it"):
        library([])


def test_options_are_part_of_what_the_cache_goes_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ["C[C@H](F)CCCl", "C[C@@H](F)CCCl", "CCO"]
    assert smiles(both) == ["CC(F)CCCl", "CCO"]
    assert len(smiles(both, stereo=True)) == 3
    assert smiles(both, max_atoms=3) == ["CCO"]
    assert smiles(both[1:]) == ["CC(F)CCCl", "CCO"]
    assert len(cached(tmp_path)) == 4
    monkeypatch.setattr(libraries.rdBase, "rdkitVersion", "another")
    assert smiles(both) == ["CC(F)CCCl", "CCO"]
    assert len(cached(tmp_path)) == 5


def test_the_set_of_rdkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made = library("nci")
    assert 4000 < len(made) < 4999
    assert len(made) + len(made.rejections) == 4999
    assert made.name == "nci"
    assert capsys.readouterr() == ("", ""), "no bar and no messages of RDKit where there is no terminal"
    assert [len(list(place.iterdir())) for place in [tmp_path / "cache", tmp_path / "cache" / "fgfn"]] == [1, 1]

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("cleaned again")

    monkeypatch.setattr(libraries, "clean", fail)
    assert library("nci") == made
    sizes = [library("nci", size) for size in (10, 100, 1000)]
    assert [len(some) for some in sizes] == [10, 100, 1000]
    assert set(sizes[0].blocks) < set(sizes[1].blocks) < set(sizes[2].blocks) < set(made.blocks)
    assert library("nci", 10, seed=1).digest != sizes[0].digest
    with pytest.warns(UserWarning, match=f"nci has {len(made)} blocks that can be used, not 5000: taking them all"):
        assert library("nci", 5000) == made
    with pytest.raises(ValueError, match="size must be at least 1, or null for all, got 0"):
        library("nci", 0)


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    library(SOME)
    assert "cleaning list" in terminal.getvalue()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("smiles,id,price\nCCO,a,1\nCCN,b,2\nC[Li],c,3\n")
    made = library(file)
    assert [(b.smiles, b.id, b.source, b.price) for b in made.blocks] == [
        ("CCN", "b", "mine.csv", 2.0),
        ("CCO", "a", "mine.csv", 1.0),
    ]
    assert (made.name, made.rejections[0].line) == ("mine.csv", 4)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert library(str(file)) == made == library("~/mine.csv")
    file.write_text("smiles,id,price\nCCO,a,1\nCCN,b,5\n")
    assert library(file).blocks[0].price == 5.0, "a changed file is read again"
    for empty in ("", "\n\n", "smiles,id\n", "# nothing\n"):
        file.write_text(empty)
        with pytest.raises(BlockError, match=r"mine\.csv: there is no molecule in it"):
            library(file)
    with pytest.raises(
        BlockError, match=r"CCO: there is no such file .*chemicals, nci, synspace, all, or a list of SMILES"
    ):
        library("CCO")
    with pytest.raises(BlockError, match="there is no such file"):
        library(tmp_path)


def test_hashes_of_the_interpreter_change_nothing() -> None:
    program = (
        "from envs.synthesis.libraries import library;"
        "made = library(['C' * n + x for n in range(2, 20) for x in 'NOBCS'], 20);"
        "print(made.digest, [(block.smiles, block.id) for block in made.blocks])"
    )

    def printed(seed: str, cache: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"] + cache}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert len(printed("1", "1").split()) == 41
    assert printed("1", "1") == printed("2", "1") == printed("3", "2")


def damaged(whole: bytes) -> Sequence[bytes]:
    body = gzip.decompress(whole)
    return (
        b"",
        b"rubbish",
        whole[: len(whole) // 2],
        whole[:-1],
        whole[:30] + bytes([whole[30] ^ 1]) + whole[31:],
        gzip.compress(body[:-10]),
        gzip.compress(body.replace(b"CCO", b"CCS")),
    )


def test_a_damaged_cache_is_made_anew(tmp_path: Path) -> None:
    made = library(SOME)
    (file,) = cached(tmp_path)
    whole = file.read_bytes()
    for content in damaged(whole):
        file.write_bytes(content)
        with pytest.warns(UserWarning, match="making this file of the cache anew"):
            assert library(SOME) == made
        assert file.read_bytes() == whole
    assert cached(tmp_path) == [file], "no part files are left"


def test_a_cache_that_cannot_be_written_only_warns(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="cannot keep building blocks there") as caught:
        made = library(SOME, cache=tmp_path / "file" / "cache")
    assert len(caught) == 1
    assert made == library(SOME)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    with pytest.warns(UserWarning, match="cannot keep"):
        store(occupied, "text")
    assert not list(tmp_path.glob("*.part"))


def test_the_place_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(SOME, cache=tmp_path / "chosen")
    assert len(list((tmp_path / "chosen").iterdir())) == 1
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("", "some/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache_directory() == tmp_path / "home" / ".cache" / "fgfn"


def test_what_is_stored_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.gz"
    assert load(path) is None
    store(path, "één\ntwo\n")
    assert load(path) == "één\ntwo\n"
    assert gzip.decompress(path.read_bytes()).decode().splitlines()[1:] == ["één", "two"]
