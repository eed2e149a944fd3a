"""Files for chemists: each read back by a program of its kind, and compared with the trajectories they are about."""

from __future__ import annotations

import copy
import csv
import json
import os
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
import torch
from rdkit import Chem

from envs.synthesis import metrics
from envs.synthesis.drawings import draw_grid, draw_molecule, draw_route
from envs.synthesis.environment import Synthesis
from envs.synthesis.export import export
from envs.synthesis.molecules import Syntheses
from envs.synthesis.products import products_of
from envs.synthesis.routes import routes_of
from envs.synthesis.sheet import sheet
from experiments.sample import Exporting
from gfn.trajectories import Trajectories
from tests.small_syntheses import BLOCKS, sampled, small_environment

SCRIPT = "<script>alert('ethylene & diamine')</script>"  # the id of a block


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Synthesis:
    return small_environment(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def t(env: Synthesis) -> Trajectories[Syntheses]:
    return sampled(env)


@pytest.fixture(scope="module")
def folder(env: Synthesis, t: Trajectories[Syntheses], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export with estimates of log p, one of which is zero."""
    place = tmp_path_factory.mktemp("export") / "deep" / "samples"
    log_p = (t.log_reward - 1).index_fill(0, torch.tensor([0]), -torch.inf)
    files = env.export(t, place, log_p)
    assert sorted(files) == sorted(path for path in place.rglob("*") if path.is_file()), "these files and no others"
    return place


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_trajectory_is_told_step_by_step(env: Synthesis, t: Trajectories[Syntheses], folder: Path) -> None:
    told = lines(folder / "routes.jsonl")
    assert [line["product"] for line in told] == t.final.smiles
    assert [line["reward"] for line in told] == env.rewards(t.final).tolist()
    assert all(line["terms"]["qed"] == line["reward"] and line["exponent"] == 4.0 for line in told)
    assert told[0]["log_p"] is None, "no number that JSON has a word for"
    assert told[1]["log_p"] == pytest.approx(float(t.log_reward[1]) - 1)
    for line, route in zip(told, routes_of(env, t), strict=True):
        assert line["price"] == route.price
        assert line["first"]["id"] == BLOCKS[route.first.smiles][0]
        assert [step["product"] for step in line["steps"]] == [step.product for step in route.steps]
        for told_step, step in zip(line["steps"], route.steps, strict=True):
            assert (told_step["template"], told_step["family"]) == (step.template, step.family)
            assert (told_step["outcome"], told_step["outcomes"]) == (step.outcome, step.outcomes)
            assert [r["smiles"] for r in told_step["reactants"]] == list(step.reactants)
            named = [r["block"]["cas"] if "block" in r else "made" for r in told_step["reactants"]]
            assert named == ["made" if block is None else BLOCKS[block.smiles][1] for block in step.blocks]


def test_a_row_for_each_molecule_the_best_first(t: Trajectories[Syntheses], folder: Path) -> None:
    rows, told = table(folder / "routes.csv"), lines(folder / "routes.jsonl")
    assert {row["smiles"]: int(row["times_sampled"]) for row in rows} == Counter(t.final.smiles)
    rewards = [float(row["reward"]) for row in rows]
    assert rewards == sorted(rewards, reverse=True)
    assert len(rewards) > 40
    for row in rows:
        same = [line for line in told if line["product"] == row["smiles"]]
        assert {line["id"] for line in same} == {row["id"]}
        texts = {
            "|".join(f"{'.'.join(r['smiles'] for r in s['reactants'])}>>{s['product']}" for s in line["steps"])
            for line in same
        }
        assert row["route"] in texts
        assert len(texts) == int(row["routes_sampled"])
        assert int(row["reactions"]) == min(len(line["steps"]) for line in same) == row["route"].count(">>")
        ids = row["blocks"].split("|")
        prices = [{id: price for id, _, price in BLOCKS.values()}[id] for id in ids]
        assert row["price"] == ("" if None in prices else f"{sum(filter(None, prices)):.6g}")
        assert float(row["qed"]) == pytest.approx(float(row["reward"]), rel=1e-5)
    assert max(int(row["routes_sampled"]) for row in rows) > 1


def test_structures_can_be_read(t: Trajectories[Syntheses], folder: Path) -> None:
    rows = table(folder / "routes.csv")
    supplier: Any = Chem.SmilesMolSupplier(str(folder / "molecules.smi"), delimiter="\t", titleLine=False)
    read = [(Chem.MolToSmiles(mol), mol.GetProp("_Name")) for mol in supplier]
    assert read == [(row["smiles"], row["id"]) for row in rows]
    placed: list[Any] = list(Chem.SDMolSupplier(str(folder / "top.sdf")))
    assert len(placed) == min(100, len(rows))
    for mol, row in zip(placed, rows, strict=False):
        assert Chem.MolToSmiles(mol) == row["smiles"]
        assert mol.GetPropsAsDict(autoConvertStrings=False) == {name: text for name, text in row.items() if text}
        assert mol.GetProp("_Name") == row["id"]
        xyz = mol.GetConformer().GetPositions()
        assert not mol.GetConformer().Is3D()
        assert np.ptp(xyz, axis=0)[:2].min() > 1


def test_structures_in_space(env: Synthesis, t: Trajectories[Syntheses], tmp_path: Path) -> None:
    few = t[:3]
    export(env, few, tmp_path / "first", three_dimensional=True)
    export(env, few, tmp_path / "second", three_dimensional=True)
    assert (tmp_path / "first/top.sdf").read_bytes() == (tmp_path / "second/top.sdf").read_bytes()
    for mol in list[Any](Chem.SDMolSupplier(str(tmp_path / "first/top.sdf"), removeHs=False)):
        assert mol.GetConformer().Is3D()
        assert np.ptp(mol.GetConformer().GetPositions(), axis=0).min() > 0.5
        assert any(atom.GetAtomicNum() == 1 for atom in mol.GetAtoms())
        assert Chem.MolToSmiles(Chem.RemoveHs(mol)) == mol.GetProp("smiles")


def test_shopping_list_counts_every_use(folder: Path) -> None:
    rows, uses = table(folder / "shopping_list.csv"), Counter[str]()
    for line in lines(folder / "routes.jsonl"):
        uses.update(r["block"]["smiles"] for step in line["steps"] for r in step["reactants"] if "block" in r)
    assert {row["smiles"]: int(row["uses"]) for row in rows} == uses
    counts = [int(row["uses"]) for row in rows]
    assert counts == sorted(counts, reverse=True)
    for row in rows:
        id, cas, price = BLOCKS[row["smiles"]]
        assert (row["id"], row["cas"], row["price"]) == (id, cas or "", "" if price is None else f"{price:g}")


def test_figures_are_written_with_their_definitions(env: Synthesis, t: Trajectories[Syntheses], folder: Path) -> None:
    found = metrics.figures(env, t, torch.zeros(len(t)))
    rows = table(folder / "metrics.csv")
    assert [row["name"] for row in rows] == list(found)
    for row in rows:
        figure = found[row["name"]]
        assert row["definition"] == figure.definition
        if not row["name"].startswith("log_p"):
            assert (float(row["value"]), int(row["n"])) == (pytest.approx(figure.value, rel=1e-5), figure.n)
    text = (folder / "metrics.md").read_text(encoding="utf-8").splitlines()
    assert len(text) == len(rows) + 2
    assert all(line.count("|") == 5 for line in text), "five bars make four columns"


def test_drawings_show_something(folder: Path) -> None:
    files = sorted((folder / "drawings").iterdir())
    names = [f"M{number:04}" for number in range(1, 11)] + ["molecules"]
    assert [path.name for path in files] == [f"{name}.{form}" for name in names for form in ("png", "svg")]
    for path in files:
        if path.suffix == ".png":
            picture = matplotlib.image.imread(path)
            assert picture.shape[2] == 3, "no part of it is transparent"
            assert 0.01 < (picture.min(2) < 0.9).mean() < 0.2, "ink on white"
        else:
            root = ElementTree.parse(path).getroot()
            assert root.tag.endswith("svg")
            assert len(root.findall(".//{*}path")) > 20


def test_drawings_grow_with_what_they_show(env: Synthesis, t: Trajectories[Syntheses]) -> None:
    def size(drawing: bytes) -> tuple[str | None, str | None]:
        root = ElementTree.fromstring(drawing)
        return root.get("width"), root.get("height")

    by_length = {len(route.steps): route for route in routes_of(env, t)}
    assert [size(draw_route(by_length[n], "title")) for n in (1, 2)] == [("910px", "210px"), ("910px", "390px")]
    assert size(draw_grid(["CO"] * 5, ["caption"] * 5)) == ("920px", "360px")
    assert size(draw_grid(["CO"], ["caption"])) == ("230px", "180px")
    assert draw_molecule("CO") != draw_molecule("CCO")


class Page(HTMLParser):
    """What a browser would see: tags, which are closed in order, attributes that could fetch something, and text."""

    void = frozenset({"meta", "br", "path", "rect", "line", "ellipse", "polygon", "circle"})

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.shown: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.links += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href", "data", "action")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.shown.append(data)


def test_the_page_needs_nothing_else_and_escapes_what_it_shows(folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert "url(" not in text
    assert "@import" not in text
    assert page.tags["script"] == 1, "the ids of blocks are text"
    assert SCRIPT in page.shown
    rows = table(folder / "routes.csv")
    assert page.tags["svg"] == min(100, len(rows)) + 10
    for row in [*rows[:100], *table(folder / "shopping_list.csv")]:
        assert row["smiles"] in page.shown
    assert all(row["definition"] in page.shown for row in table(folder / "metrics.csv"))


def test_a_page_about_hostile_names(env: Synthesis, t: Trajectories[Syntheses]) -> None:
    products = products_of(env, t[:2], routes_of(env, t[:2]))
    page = Page(sheet(products, {}, [], "qed</title><script>alert(1)</script>"))
    assert page.tags["script"] == 1
    assert page.open == []


def test_a_term_may_have_the_name_of_a_column(t: Trajectories[Syntheses], env: Synthesis) -> None:
    class Named:
        name = "price"

        def terms(self, smiles: list[str]) -> dict[str, Any]:
            return {"price": np.arange(len(smiles), dtype=float), "qed": np.full(len(smiles), 7.0)}

    other: Any = copy.copy(env)
    other.reward = Named()
    facts = products_of(other, t, routes_of(env, t))[3].facts
    assert (facts["price_term"], facts["qed"]) == (3.0, 7.0)
    assert facts["price"] != 3.0


def test_an_interrupted_export_leaves_no_half_file(
    env: Synthesis, t: Trajectories[Syntheses], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = t[:2]
    env.export(few, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    whole = Path.write_bytes

    def fills_the_disk(path: Path, content: bytes) -> int:
        if "top.sdf" in path.name:
            whole(path, content[: len(content) // 2])
            raise OSError("no space left on device")
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", fills_the_disk)
    with pytest.raises(OSError, match="no space"):
        env.export(t, tmp_path)
    after = {path: path.read_bytes() for path in before}
    changed = {path.name for path in before if before[path] != after[path]}
    assert changed == {"routes.jsonl", "routes.csv", "molecules.smi"}, "complete new ones, and the old ones"
    monkeypatch.undo()
    assert len(lines(tmp_path / "routes.jsonl")) == len(t)
    env.export(t, tmp_path)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


def test_the_command_line_can_ask_for_it(env: Synthesis) -> None:
    assert isinstance(env, Exporting)
