"""Notebooks are stored without output and run from the first cell to the last; here with runs cut short."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").iterdir())
QUICK = {"quickstart"}
FIGURES = {  # how many pictures there are to look at
    "quickstart": 3,
    "mode_coverage": 3,
    "own_environment": 2,
    "own_divergence": 3,
    "molecules": 7,
    "language_model": 4,
}


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return sum(bool({"image/png", "image/svg+xml"} & set(output.get("data", ()))) for output in outputs)


def test_every_notebook_is_known_here() -> None:
    assert [path.name for path in NOTEBOOKS] == sorted(f"{name}.ipynb" for name in FIGURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output(path: Path) -> None:
    nbformat.validate(nbformat.read(path, as_version=4))
    code = cells(path, "code")
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert "widgets" not in json.loads(path.read_text(encoding="utf-8"))["metadata"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_more_to_read_than_to_scroll(path: Path) -> None:
    """Every cell of code that shows something stands below a text; but for classes brought along, cells are short."""
    lengths = [len("".join(cell["source"]).splitlines()) for cell in cells(path, "code")]
    assert sorted(lengths)[-3 if path.stem == "own_environment" else -1] <= 30
    text = "\n".join("".join(cell["source"]) for cell in cells(path, "markdown"))
    assert text.startswith("# ")
    assert re.search(r"minutes?\b.* on one core", text), "it says how long it takes"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow, id=path.stem) for path in NOTEBOOKS],
)
def test_notebooks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_FAST", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert pictures(notebook) == FIGURES[path.stem]
    told = [output for cell in notebook.cells for output in cell.get("outputs", ()) if output.get("name") == "stderr"]
    assert not told
