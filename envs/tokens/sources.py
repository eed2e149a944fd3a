"""Where problems come from: files, the Hugging Face hub, generators."""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from envs.tokens.problems import Problem
from envs.tokens.verifiers import boxed

Gold: TypeAlias = Literal["plain", "####", "boxed"]
Read: TypeAlias = Callable[[Mapping[str, Any]], Problem]  # raises ValueError with all that is wrong

ADDITION_TEMPLATE = "3 + 4 = 7\n10 + 5 = 15\n2 + 6 = 8\n{prompt}"
SHOWN = 10  # bad lines in a message


def jsonl(path: Path | str, prompt: str = "prompt", answer: str = "answer", limit: int | None = None) -> list[Problem]:
    """Problems of a JSON Lines file, one object with two texts a line; empty lines count for nothing.

    Args:
        path: of the file.
        prompt, answer: names of its columns.
        limit: how many to read, from the first. Default: all.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: with the lines that are malformed and what is wrong with each, or if there are none.
    """
    return _collected(f"{path}: line", _lines(path), _reader(prompt, answer), limit)


def parquet(
    path: Path | str, prompt: str = "prompt", answer: str = "answer", limit: int | None = None
) -> list[Problem]:
    """Problems of a Parquet file, as :func:`jsonl`; rows are counted from 1.

    Raises:
        ImportError: if pyarrow is not installed.
    """
    return _collected(f"{path}: row", _table(path), _reader(prompt, answer), limit)


def gsm8k(path: Path | str, limit: int | None = None) -> list[Problem]:
    """Problems of a file of GSM8K (Cobbe et al. 2021, arXiv:2110.14168), .jsonl or .parquet.

    It has columns ``question`` and ``answer``, a worked solution with the number after its last ``####``;
    commas are left out.

    Raises:
        FileNotFoundError, ValueError, ImportError: as :func:`jsonl` and :func:`parquet`.
    """
    return _either(path, _reader("question", "answer", "####"), limit)


def math(path: Path | str, limit: int | None = None) -> list[Problem]:
    r"""Problems of a file of MATH (Hendrycks et al. 2021, arXiv:2103.03874), .jsonl or .parquet.

    It has columns ``problem`` and ``solution``, with the answer in its last ``\boxed{…}``; in rows without
    a solution, the answer alone is in ``answer``.

    Raises:
        FileNotFoundError, ValueError, ImportError: as :func:`jsonl` and :func:`parquet`.
    """
    solved, plain = _reader("problem", "solution", "boxed"), _reader("problem", "answer")
    return _either(path, lambda row: (plain if "answer" in row and "solution" not in row else solved)(row), limit)


def hub(
    name: str,
    config: str | None = None,
    split: str = "train",
    prompt: str = "prompt",
    answer: str = "answer",
    gold: Gold = "plain",
    limit: int | None = None,
) -> list[Problem]:
    """Problems of a data set of the Hugging Face hub.

    Args:
        name, config, split: which data set, which of its configurations, and what part of it.
        prompt, answer: names of its columns.
        gold: where in the answer's column the answer is: all of it, after its last ``####``, or boxed.
        limit: how many to read, from the first. Default: all.

    Raises:
        ImportError: if datasets is not installed.
        ValueError: if the hub cannot be reached or has no such data set, and as :func:`jsonl`.
    """
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("the hub's data sets need datasets: pip install 'fgfn[tasks]'") from error
    try:
        rows: Any = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # whatever the network, the hub or its files come up with
        raise ValueError(
            f"cannot load the data set {name} ({config=}, {split=}) from the hub: {type(error).__name__}: {error}; "
            "without a network, give a file: envs.tokens.sources.jsonl or parquet with its path"
        ) from error
    return _collected(f"{name}: row", enumerate(rows, 1), _reader(prompt, answer, gold), limit)


