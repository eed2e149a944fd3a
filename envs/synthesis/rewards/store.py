"""The file of a reward cache: SQLite, shared by processes, with damage noticed."""

from __future__ import annotations

import json
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Terms = dict[str, float]
WAIT = 60.0  # seconds for another process to finish writing
AT_ONCE = 500  # molecules in one query: SQLite limits the number of its parameters
TABLE = (
    "CREATE TABLE IF NOT EXISTS reward_terms (score TEXT, smiles TEXT, terms TEXT, checksum INTEGER, "
    "PRIMARY KEY (score, smiles)) WITHOUT ROWID"
)


@dataclass(frozen=True)
class Store:
    """Terms of molecules by score, in one file; each use opens it anew, so any process may use it at any time.

    A damaged file is renamed, with a warning, and a new one begun; a damaged row counts as missing.

    Args:
        path: of the file; it and its folder are made.

    Raises:
        OSError: here and later, if the file cannot be read or written, with the reason.
    """

    path: Path

    def __post_init__(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unusable(error) from error
        self._use(_check)

    def read(self, score: str, smiles: Sequence[str]) -> dict[str, Terms]:
        """What is known of ``smiles``: the terms of those that are found."""
        rows: list[tuple[str, str, int]] = []
        for start in range(0, len(smiles), AT_ONCE):
            some = smiles[start : start + AT_ONCE]
            query = f"SELECT smiles, terms, checksum FROM reward_terms WHERE score = ? AND smiles IN ({_marks(some)})"
            rows += self._use(lambda file, query=query, some=some: file.execute(query, (score, *some)).fetchall())
        sound = {text: json.loads(terms) for text, terms, checksum in rows if checksum == _checksum(text, terms)}
        if len(sound) < len(rows):
            warnings.warn(f"{self.path}: {len(rows) - len(sound)} damaged values are computed again", stacklevel=2)
        return sound

    def write(self, score: str, made: Mapping[str, Terms]) -> None:
        """Keep the terms of molecules, all of them or, if it fails, none."""
        texts = {text: json.dumps(terms) for text, terms in made.items()}
        rows = [(score, text, terms, _checksum(text, terms)) for text, terms in texts.items()]
        if rows:
            statement = "INSERT OR REPLACE INTO reward_terms VALUES (?, ?, ?, ?)"
            self._use(lambda file: file.executemany(statement, rows))

    def _use(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """What ``work`` returns, in one transaction; once more with a new file if this one is damaged."""
        try:
            return self._opened(work)
        except sqlite3.OperationalError as error:  # locked, full, read-only, no file at all: not damage
            raise self._unusable(error) from error
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
        try:
            return self._opened(work)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from error

    def _opened(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with closing(sqlite3.connect(self.path, timeout=WAIT)) as file, file:
            file.execute(TABLE)
            return work(file)

    def _unusable(self, error: Exception) -> OSError:
        return OSError(
            f"cannot use {self.path} as a reward cache: {error}; expected a file that can be written, "
            "in a folder that can be written; give another path"
        )

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        names = (self.path.with_name(f"{self.path.name}.damaged{number or ''}") for number in count())
        aside = next(name for name in names if not name.exists())
        with suppress(FileNotFoundError):  # another process was quicker
            self.path.rename(aside)
        reason = " ".join(str(error).split())
        warnings.warn(f"{self.path} is damaged ({reason}); it is now {aside.name}, and a new cache begun", stacklevel=4)


def _check(file: sqlite3.Connection) -> None:
    """Raise if the file is damaged or cannot be written."""
    file.execute("BEGIN IMMEDIATE")
    verdict = file.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)


def _marks(items: Sequence[str]) -> str:
    return ", ".join("?" * len(items))


def _checksum(smiles: str, terms: str) -> int:
    return zlib.crc32(f"{smiles} {terms}".encode())
