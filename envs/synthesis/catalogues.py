"""Readers of molecule catalogues: SMILES files, CSV and TSV tables, SD files, each of them also gzipped.

Every reader yields a :class:`~envs.synthesis.blocks.Record` for each molecule, in the order of the file, and
leaves judging it to cleaning. Text is UTF-8 with or without a mark, bytes that are none are read as Latin-1,
and lines may end in any of the three ways.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from rdkit import Chem, rdBase

from envs.synthesis.blocks import BlockError, Record, complaints

# names that columns go by, in lower case with _ for all else than letters and digits; the first that fits
COLUMNS: dict[str, tuple[str, ...]] = {
    "smiles": (r"(canonical_|isomeric_)?smiles", r"\w*smiles|smi|(\w+_)?smiles_\w+", r"structure|molecule|mol"),
    "id": (r"id|(\w+_)?(id|idnumber|code)|cat(alog|alogue)?(_(no|nr|num|number))?", r"(\w+_)?name|title"),
    "cas": (r"cas(_\w+)?|casrn",),
    "price": (r"(\w+_)?price(_\w+)?", r"cost(_\w+)?"),
}
NUMBER = re.compile(r"\d+(?:[ ,.'\u00a0\u202f]\d{3})*(?:[.,]\d+)?")
CAS = re.compile(r"(\d{2,7})-(\d\d)-(\d)")
STRAY = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of bytes that are no UTF-8
EXTENSION = re.compile(r"\s\|[^|]*\|")  # of CXSMILES


def read(path: Path) -> Iterator[Record]:
    """The molecules of a file, whose format its name tells: see FORMATS, with or without ``.gz``.

    Raises:
        BlockError: if there is no such file, if its name tells no format, if it cannot be unpacked or is no
            text, or if it is a table without a column of SMILES.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = "".join(suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:])
    if not path.is_file():
        raise BlockError(f"{path}: there is no such file of building blocks")
    if suffix not in FORMATS:
        raise BlockError(f"{path}: expected a name that ends in {', '.join(FORMATS)}, or in one of these and .gz")
    return FORMATS[suffix](lines(path), path.name)


