"""Catalogues of building blocks: every format, however it is encoded and its columns are named, and damaged ones."""

from __future__ import annotations

import csv
import gzip
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem

from envs.synthesis.blocks import BlockError, Record, clean
from envs.synthesis.catalogues import cas_number, price, read

TABLE = (
    'Structure,Name,Catalog ID,CAS No.,Price (USD)\nCCO,ethanol,E-1,64-17-5,"1,234.50"\nCCN,"amine, ethyl",E-2,,n/a\n'
)
FROM_TABLE = [
    Record(2, "", "CCO", "E-1", "a", "64-17-5", 1234.5),
    Record(3, "", "CCN", "E-2", "a", None, None),
]
SMILES = "smiles\tid\n\n# a comment\nCCO E-1\nCCN\n"


def read_bytes(folder: Path, name: str, content: bytes) -> list[Record]:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    return list(read(path))


def core(found: list[Record]) -> list[tuple[Any, ...]]:
    return [(r.line, r.smiles, r.id, r.cas, r.price, r.problem) for r in found]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "A.CSV", "a.csv.gz", "a.tsv.GZ"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("parted", [",", ";", "\t"])
def test_tables(tmp_path: Path, name: str, end: str, mark: str, parted: str) -> None:
    with StringIO(newline="") as buffer:
        csv.writer(buffer, delimiter=parted, lineterminator=end).writerows(csv.reader(StringIO(TABLE)))
        content = mark + buffer.getvalue()
    found = read_bytes(tmp_path, name, content.encode())
    assert core(found) == core(FROM_TABLE)
    assert {record.source for record in found} == {name}


