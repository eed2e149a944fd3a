"""Races on hypergrids: all sides of a cell take turns, and what they took is kept in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.competitors import Competitor, Window
from experiments.benchmarks.grids_cells import trained
from experiments.benchmarks.grids_runs import Cell


@dataclass(frozen=True)
class Record:
    """What one side took of a cell.

    Attributes:
        cell, side: of which cell, and who.
        setup: CPU seconds until it could begin.
        first: its first iteration, in which some compile.
        windows: the ones that count, in order.
        versions: of its packages.
        config: overrides, of our own side.
        failure: why there are no windows; empty if there are.
    """

    cell: Cell
    side: str
    setup: float = 0.0
    first: Window | None = None
    windows: tuple[Window, ...] = ()
    versions: tuple[str, ...] = ()
    config: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Race:
    """How a cell is run.

    Attributes:
        sides: who takes part, in the order of their turns.
        windows: number of turns of each.
        seconds: least length of a turn.
        config: overrides, for our own side.
    """

    sides: tuple[str, ...]
    windows: int
    seconds: float
    config: tuple[str, ...] = ()

    def run(self, cell: Cell, policies: Path) -> list[Record]:
        """All sides in turns, from the same trained weights, with learning rate 0."""
        weights = trained(cell.side, cell.ndim, policies)
        failures, turns = dict[str, str](), dict[str, list[Window]]()
        with ExitStack() as running:
            players = dict[str, Competitor]()
            for side in self.sides:
                config = self.config if side == "ours" else ()
                try:
                    players[side] = running.enter_context(Competitor(side, cell, weights, config=config))
                    turns[side] = []
                except RuntimeError as error:
                    failures[side] = str(error)
            for _ in range(self.windows):
                for side, player in players.items():
                    if side not in failures:
                        try:
                            turns[side].append(player.train(seconds=self.seconds))
                        except RuntimeError as error:
                            failures[side] = str(error)
        return [
            Record(cell, side, failure=failures[side])
            if side in failures
            else self._record(cell, players[side], turns[side])
            for side in self.sides
        ]

    def _record(self, cell: Cell, player: Competitor, turns: Sequence[Window]) -> Record:
        versions = tuple(f"{name} {number}" for name, number in player.versions.items())
        config = self.config if player.side == "ours" else ()
        return Record(cell, player.side, player.setup, player.first, tuple(turns), versions, config)


class Store:
    """Records in a JSON file, which is written anew with each cell.

    Args:
        path: where; what is there already is kept, and not measured again.
    """

    def __init__(self, path: Path):
        self.path = path
        self.records: list[Record] = [] if not path.exists() else list(map(_read, json.loads(path.read_text())))

    def missing(self, cell: Cell, sides: Sequence[str], config: Sequence[str]) -> list[str]:
        """Which sides of a cell have no record, or ours one with another config."""
        found = {r.side for r in self.records if r.cell == cell and (r.side != "ours" or r.config == tuple(config))}
        return [side for side in sides if side not in found]

    def add(self, records: Sequence[Record]) -> None:
        """Take records in, in the place of older ones of the same cells and sides, and write the file."""
        new = {(r.cell, r.side) for r in records}
        self.records = [r for r in self.records if (r.cell, r.side) not in new] + list(records)
        self.path.write_text(json.dumps([asdict(r) for r in self.records], indent=1))


def _read(record: dict[str, Any]) -> Record:
    first = None if record["first"] is None else Window(**record["first"])
    windows = tuple(Window(**w) for w in record["windows"])
    pairs: dict[str, Any] = {name: tuple(record[name]) for name in ("versions", "config")}
    values: dict[str, Any] = {**record, **pairs, "cell": Cell(**record["cell"]), "first": first, "windows": windows}
    return Record(**values)


def raced(race: Race, cells: Sequence[Cell], store: Store, policies: Path) -> None:
    """Run every cell that has not been run with all sides, telling about each."""
    for i, cell in enumerate(cells, 1):
        if not store.missing(cell, race.sides, race.config):
            continue
        records = race.run(cell, policies)
        store.add(records)
        told = ", ".join(f"{r.side} {'failed' if r.failure else f'{per_cpu_second(r):.3g}'}" for r in records)
        print(f"{i}/{len(cells)} {cell}: iterations per CPU second: {told}", file=sys.stderr)


def per_cpu_second(record: Record) -> float:
    """Median number of iterations in a second of CPU time."""
    rates = sorted(w.iterations / w.cpu for w in record.windows)
    return (rates[len(rates) // 2] + rates[(len(rates) - 1) // 2]) / 2