def lines(path: Path) -> Iterator[str]:
    """The lines of a text file, which may be gzipped, each with its end.

    Raises:
        BlockError: if it cannot be read, cannot be unpacked, or is no text.
    """
    unpack = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with unpack(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if "\0" in line:
                    raise BlockError(f"{path}, line {number}: has a null character; save the file as UTF-8 text")
                yield STRAY.sub(lambda stray: chr(ord(stray[0]) - 0xDC00), line)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BlockError(f"{path}: cannot be unpacked, so it is damaged or no gzip file: {error}") from error
    except OSError as error:
        raise BlockError(f"{path}: cannot be read: {error}") from error


def smiles_lines(text: Iterable[str], source: str) -> Iterator[Record]:
    """Lines of a SMILES and, after white space, perhaps an id; a header and comments (#) are passed over."""
    first = True
    for number, line in enumerate(text, 1):
        words = EXTENSION.sub("", line).split()
        if not words or words[0].startswith("#"):
            continue
        if not (first and _field_of("smiles", (_plain(words[0]),)) is not None):
            yield _record(number, line.strip(), source, {"smiles": words[0], "id": "".join(words[1:2])})
        first = False


def table(text: Iterable[str], source: str) -> Iterator[Record]:
    """Rows below a header that names a column of SMILES, parted by whichever of comma, tab and semicolon it uses."""
    kept = ("\n" if line.startswith("#") else line for line in text)
    head: list[str] = []
    for line in kept:
        head.append(line)
        if line.strip():
            break
    mark = max(",\t;", key=head[-1].count) if head else ","
    rows = csv.reader(chain(head, kept), delimiter=mark, strict=True)
    names: list[str] = []
    columns: Mapping[str, int] = {}
    start = 1
    try:
        for row in rows:
            filled = any(cell.strip() for cell in row)
            if filled and not names:
                names, columns = row, _columns(tuple(row))
                if "smiles" not in columns:
                    raise BlockError(f"{source}, line {start}: {_no_smiles(names)}")
            elif filled:
                yield _row(start, row, names, columns, source, mark)
            start = rows.line_num + 1
    except csv.Error as error:
        raise BlockError(
            f"{source}, line {start}: {error}; are all quotation marks closed, and doubled inside?"
        ) from error


def sd_file(text: Iterable[str], source: str) -> Iterator[Record]:
    """Records of an SD file, or the one of a MOL file, with their data fields; ``line`` is where a record starts."""
    start, record = 1, list[str]()
    for number, line in enumerate(text, 1):
        record.append(line.rstrip("\n"))
        if line.startswith("$$$$"):
            yield _sd_record(start, record[:-1], source)
            start, record = number + 1, []
    if any(line.strip() for line in record):
        yield _sd_record(start, record, source)


FORMATS: dict[str, Callable[[Iterable[str], str], Iterator[Record]]] = {
    **dict.fromkeys((".smi", ".smiles", ".cxsmiles", ".txt"), smiles_lines),
    **dict.fromkeys((".csv", ".tsv"), table),
    **dict.fromkeys((".sdf", ".sd", ".mol"), sd_file),
}


def price(text: str) -> float | None:
    """The first number of a text such as ``€ 1.234,50``, ``$1,234.50`` or ``12,5 EUR``; None if there is none.

    A comma before three digits parts thousands, and so does a point that is not the only one.
    """
    found = NUMBER.search(text)
    if not found:
        return None
    whole, mark, rest = re.findall(r"(.*?)(?:([.,])(\d+))?$", found[0])[0]
    if (mark == "," and len(rest) == 3 and "." not in whole) or (mark == "." and "." in whole):
        whole, rest = whole + rest, ""
    return float(f"{re.sub(r'[^0-9]', '', whole)}.{rest or 0}")


def cas_number(text: str) -> str | None:
    """The CAS registry number in a text; None if there is none, or if its check digit is wrong."""
    for found in CAS.finditer(text):
        digits = (found[1] + found[2])[::-1]
        if sum(place * int(digit) for place, digit in enumerate(digits, 1)) % 10 == int(found[3]):
            return found[0]
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _field_of(field: str, names: Sequence[str]) -> int | None:
    """Which of the plain names is a field's, the best of its patterns first."""
    fits = (i for pattern in COLUMNS[field] for i, name in enumerate(names) if re.fullmatch(pattern, name))
    return next(fits, None)


@lru_cache(maxsize=256)  # the records of an SD file name their fields each for themselves
def _columns(names: tuple[str, ...]) -> Mapping[str, int]:
    plain = [_plain(name) for name in names]
    places = {field: _field_of(field, plain) for field in COLUMNS}
    return {field: place for field, place in places.items() if place is not None}


def _no_smiles(names: Sequence[str]) -> str:
    return f"expected a header with a column named smiles (or canonical_smiles, structure); found {', '.join(names)}"


def _record(line: int, text: str, source: str, fields: Mapping[str, str], problem: str = "") -> Record:
    return Record(
        line,
        text,
        EXTENSION.sub("", fields.get("smiles", "")),
        fields.get("id", "").strip() or f"{source}:{line}",
        source,
        cas_number(fields.get("cas", "")),
        price(fields.get("price", "")),
        problem,
    )


def _row(
    line: int, row: Sequence[str], names: Sequence[str], columns: Mapping[str, int], source: str, mark: str
) -> Record:
    fields = {field: row[place] for field, place in columns.items() if place < len(row)}
    extra = any(cell.strip() for cell in row[len(names) :])
    problem = f"has {len(row)} fields, and the header {len(names)}: quote those with {mark!r}" if extra else ""
    return _record(line, mark.join(row), source, fields, problem)


def _sd_record(line: int, record: Sequence[str], source: str) -> Record:
    end = next((i for i, text in enumerate(record) if text.startswith("M  END")), None)
    title = record[0].strip() if record else ""
    if end is None:
        return _record(line, title, source, {"id": title}, "has no 'M  END': cut off, or no MOL block")
    values = _sd_fields(record[end + 1 :])
    names = tuple(values)
    fields = {"id": title, **{field: values[names[place]] for field, place in _columns(names).items()}}
    block = "\n".join(record[: end + 1])
    with rdBase.BlockLogs():
        mol: Any = Chem.MolFromMolBlock(block)
        raw: Any = Chem.MolFromMolBlock(block, sanitize=False) if mol is None else None
    if mol is not None:
        return _record(line, fields["id"] or title, source, {**fields, "smiles": Chem.MolToSmiles(mol)})
    problem = "is no MOL block" if raw is None else f"is no molecule: {complaints(raw)}"
    return _record(line, fields["id"] or title, source, fields, problem)


def _sd_fields(data: Sequence[str]) -> dict[str, str]:
    """Data fields: a line ``> <name>``, and lines of the value up to an empty one."""
    values: dict[str, str] = {}
    name = ""
    for line in data:
        header = re.match(r">.*<([^>]*)>", line)
        if header:
            name = header[1]
            values[name] = ""
        elif not line.strip():
            name = ""
        elif name:
            values[name] = f"{values[name]} {line}".strip()
    return values