@pytest.mark.parametrize("name", ["a.smi", "a.txt", "a.smiles.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_smiles_files(tmp_path: Path, name: str, end: str) -> None:
    found = read_bytes(tmp_path, name, ("\ufeff" + SMILES.replace("\n", end)).encode())
    assert core(found) == [(4, "CCO", "E-1", None, None, ""), (5, "CCN", f"{name}:5", None, None, "")]
    headless = read_bytes(tmp_path, name, b"\xef\xbb\xbfCCO |t:1,r| Z1 more\nsmiles\nC(\n")
    assert [(r.line, r.smiles, r.id) for r in headless] == [
        (1, "CCO", "Z1"),
        (2, "smiles", f"{name}:2"),
        (3, "C(", f"{name}:3"),
    ]
    assert [(r.line, r.reason) for r in clean(headless).rejections] == [(2, "is no SMILES"), (3, "is no SMILES")]


def sd_text() -> str:
    out = StringIO()
    writer = Chem.SDWriter(out)
    for smiles, title, fields in (
        ("C[C@H](N)C(=O)O", "alanine", {"Catalog_ID": "A-1", "CAS": "56-41-7", "Price_EUR_1g": "12,50 €"}),
        ("c1ccccc1.Cl", "benzene", {}),
        ("CC#N", "", {"note": "two\nlines"}),
    ):
        mol: Any = Chem.MolFromSmiles(smiles)
        mol.SetProp("_Name", title)
        for key, value in fields.items():
            mol.SetProp(key, value)
        writer.write(mol)
    writer.close()
    return out.getvalue()


@pytest.mark.parametrize("name", ["a.sdf", "a.sd.gz"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_sd_files(tmp_path: Path, name: str, end: str) -> None:
    text = sd_text()
    starts = [1, *(i + 2 for i, line in enumerate(text.splitlines()) if line == "$$$$")]
    found = read_bytes(tmp_path, name, text.replace("\n", end).encode())
    assert [(r.line, r.id, r.cas, r.price) for r in found] == [
        (1, "A-1", "56-41-7", 12.5),
        (starts[1], "benzene", None, None),
        (starts[2], f"{name}:{starts[2]}", None, None),
    ]
    assert [b.smiles for b in clean(found, stereo=True).blocks] == ["CC#N", "C[C@H](N)C(=O)O", "c1ccccc1"]


def test_damaged_records_of_sd_files(tmp_path: Path) -> None:
    first, second, third = sd_text().split("$$$$\n")[:3]
    broken = second.replace("  2  3  2  0", "  2 99  2  0")
    assert broken != second
    pentavalent = Chem.MolToMolBlock(Chem.MolFromSmiles("CC(C)(C)(C)C", sanitize=False), kekulize=False)
    content = "$$$$\n".join([first, broken, third.split("M  END")[0] + "\n", pentavalent, "", third])
    found = read_bytes(tmp_path, "a.sdf", content.encode())
    library = clean(found)
    assert [b.smiles for b in library.blocks] == ["CC#N", "CC(N)C(=O)O"]
    reasons = [r.reason for r in library.rejections]
    assert [r.line for r in library.rejections] == [r.line for r in found[1:5]]
    assert reasons[0] == "is no MOL block"
    assert reasons[1].startswith("has no 'M  END'")
    assert reasons[2].startswith("is no molecule: Explicit valence for atom # 1 C, 5")
    assert reasons[3].startswith("has no 'M  END'")
    (single,) = read_bytes(tmp_path, "a.mol", Chem.MolToMolBlock(Chem.MolFromSmiles("CCO")).encode())
    assert single.smiles == "CCO"


def test_rows_that_do_not_fit_their_header(tmp_path: Path) -> None:
    rows = [
        b"# exported",
        b"id,smiles,cas",
        b"1,CCO,64-17-5,,",
        b"2,CCN,x,y",
        b"",
        b"3",
        b'"4',
        b'more",CCC',
        b",,",
        b"caf\xe9,CCS",
    ]
    found = read_bytes(tmp_path, "a.csv", b"\n".join(rows))
    assert [(r.line, r.id, r.smiles) for r in found] == [
        (3, "1", "CCO"),
        (4, "2", "CCN"),
        (6, "3", ""),
        (7, "4\nmore", "CCC"),
        (10, "café", "CCS"),
    ]
    library = clean(found)
    assert [(r.line, r.reason.split(":")[0]) for r in library.rejections] == [
        (4, "has 4 fields, and the header 3"),
        (6, "is empty"),
    ]
    assert len(library) == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"name;cas\nx;y\n", r"a.csv, line 1: expected a header with a column named smiles .*found name, cas"),
        ("a.csv", b"\nCCO,1\nCCN,2\n", r"a.csv, line 2: .*found CCO, 1"),
        ("a.csv", b'smiles,id\nCCO,1\nCCN,"open\nCCC,3\n', r"a.csv, line 3: .*are all quotation marks closed"),
        ("a.csv", b'smiles,id\nCCO,"2"-ol\n', r"a.csv, line 2: .*quotation marks"),
        ("a.xlsx", b"PK", "expected a name that ends in .smi"),
        ("noname", b"C", "expected a name that ends in .smi"),
        ("a.gz", b"C", "expected a name that ends in .smi"),
        ("a.smi", "CCO\nCCN".encode("utf-16"), "line 1: has a null character; save the file as UTF-8 text"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(BlockError, match=f"(?s){message}"):
        read_bytes(tmp_path, name, content)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BlockError, match=r"none\.smi: there is no such file"):
        list(read(tmp_path / "none.smi"))
    whole = gzip.compress(b"CCO 1\n" * 1000)
    flipped = whole[:20] + bytes([whole[20] ^ 255]) + whole[21:]
    for content in (b"CCO 1\n", whole[:-12], flipped):
        (tmp_path / "a.smi.gz").write_bytes(content)
        with pytest.raises(BlockError, match=r"a\.smi\.gz: cannot be unpacked"):
            list(read(tmp_path / "a.smi.gz"))


def test_columns_go_by_many_names(tmp_path: Path) -> None:
    def fields(header: str, row: str) -> tuple[str, str, str | None, float | None]:
        (record,) = read_bytes(tmp_path, "a.csv", f"{header}\n{row}\n".encode())
        return record.smiles, record.id, record.cas, record.price

    assert fields("mol,Canonical_SMILES", "x,CCO") == ("CCO", "a.csv:2", None, None)
    assert fields("Name,ID,SMILES", "ethanol,7,CCO") == ("CCO", "7", None, None)
    assert fields("compound name,cxsmiles", "ethanol,CCO |r|") == ("CCO", "ethanol", None, None)
    assert fields("SMILES_isomeric,catalogue number,CAS-RN,cost", "CCO,Z1,64-17-5,3") == ("CCO", "Z1", "64-17-5", 3.0)
    assert fields("smiles,SMILES,zinc_id,unit price", "CCO,CCN,ZINC1,$5") == ("CCO", "ZINC1", None, 5.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12.0),
        ("$1,234.50", 1234.5),
        ("€ 1.234,50", 1234.5),
        ("1 234,5 EUR", 1234.5),
        ("1\u202f234", 1234.0),
        ("CHF 1'234.50", 1234.5),
        ("1,234,567", 1234567.0),
        ("1.234.567", 1234567.0),
        ("1,234", 1234.0),
        ("1.234", 1.234),
        ("12,5", 12.5),
        ("45 1g", 45.0),
        ("45.", 45.0),
        ("on request", None),
        ("", None),
    ],
)
def test_prices(text: str, number: float | None) -> None:
    assert price(text) == number


def test_cas_numbers() -> None:
    assert cas_number("CAS 64-17-5") == "64-17-5"
    assert cas_number("64-17-6, 7732-18-5") == "7732-18-5"
    assert cas_number("2099995000-00-0") is None
    assert cas_number("ethanol") is None
