"""Files of reaction templates: what is read from them, and that everything wrong with them is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.synthesis.templates import OWN, TemplateError, load

GOOD: dict[str, Any] = {
    "name": "amide",
    "family": "acylation",
    "forward": "[C:1](=[O:2])[OX2;H1].[NX3;H2:3]>>[C:1](=[O:2])[N:3]",
    "retro": ["[C:1](=[O:2])-!@[NX3;H1:3]>>[C:1](=[O:2])O.[N:3]"],
    "reference": "any textbook",
}


def written(folder: Path, *entries: Any, name: str = "mine.yaml") -> Path:
    file = folder / name
    file.write_text(yaml.safe_dump(list(entries)), encoding="utf-8")
    return file


def test_a_template_as_read(tmp_path: Path) -> None:
    examples = [{"reactants": ["CC(=O)O", "CN"], "products": ["CNC(C)=O"]}]
    more = {"forbid": [["[NX3]", "S"], []], "examples": examples, "counterexamples": [["CC(=O)O", "CNC"]]}
    (template,) = load(written(tmp_path, {**GOOD, **more}))
    assert (template.name, template.family, template.n_slots) == ("amide", "acylation", 2)
    assert template.retro == tuple(GOOD["retro"])
    assert template.forbid == (("[NX3]", "S"), ())
    assert (template.examples[0].reactants, template.examples[0].products) == (("CC(=O)O", "CN"), ("CNC(C)=O",))
    assert template.counterexamples == (("CC(=O)O", "CNC"),)


def test_a_folder_and_names_to_take(tmp_path: Path) -> None:
    written(tmp_path, GOOD, {**GOOD, "name": "zeta"}, name="b.yaml")
    written(tmp_path, {**GOOD, "name": "beta"}, name="a.yaml")
    assert [template.name for template in load(tmp_path)] == ["amide", "beta", "zeta"]
    assert [template.name for template in load(tmp_path, only=["zeta", "amide"])] == ["amide", "zeta"]
    assert [template.name for template in load(OWN, only=["heck"])] == ["heck"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_files_of_other_systems(tmp_path: Path, encoding: str, newline: str) -> None:
    file = tmp_path / "mine.yaml"
    text = yaml.safe_dump([{**GOOD, "reference": "Müller"}], allow_unicode=True)
    file.write_text(text, encoding=encoding, newline=newline)
    (template,) = load(file)
    assert (template.forward, template.reference) == (GOOD["forward"], "Müller")


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"mechanism": "SN2", "yield": 1}, ["unknown field 'mechanism'; there are name, family", "field 'yield'"]),
        ({"reference": None, "family": 3}, ["family must be a text", "reference must be a text"]),
        ({"retro": "text", "forbid": 1}, ["retro must be a list", "forbid must be a list"]),
        ({"forward": "[C:1>>[C:1]"}, ["forward '[C:1>>[C:1]' does not parse"]),
        ({"forward": "nonsense"}, ["forward 'nonsense' does not parse"]),
        ({"forward": "[C:1].[N:2].[O:3]>>[C:1][N:2][O:3]"}, ["has 3 reactants, 1 products and 0 agents"]),
        ({"forward": "[C:1].[N:2]>[Pd]>[C:1][N:2]"}, ["1 agents; expected 1 or 2 reactants, 1 product and no agents"]),
        ({"retro": ["[C:1][N:2]>>[C:1][N:2]", 5]}, ["expected 1 reactant, 2 products", "retro 5 does not parse"]),
        ({"retro": ["[C:1].[N:2]>>[C:1].[N:2]"]}, ["has 2 reactants, 2 products"]),
        ({"retro": []}, ["retro needs at least one SMIRKS"]),
        ({"forbid": [["C"]]}, ["forbid lists 1 slots, and forward has 2"]),
        ({"forbid": [["[C"], ["N", 7]]}, ["forbid '[C' is no SMARTS", "got ['N', 7]"]),
        ({"forbid": ["CN", 3]}, ["a list of SMARTS for each slot, got 'CN'", "got 3"]),
        ({"examples": ["C", {"reactants": ["C"], "products": "C"}]}, ["got 'C'", "'products': 'C'"]),
        ({"examples": [{"reactants": ["C"], "products": ["C"]}]}, ["forward has 2 reactants", "has 1"]),
        ({"counterexamples": ["CC", ["C"]]}, ["list of 2 reactants, got 'CC'", "got ['C']"]),
    ],
)
def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path, change: dict[str, Any], reasons: list[str]) -> None:
    nameless = {key: GOOD[key] for key in GOOD if key != "name"}
    with pytest.raises(TemplateError) as caught:
        load(written(tmp_path, {**GOOD, **change}, "a text", nameless), only=["missing"])
    lines = str(caught.value).splitlines()
    for reason in reasons:
        assert any(reason in line and line.startswith("mine.yaml: amide: ") for line in lines), (reason, lines)
    assert "mine.yaml: entry 2: expected a mapping with name, family, forward, reference and retro, got str" in lines
    assert "mine.yaml: None: name must be a text" in lines
    assert any("there is no missing; there are" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "mine.yaml: expected a list of templates, got NoneType"),
        (b"[]", "mine.yaml: expected a list of templates, got list"),
        (b"name: amide", "mine.yaml: expected a list of templates, got dict"),
        (b"- [", "mine.yaml: while parsing"),
        (b"- \xff", "mine.yaml: 'utf-8' codec"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(TemplateError, match=reason):
        load(tmp_path)


def test_names_are_unique_over_all_files_and_places_exist(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="expected a YAML file of reaction templates, or a folder with some"):
        load(tmp_path)
    with pytest.raises(TemplateError, match="expected a YAML file"):
        load(tmp_path / "absent.yaml")
    written(tmp_path, GOOD, name="a.yaml")
    written(tmp_path, GOOD, name="b.yaml")
    with pytest.raises(TemplateError, match=r"^b\.yaml: amide: there is another template of this name$"):
        load(tmp_path)
