"""Promise 9: damaged data are rejected at construction, by file and line, or counted; they never crash the reader."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rdkit import RDLogger

from envs.synthesis.blocks import BlockError, clean
from envs.synthesis.catalogues import read
from envs.synthesis.templates import OWN, TemplateError, load
from envs.tokens.sources import jsonl

SMILES = ["CCO", "c1ccccc1N", "CC(=O)O", "NCCN", "OB(O)c1ccccc1", "O=C=Nc1ccccc1", "CCO", "C1CC", "xyz", "[Na+].[Cl-]"]
TABLE = "smiles,id,price\r\n" + "".join(f'"{s}",name {i},{i}.5\r\n' for i, s in enumerate(SMILES))
LIST = "".join(f"{s} name-{i}\n" for i, s in enumerate(SMILES))
PROMPTS = "".join(json.dumps({"prompt": f"{i} + ü =", "answer": str(i)}, ensure_ascii=False) + "\n" for i in range(8))
TEMPLATES = yaml.safe_dump(yaml.safe_load((OWN / "acylations.yaml").read_text(encoding="utf-8"))[:2])
FILES: dict[str, tuple[bytes, Callable[[Path], Any], type[Exception]]] = {
    "blocks.smi": (LIST.encode(), lambda path: clean(read(path)), BlockError),
    "blocks.csv": (TABLE.encode("utf-8-sig"), lambda path: clean(read(path)), BlockError),
    "blocks.csv.gz": (gzip.compress(TABLE.encode(), mtime=0), lambda path: clean(read(path)), BlockError),
    "templates.yaml": (TEMPLATES.encode(), load, TemplateError),
    "prompts.jsonl": (PROMPTS.encode(), jsonl, ValueError),
}


def damaged(data: bytes, count: int) -> Iterator[bytes]:
    """Bits flipped, ends cut off, pieces lost, doubled, overwritten; other encodings, line ends and packing."""
    chance = random.Random(0)
    yield from (b"", b"\n\n", b"\0" * 100, b"\xef\xbb\xbf", gzip.compress(data), data.replace(b"\n", b"\r\n"))
    yield from (b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r"), b"\xff\xfe" + data, chance.randbytes(500))
    yield data.decode("utf-8", "replace").encode("utf-16")
    yield data.decode("utf-8", "replace").encode("latin-1", "replace")
    for _ in range(count):
        start = chance.randrange(len(data))
        stop = min(len(data), start + chance.randrange(1, 60))
        bit = bytearray(data)
        bit[start] ^= 1 << chance.randrange(8)
        junk = chance.choice(['"', "'", "{", "[", "\0", "\t", ",", "é", "&a", "*a", "!!x", "#", ">>", ".", "%", "\x85"])
        yield from (bytes(bit), data[:start], data[:start] + data[stop:], data[:stop] + data[start:])
        yield data[:start] + chance.randbytes(stop - start) + data[stop:]
        yield data[:start] + junk.encode() + data[start:]


@pytest.mark.parametrize("count", [8, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_read(name: str, count: int, tmp_path: Path) -> None:
    data, reader, refusal = FILES[name]
    path = tmp_path / name
    path.write_bytes(data)
    assert reader(path), "the sound file is read"
    refused = read_all = 0
    RDLogger.DisableLog("rdApp.*")
    for content in damaged(data, count):
        path.write_bytes(content)
        message = None
        try:
            reader(path)
            read_all += 1
        except refusal as error:
            message = str(error)
        if message is not None:
            assert name in message, f"{content!r}: {message}"
            refused += 1
    RDLogger.EnableLog("rdApp.*")
    print(f"{name}: {refused} damaged files refused by name, {read_all} read in what is sound of them")
    assert refused > 0


def test_what_is_left_out_is_counted_and_strictness_refuses_it(tmp_path: Path) -> None:
    path = tmp_path / "blocks.csv"
    path.write_bytes(FILES["blocks.csv"][0])
    library = clean(read(path))
    assert len(library) + len(library.rejections) == len(SMILES), "each of them is used or told of"
    assert {rejection.line for rejection in library.rejections} == {8, 9, 10, 11}
    with pytest.raises(BlockError, match=r"line 9.*C1CC[\s\S]*line 10.*xyz"):
        clean(read(path), strict=True)


def test_tokens_that_no_vocabulary_has_are_told(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "1", "answer": "1"}\n{"prompt": "", "answer": "2"}\n')
    with pytest.raises(ValueError, match=r"prompts\.jsonl: line 2: prompt is blank"):
        jsonl(path)
