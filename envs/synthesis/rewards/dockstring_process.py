"""Docks molecules by dockstring: a program of its own, which reads one JSON object and writes one line of JSON.

It imports nothing of this package, so that it runs wherever dockstring is installed.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def docked(target: Any, smiles: str, cpus: int) -> dict[str, Any]:
    """Score of a molecule, kcal/mol, or why there is none."""
    try:
        score, _ = target.dock(smiles, num_cpus=cpus)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"error": "it gives no score"} if score is None else {"score": float(score)}


def main() -> None:
    """Dock what stdin asks for."""
    del sys.path[0]  # the folder of this file, whose modules would stand in for others of the same name
    import dockstring  # pyright: ignore[reportMissingImports]

    question = json.load(sys.stdin)
    target = dockstring.load_target(question["target"])
    print(json.dumps([docked(target, smiles, question["cpus"]) for smiles in question["smiles"]]))


if __name__ == "__main__":
    main()
