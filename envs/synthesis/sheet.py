"""A page about sampled molecules: one HTML file with its drawings inside, which needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from envs.synthesis.drawings import draw_molecule, draw_route
from envs.synthesis.metrics import Figure
from envs.synthesis.products import Product

LISTED = 100  # molecules and blocks of the tables
DRAWN = 10  # routes
HIDDEN = frozenset({"route", "smiles", "blocks"})  # what a drawing shows better, or a column of its own

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1200px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.87rem; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: left; vertical-align: middle; }
th { border-bottom: 2px solid #888; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.smiles { max-width: 20rem; overflow-wrap: anywhere; font-family: monospace; font-size: 0.8rem; }
th button { all: unset; cursor: pointer; font-weight: 600; white-space: nowrap; }
th button:focus-visible { outline: 2px solid #36c; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; }
td svg { display: block; }
"""

SCRIPT = """
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, body = head.closest("table").tBodies[0];
    const column = head.cellIndex, up = head.getAttribute("aria-sort") === "descending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => {
      const x = key(a), y = key(b);
      if (x === "" || y === "") return (x === "") - (y === "");
      const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
      return up ? order : -order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
"""


def sheet(
    products: Sequence[Product], found: Mapping[str, Figure], shopping: Sequence[Mapping[str, Any]], reward: str
) -> str:
    """The page.

    Args:
        products: distinct molecules, the best first.
        found: figures.
        shopping: a row for each block, by column.
        reward: what the reward is called.
    """
    best, blocks = products[:LISTED], shopping[:LISTED]
    routes = "\n".join(_figure(product) for product in products[:DRAWN])
    numbers = [
        {"figure": name, "value": figure.value, "n": figure.n, "definition": figure.definition}
        for name, figure in found.items()
    ]
    title = f"{len(products)} molecules sampled for {escape(reward)}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>Click the head of a column to sort by it. Every molecule is in routes.csv, every trajectory in routes.jsonl.</p>
<h2>Molecules</h2>
<p>{_of(len(best), len(products), "molecules", "with the largest rewards")}</p>
{_table([_row(product) for product in best], {product.id: _svg(draw_molecule(product.smiles)) for product in best})}
<h2>Routes</h2>
<p>The shortest sampled routes to the first {min(DRAWN, len(products))}.</p>
{routes}
<h2>Figures</h2>
{_table(numbers)}
<h2>Shopping list</h2>
<p>{_of(len(blocks), len(shopping), "blocks", "used most often in all trajectories")}</p>
{_table(blocks)}
<script>{SCRIPT}</script>
</body>
</html>
"""


def _of(shown: int, total: int, what: str, which: str) -> str:
    return f"All {total} {what}." if shown == total else f"The {shown} of {total} {what} {which}."


def _row(product: Product) -> dict[str, Any]:
    facts = product.facts
    templates = " → ".join(step.template.replace("_", " ") for step in product.route.steps)
    shown = {name: value for name, value in facts.items() if name not in HIDDEN}
    return shown | {"route": templates, "blocks": facts["blocks"], "smiles": product.smiles}


def _figure(product: Product) -> str:
    drawing = _svg(draw_route(product.route, product.title))
    return f'<figure aria-label="{escape(product.title)}">{drawing}</figure>'


def _svg(drawing: bytes) -> str:
    """A drawing as an element of the page, without the header of a file."""
    text = drawing.decode()
    return text[text.index("<svg") :]


def _table(rows: Sequence[Mapping[str, Any]], pictures: Mapping[str, str] | None = None) -> str:
    """A table that can be sorted, without empty columns; ``pictures`` follow the first one, by what stands there."""
    if not rows:
        return "<p>None.</p>"
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    heads = [f"<th><button>{escape(name.replace('_', ' '))}</button></th>" for name in columns]
    if pictures:
        heads.insert(1, "<th>structure</th>")
    lines = list[str]()
    for row in rows:
        cells = [_cell(name, row[name]) for name in columns]
        if pictures:
            cells.insert(1, f"<td>{pictures[row[columns[0]]]}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return (
        f'<div class="wide"><table>\n<thead><tr>{"".join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'
    )


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, int | float):
        return f'<td class="number" data-value="{value!r}">{value:.4g}</td>'
    kind = ' class="smiles"' if name == "smiles" else ""
    return f"<td{kind}>{escape(str(value))}</td>"
