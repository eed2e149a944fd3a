"""Files about sampled molecules and their routes, for chemists: tables, structures, drawings and a page to read."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdkit import Chem
from rdkit.Chem import rdDepictor, rdDistGeom
from torch import Tensor

from envs.synthesis.blocks import Block
from envs.synthesis.diversity import molecule
from envs.synthesis.drawings import draw_grid, draw_route
from envs.synthesis.metrics import Figure, figures
from envs.synthesis.molecules import Syntheses
from envs.synthesis.products import Product, products_of
from envs.synthesis.routes import Route, routes_of
from envs.synthesis.sheet import sheet
from gfn.trajectories import Trajectories

if TYPE_CHECKING:
    from envs.synthesis.environment import Synthesis

TOP = 100  # molecules of top.sdf
DRAWN = 10  # routes that are drawn
GRID = 24  # molecules of the grid


def export(
    env: Synthesis,
    t: Trajectories[Syntheses],
    directory: Path,
    log_p: Tensor | None = None,
    known: Collection[str] | None = None,
    three_dimensional: bool = False,
) -> list[Path]:
    """Write everything there is to say about sampled trajectories; returns the files.

    ===================  ==============================================================================
    routes.jsonl         one object for each trajectory, with all its steps
    routes.csv           one row for each distinct molecule, the best first, with its best sampled route
    molecules.smi        SMILES and id of each distinct molecule
    top.sdf              the best 100 with coordinates and everything in routes.csv as fields
    shopping_list.csv    blocks by the number of their uses in all trajectories
    metrics.csv, .md     every figure with its definition and the number of things it was computed from
    drawings/            the best molecules, and the routes to the first 10, as SVG and PNG
    index.html           all this in one page that needs nothing else
    ===================  ==============================================================================

    A file appears under its name only once it is complete; one of an earlier export is replaced.

    Args:
        env: the environment.
        t: trajectories, one for each sample.
        directory: made if it does not exist.
        log_p: estimates of log p(x) of each final state, float ``[B]``, to be compared with the rewards.
        known: canonical SMILES of molecules that are nothing new; without it novelty is left out.
        three_dimensional: give top.sdf coordinates in space (ETKDG, with hydrogens) where they can be found.
    """
    routes = routes_of(env, t)
    estimates = None if log_p is None else log_p.tolist()
    products = products_of(env, t, routes, estimates)
    found = figures(env, t, log_p, known)
    shopping = _shopping_list(routes)
    texts = {
        "routes.jsonl": _lines(env, t, products, routes, estimates),
        "routes.csv": _table([product.facts for product in products]),
        "molecules.smi": "".join(f"{product.smiles}\t{product.id}\n" for product in products),
        "top.sdf": _structures(products[:TOP], three_dimensional),
        "shopping_list.csv": _table(shopping),
        "metrics.csv": _table(_rows(found)),
        "metrics.md": _markdown(found),
    }
    contents = {name: text.encode() for name, text in texts.items()} | _drawings(products)
    contents["index.html"] = sheet(products, found, shopping, env.reward.name).encode()
    return [_write(directory / name, content) for name, content in contents.items()]


def _write(path: Path, content: bytes) -> Path:
    """Write a file so that it is either complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
    return path


def _lines(
    env: Synthesis,
    t: Trajectories[Syntheses],
    products: Sequence[Product],
    routes: Sequence[Route],
    log_p: Sequence[float] | None,
) -> str:
    """A JSON object for each trajectory."""
    known = {product.smiles: product for product in products}
    exponents = env.exponents.tolist()
    lines = list[str]()
    for row, (route, condition) in enumerate(zip(routes, t.final.condition.tolist(), strict=True)):
        product = known[route.product]
        line: dict[str, Any] = {"id": product.id, "product": product.smiles, "reward": product.reward}
        line |= {"terms": product.terms, "exponent": exponents[condition]}
        if log_p is not None:
            line["log_p"] = log_p[row]
        line |= {"first": _block(route.first), "price": route.price, "steps": _steps(route)}
        lines.append(json.dumps(_finite(line), allow_nan=False) + "\n")
    return "".join(lines)


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return value


