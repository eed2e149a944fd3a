"""Building blocks: what cleaning keeps, what it rejects where that stood, and choices among blocks."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rdkit import Chem

from envs.synthesis.blocks import COMPANIONS, Block, BlockError, Library, Record, clean
from envs.synthesis.catalogues import lines, smiles_lines
from envs.synthesis.libraries import NCI


def records(*texts: str) -> list[Record]:
    return [Record(number, text, text, f"id{number}", "here") for number, text in enumerate(texts, 1)]


def nci(count: int | None = None) -> Iterator[Record]:
    return islice(smiles_lines(lines(NCI), "nci"), count)


@pytest.mark.parametrize(
    ("written", "cleaned"),
    [
        ("OCC", "CCO"),
        (" OCC ", "CCO"),
        ("C1=CC=CC=C1", "c1ccccc1"),
        ("CC(=O)[O-].[Na+]", "CC(=O)O"),
        ("CCN.Cl", "CCN"),
        ("CC[NH3+].[Cl-]", "CCN"),
        ("[NH3+]CC([O-])=O", "NCC(=O)O"),
        ("CCCC.CCC", "CCCC"),  # of mixtures the larger
        ("CN.OC(=O)C(F)(F)F", "CN"),  # of salts what is not the usual acid, however charges are drawn
        ("C[NH3+].[O-]C(=O)C(F)(F)F", "CN"),
        ("CN.[O-]C(=O)C(=O)[O-].C[NH3+]", "CN"),
        ("CC(C)(C)OC(=O)NCC(=O)O.C1CCC(CC1)NC1CCCCC1", "CC(C)(C)OC(=O)NCC(=O)O"),
        ("O=C(O)/C=C/C(=O)O.CN.O", "CN"),
        ("O=C(O)C(F)(F)F", "O=C(O)C(F)(F)F"),
        ("O=C(O)C(F)(F)F.CC(=O)O", "O=C(O)C(F)(F)F"),
        ("CC.[O-][Si]([O-])([O-])[O-].[Na+].[Na+].[Na+].[Na+]", "CC"),
        ("C[N+](=O)[O-]", "C[N+](=O)[O-]"),
        ("CN=[N+]=[N-]", "CN=[N+]=[N-]"),
        ("[C-]#[N+]C", "[C-]#[N+]C"),
        ("C[n+]1ccc(C(=O)[O-])cc1", "C[n+]1ccc(C(=O)[O-])cc1"),  # neutral as a whole
        ("[CH3:1][OH:2]", "CO"),
        ("C[C@H](N)C(=O)O", "CC(N)C(=O)O"),
        ("C/C=C/Br", "CC=CBr"),
        ("OB(O)c1ccccc1", "OB(O)c1ccccc1"),
        ("C[Si](C)(C)C#C", "C#C[Si](C)(C)C"),
        ("[H]C([H])=O", "C=O"),
    ],
)
def test_cleaning_by_hand(written: str, cleaned: str) -> None:
    library = clean(records(written))
    assert library.blocks == (Block(cleaned, "id1", "here"),)
    assert library.rejections == ()


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("C(C", "is no SMILES"),
        ("CCO ethanol", "is no SMILES"),
        ("C>>C", "is no SMILES"),
        ("C\0C", "other than printable ASCII"),
        ("Cµ", "other than printable ASCII"),
        ("(" * 100_000, "is no SMILES"),
        ("C[CH](F)(F)(F)F", "is no molecule: Explicit valence for atom # 1 C"),
        ("c1cccc1", "is no molecule: Can't kekulize"),
        ("C[Mg]Br", "contains Mg; blocks are made of"),
        ("CC[Sn](C)(C)C", "contains Sn"),
        ("*CC", r"contains \*"),
        ("O", "contains no carbon"),
        ("[Na+].[Cl-]", "contains"),
        ("[2H]C([2H])([2H])O", "contains an isotope"),
        ("[13CH3]O", "contains an isotope"),
        ("C[CH2]", "is a radical"),
        ("C[N+](C)(C)C.[Br-]", r"has a charge of \+1 that protons cannot balance"),
        ("CC[CH2+]", r"has a charge of \+1"),
        ("c1ccccc1[B-](F)(F)F.[K+]", "has a charge of -1"),
        ("C", "has 1 heavy atoms; expected 2 to 30"),
        ("C" * 31, "has 31 heavy atoms; expected 2 to 30"),
    ],
)
def test_what_is_no_block_is_rejected_with_its_line(written: str, reason: str) -> None:
    library = clean(records("CCO", written, "CCN"))
    assert [block.smiles for block in library.blocks] == ["CCN", "CCO"]
    (rejection,) = library.rejections
    assert (rejection.line, rejection.text, rejection.source) == (2, written, "here")
    with pytest.raises(BlockError, match=f"(?s)line 2: .*{reason}"):
        clean(records("CCO", written), strict=True)


def test_limits_of_size() -> None:
    library = clean(records(*("C" * n for n in range(1, 9))), min_atoms=3, max_atoms=5)
    assert [block.smiles for block in library.blocks] == ["CCC", "CCCC", "CCCCC"]
    assert [rejection.line for rejection in library.rejections] == [1, 2, 6, 7, 8]
    with pytest.raises(ValueError, match="got min_atoms=4 max_atoms=3"):
        clean(records("CC"), min_atoms=4, max_atoms=3)


def test_companions_are_written_as_cleaning_writes_them() -> None:
    library = clean(records(*sorted(COMPANIONS)))
    assert {block.smiles for block in library.blocks} == COMPANIONS


def test_the_first_of_duplicates_stays(tmp_path: Path) -> None:
    texts = ("OCC", "CCN", "C(O)C", "CC[O-].[Na+]", "C[C@H](F)Cl", "C[C@@H](F)Cl", "C[Li]")
    library = clean(records(*texts), name="mine")
    assert [(block.smiles, block.id) for block in library.blocks] == [
        ("CC(F)Cl", "id5"),
        ("CCN", "id2"),
        ("CCO", "id1"),
    ]
    assert [(r.line, r.reason.split(";")[0]) for r in library.rejections] == [
        (3, "is a duplicate of id1 (here)"),
        (4, "is a duplicate of id1 (here)"),
        (6, "is a duplicate of id5 (here)"),
        (7, "contains Li"),
    ]
    library.write_report(tmp_path / "rejections.csv")
    text = (tmp_path / "rejections.csv").read_bytes().decode()
    assert "\r" not in text
    rows = list(csv.DictReader(StringIO(text)))
    assert [(row["source"], int(row["line"]), row["text"]) for row in rows[:2]] == [
        ("here", 3, "C(O)C"),
        ("here", 4, texts[3]),
    ]
    with pytest.raises(BlockError, match=r"mine: 1 that cannot be used:\n  here, line 7"):
        clean(records(*texts), name="mine", strict=True)
    both = clean(records(*texts[:6]), stereo=True, strict=True)
    assert {block.smiles for block in both.blocks} >= {"C[C@H](F)Cl", "C[C@@H](F)Cl"}, "duplicates are no error"


def test_an_error_lists_the_first_twenty_of_all() -> None:
    with pytest.raises(BlockError) as caught:
        clean(records(*["C(" * 60] * 23), strict=True)
    message = str(caught.value).splitlines()
    assert message[0] == "blocks: 23 that cannot be used:"
    assert len(message) == 22
    assert message[-1].strip() == "and 3 more"
    assert len(message[1]) < 120, "long lines are cut"


@pytest.mark.parametrize(("stereo", "count"), [(False, 4999), (True, 1500)])
def test_cleaning_what_is_clean_changes_nothing(stereo: bool, count: int) -> None:
    once = clean(nci(count), stereo=stereo)
    assert 0.85 * count < len(once) < count
    again = clean([Record(1, b.smiles, b.smiles, b.id, b.source) for b in once.blocks], stereo=stereo)
    assert again == Library(once.name, once.blocks)
    assert all(Chem.MolToSmiles(Chem.MolFromSmiles(b.smiles)) == b.smiles for b in once.blocks)


def test_the_order_of_atoms_and_fragments_changes_nothing() -> None:
    draw = random.Random(0)
    originals = list(nci(300))
    expected = clean(originals)

    def shuffled(smiles: str) -> str:
        parts = smiles.split(".")
        draw.shuffle(parts)
        mol: Any = Chem.MolFromSmiles(".".join(parts))
        order = list(range(mol.GetNumAtoms()))
        draw.shuffle(order)
        return Chem.MolToSmiles(Chem.RenumberAtoms(mol, order), canonical=False)

    for _ in range(3):
        written = [shuffled(record.smiles) for record in originals]
        assert sum(a != b.smiles for a, b in zip(written, originals, strict=True)) > 280
        texts = [Record(r.line, s, s, r.id, r.source) for r, s in zip(originals, written, strict=True)]
        assert clean(texts).blocks == expected.blocks


def test_digest_and_subsets_depend_on_the_blocks_alone() -> None:
    library = clean(nci(600))
    backwards = clean(reversed(list(nci(600))), name="other")
    assert library.digest == backwards.digest
    assert len({library.subset(n).digest for n in (10, 50, 100)} | {library.digest}) == 4
    few, more = library.subset(50, seed=3), library.subset(200, seed=3)
    assert (len(few), len(more)) == (50, 200)
    assert set(few.blocks) < set(more.blocks) < set(library.blocks)
    assert [b.smiles for b in few.blocks] == sorted(b.smiles for b in few.blocks)
    assert few != library.subset(50, seed=4)
    assert library.subset(10**6) == library
    without = Library("less", tuple(b for b in library.blocks if b not in few.blocks[:5]))
    assert set(few.blocks[5:]) < set(without.subset(50, seed=3).blocks)
    inside = sum(b in library.blocks[: len(library) // 2] for b in more.blocks)
    assert 70 <= inside <= 130, "drawn evenly: half of 200, give or take 4 standard deviations"
