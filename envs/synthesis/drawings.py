"""Drawings of molecules and routes, as SVG and PNG alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from rdkit import Chem, Geometry
from rdkit.Chem import rdDepictor
from rdkit.Chem.Draw import rdMolDraw2D

from envs.synthesis.blocks import Block
from envs.synthesis.diversity import molecule
from envs.synthesis.routes import Route, Step

Form = Literal["svg", "png"]
PANEL = (230, 180)  # pixels of a molecule
PLUS, ARROW = 30, 190  # width of what stands between molecules
LEGEND = 13  # pixels of letters
CENTRE, START = 0, 1  # ways to align a text
GREY = (0.35, 0.35, 0.35)


def draw_molecule(smiles: str, form: Form = "svg", width: int = 180, height: int = 120) -> bytes:
    """A molecule without a caption."""
    canvas = _canvas(form, width, height)
    canvas.DrawMolecule(_depicted(smiles))
    return _finished(canvas)


def draw_grid(smiles: Sequence[str], captions: Sequence[str], form: Form = "svg", columns: int = 4) -> bytes:
    """Molecules row by row, each with its caption below."""
    width, height = PANEL
    columns = max(1, min(columns, len(smiles)))
    canvas = _canvas(form, columns * width, -(-len(smiles) // columns) * height, PANEL)
    for place, (text, caption) in enumerate(zip(smiles, captions, strict=True)):
        row, column = divmod(place, columns)
        _put(canvas, column * width, row * height, text, caption)
    return _finished(canvas)


def draw_route(route: Route, title: str, form: Form = "svg") -> bytes:
    """A route under a title, one reaction a row, blocks with their id and CAS number."""
    width, height = PANEL
    top = 30
    canvas = _canvas(form, 3 * width + PLUS + ARROW, top + max(1, len(route.steps)) * height, PANEL)
    _write(canvas, title, 10, 20, START, LEGEND + 1)
    if not route.steps:
        _put(canvas, 0, top, route.product, _caption(route.first))
    for number, step in enumerate(route.steps, 1):
        _draw_step(canvas, step, number, top + (number - 1) * height)
    return _finished(canvas)


def _draw_step(canvas: Any, step: Step, number: int, y: int) -> None:
    """Reactants, right-aligned before the arrow, and the product."""
    width, height = PANEL
    x, middle = (2 - len(step.reactants)) * (width + PLUS), y + (height - 2 * LEGEND) / 2
    for place, (smiles, block) in enumerate(zip(step.reactants, step.blocks, strict=True)):
        if place:
            _write(canvas, "+", x - PLUS / 2, middle + 6, CENTRE, 2 * LEGEND)
        _put(canvas, x, y, smiles, _caption(block) if block else f"product of step {number - 1}")
        x += width + PLUS
    x -= PLUS
    canvas.SetColour(GREY)
    tail, head = Geometry.Point2D(x + 10, middle), Geometry.Point2D(x + ARROW - 10, middle)
    canvas.SetLineWidth(2)
    canvas.DrawArrow(tail, head, True, 0.05, 0.45, GREY, True)
    _write(canvas, step.template.replace("_", " "), x + ARROW / 2, middle - 14, CENTRE)
    if step.outcomes > 1:
        _write(canvas, f"product {step.outcome + 1} of {step.outcomes}", x + ARROW / 2, middle + 20, CENTRE)
    _put(canvas, x + ARROW, y, step.product, f"product of step {number}")


def _caption(block: Block) -> str:
    caption = f"{block.id}, CAS {block.cas}" if block.cas else block.id
    return caption if len(caption) <= 34 else f"{caption[:33]}…"


def _canvas(form: Form, width: int, height: int, panel: tuple[int, int] = (-1, -1)) -> Any:
    kind: Callable[..., Any] = rdMolDraw2D.MolDraw2DSVG if form == "svg" else rdMolDraw2D.MolDraw2DCairo
    canvas = kind(width, height, *panel)
    options = canvas.drawOptions()
    options.fixedBondLength = 22
    options.legendFontSize = LEGEND
    options.legendFraction = 0.14
    options.padding = 0.08
    canvas.ClearDrawing()  # once: each molecule would clear the whole canvas again
    options.clearBackground = False
    return canvas


def _put(canvas: Any, x: int, y: int, smiles: str, caption: str) -> None:
    canvas.SetOffset(x, y)
    canvas.DrawMolecule(_depicted(smiles), legend=caption)


def _write(canvas: Any, text: str, x: float, y: float, align: int, size: int = LEGEND) -> None:
    canvas.SetColour(GREY)
    canvas.SetFontSize(size)
    canvas.DrawString(text, Geometry.Point2D(x, y), align, True)


def _finished(canvas: Any) -> bytes:
    canvas.FinishDrawing()
    drawing = canvas.GetDrawingText()
    return drawing.encode() if isinstance(drawing, str) else drawing


@lru_cache(2000)
def _depicted(smiles: str) -> Any:
    mol = Chem.Mol(molecule(smiles))
    rdDepictor.Compute2DCoords(mol)
    rdDepictor.StraightenDepiction(mol)
    return mol