def _steps(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "template": step.template,
            "family": step.family,
            "reactants": [
                {"smiles": smiles, **({"block": _block(block)} if block else {})}
                for smiles, block in zip(step.reactants, step.blocks, strict=True)
            ],
            "outcome": step.outcome,
            "outcomes": step.outcomes,
            "product": step.product,
        }
        for step in route.steps
    ]


def _block(block: Block) -> dict[str, Any]:
    return {"id": block.id, "smiles": block.smiles, "source": block.source, "cas": block.cas, "price": block.price}


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with a header; nothing where a value is None, six digits of other numbers than whole ones."""
    file = io.StringIO()
    table = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
    table.writeheader()
    table.writerows({name: _text(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shopping_list(routes: Iterable[Route]) -> list[dict[str, Any]]:
    """Blocks in the order of their uses, equal ones by SMILES."""
    uses = Counter(block for route in routes for block in route.blocks)
    ordered = sorted(uses.items(), key=lambda item: (-item[1], item[0].smiles))
    return [{"uses": count, **_block(block)} for block, count in ordered]


def _structures(products: Sequence[Product], three_dimensional: bool) -> str:
    """SDF records with the facts of each product as fields."""
    file = io.StringIO()
    writer: Any = Chem.SDWriter(file)
    for product in products:
        mol = _placed(product.smiles, three_dimensional)
        mol.SetProp("_Name", product.id)
        for name, value in product.facts.items():
            if _text(value):
                mol.SetProp(name, _text(value))
        writer.write(mol)
    writer.close()
    return file.getvalue()


def records(states: Syntheses, facts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """SDF of molecules in the plane, one record for each state, with facts as its fields; those that are None left out.

    Args:
        states: terminal ones, ``[B]``.
        facts: of each.
    """
    for smiles, fields in zip(states.smiles, facts, strict=True):
        file = io.StringIO()
        writer: Any = Chem.SDWriter(file)
        mol = _placed(smiles, False)
        mol.SetProp("_Name", smiles)
        for name, value in fields.items():
            if _text(value):
                mol.SetProp(name, _text(value))
        writer.write(mol)
        writer.close()
        yield file.getvalue()


def _placed(smiles: str, three_dimensional: bool) -> Any:
    """A molecule with coordinates: in space if that is asked for and succeeds, else in the plane."""
    mol = Chem.Mol(molecule(smiles))
    if three_dimensional:
        parameters: Any = rdDistGeom.ETKDGv3()
        parameters.randomSeed = 0  # the same coordinates each time
        full = Chem.AddHs(mol)
        if rdDistGeom.EmbedMolecule(full, parameters) == 0:
            return full
    rdDepictor.Compute2DCoords(mol)
    return mol


def _rows(found: Mapping[str, Figure]) -> list[dict[str, Any]]:
    return [
        {"name": name, "value": figure.value, "n": figure.n, "definition": figure.definition}
        for name, figure in found.items()
    ]


def _markdown(found: Mapping[str, Figure]) -> str:
    lines = ["| figure | value | n | definition |", "|---|---:|---:|---|"]
    lines += [f"| {name} | {f.value:.5g} | {f.n} | {f.definition.replace('|', '/')} |" for name, f in found.items()]
    return "\n".join(lines) + "\n"


def _drawings(products: Sequence[Product]) -> dict[str, bytes]:
    """The best molecules in a grid, and the routes to the first of them."""
    best = products[:GRID]
    captions = [f"{product.id}, reward {product.reward:.3g}" for product in best]
    drawn = dict[str, bytes]()
    for form in ("svg", "png"):
        drawn[f"drawings/molecules.{form}"] = draw_grid([product.smiles for product in best], captions, form)
        for product in products[:DRAWN]:
            drawn[f"drawings/{product.id}.{form}"] = draw_route(product.route, product.title, form)
    return drawn