def gym(name: str, size: int = 100, seed: int = 0, **settings: Any) -> list[Problem]:
    """Problems of a generator of reasoning-gym (Stojanovski et al. 2025, arXiv:2505.24760).

    Many have more than one right answer, so that of a problem is JSON that tells how to make it again,
    along with one right answer, for :class:`envs.tokens.verifiers.GymScore`.

    Args:
        name: of the generator, such as ``chain_sum``.
        size: how many problems.
        seed: of the generator.
        settings: of the generator.

    Raises:
        ImportError: if reasoning-gym is not installed.
        ValueError: if there is no such generator, or it refuses its settings.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ImportError("gym needs reasoning-gym: pip install 'fgfn[tasks]'") from error
    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, n=3)
        raise ValueError(
            f"reasoning-gym has no generator {name!r}" + (f"; did you mean {', '.join(near)}?" if near else "")
        )
    if size < 1:
        raise ValueError(f"gym: expected size ≥ 1, got {size}")
    source = {"gym": name, "seed": seed, "settings": settings, "size": size}
    try:
        made: Any = reasoning_gym.create_dataset(name, size=size, seed=seed, **settings)
        entries = [made[i] for i in range(size)]
        answers = [
            json.dumps({**source, "answer": e["answer"], "entry": i}, sort_keys=True) for i, e in enumerate(entries)
        ]
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning-gym's {name} refuses {settings}: {error}") from error
    return [Problem(entry["question"], answer) for entry, answer in zip(entries, answers, strict=True)]


def additions(digits: int = 1, n: int | None = None, seed: int = 0) -> list[Problem]:
    """Sums of two numbers, ``3 + 4 =``, for models without any training; with ``ADDITION_TEMPLATE`` they see examples.

    Args:
        digits: of the numbers, at most.
        n: how many sums, all different. Default: all of one digit, in order.
        seed: which of them, and their order.

    Raises:
        ValueError: if ``digits`` is not positive, or ``n`` is not from 1 to the number of sums there are.
    """
    size = 10**digits if digits > 0 else 0
    if digits < 1 or (n is None and digits > 1) or (n is not None and not 1 <= n <= size**2):
        raise ValueError(f"additions: expected digits ≥ 1 and n from 1 to the number of sums, got {digits=} {n=}")
    chosen = range(size**2) if n is None else random.Random(seed).sample(range(size**2), n)
    return [Problem(f"{i // size} + {i % size} =", str(i // size + i % size)) for i in chosen]


def _either(path: Path | str, read: Read, limit: int | None) -> list[Problem]:
    kind = Path(path).suffix
    if kind not in (".jsonl", ".parquet"):
        raise ValueError(f"{path}: expected a .jsonl or .parquet file")
    rows, unit = (_lines(path), "line") if kind == ".jsonl" else (_table(path), "row")
    return _collected(f"{path}: {unit}", rows, read, limit)


def _collected(where: str, rows: Iterable[tuple[int, Any]], read: Read, limit: int | None) -> list[Problem]:
    """The problems of numbered rows, or a ValueError with everything that is wrong with the first bad ones."""
    if limit is not None and limit < 1:
        raise ValueError(f"{where}s: expected limit ≥ 1, got {limit}")
    problems, bad = list[Problem](), list[str]()
    for place, row in islice(rows, limit):
        try:
            problems.append(read(_object(row)))
        except ValueError as error:
            bad.append(f"{where} {place}: {error}")
    if bad:
        more = f"\n… and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise ValueError("\n".join(bad[:SHOWN]) + more)
    if not problems:
        raise ValueError(f"{where}s: there are none")
    return problems


def _object(row: Any) -> Mapping[str, Any]:
    """A row as names and values; text is JSON."""
    if isinstance(row, bytes):
        try:
            row = json.loads(row.rstrip().decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start + 1})") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(row, Mapping):
        raise ValueError(f"expected an object with names and values, got {type(row).__name__}")
    return row


def _reader(prompt: str, answer: str, gold: Gold = "plain") -> Read:
    """Makes a problem of a row."""

    def read(row: Mapping[str, Any]) -> Problem:
        wrong = [text for name in (prompt, answer) if (text := _flaw(row, name))]
        if not wrong and not row[prompt].strip():
            wrong.append(f"{prompt} is blank")
        if wrong:
            raise ValueError("; ".join(wrong))
        return Problem(row[prompt], _gold(row[answer], answer, gold))

    return read


def _flaw(row: Mapping[str, Any], name: str) -> str | None:
    if name not in row:
        return f"no column {name!r} (there are: {', '.join(map(str, row)) or 'none'})"
    return None if isinstance(row[name], str) else f"{name} is no text but {row[name]!r:.60}"


def _gold(text: str, name: str, gold: Gold) -> str:
    """The answer in the text that tells it."""
    if gold == "plain":
        return text
    found = (
        boxed(text)
        if gold == "boxed"
        else text.rpartition("####")[2].replace(",", "").strip()
        if "####" in text
        else None
    )
    if not found:
        sign = r"in a \boxed{…}" if gold == "boxed" else "after a ####"
        raise ValueError(f"{name} has no answer {sign}")
    return found


def _lines(path: Path | str) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, by their numbers."""
    _require_file(path)
    with Path(path).open("rb") as file:
        for place, line in enumerate(file, 1):
            text = line.removeprefix(b"\xef\xbb\xbf") if place == 1 else line
            if text.strip():
                yield place, text


def _table(path: Path | str) -> Iterator[tuple[int, Any]]:
    _require_file(path)
    try:
        from pyarrow import parquet as reader  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(f"{path}: Parquet files need pyarrow: pip install 'fgfn[tasks]'") from error
    try:
        rows: list[Any] = reader.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as a Parquet file ({error})") from error
    yield from enumerate(rows, 1)


def _require_file(path: Path | str) -> None:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
