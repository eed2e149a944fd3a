"""Whether a completion gives the answer: strict comparisons.

A verifier is any function of a completion and an answer, to 1 where it is right and 0 where it is
wrong, or other finite numbers. What is learned is whatever is paid for, so those here read one answer
from one place: a completion that names several, or goes on after its answer, is wrong.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

Verifier: TypeAlias = Callable[[str, str], float]  # in a config, the name of any function will do

MARKS = (re.compile(r"####"), re.compile(r"\banswer is\b:?", re.IGNORECASE), re.compile(r"="))
SIGN = r"[+\-−]"
NUMBER = re.compile(
    rf"(?P<sign>{SIGN}?\\?\$?|\\?\${SIGN})(?P<digits>(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)?(?:\.[0-9]+)?)\.?"
)
MAY_OPEN = re.compile(  # what a parenthesis that calls nothing stands after
    r"(?:^|[-+*/%^=<>,(\[{:&|~]|(?<![\w.])(?:a?(?:sin|cos|tan)h?|exp|log|ln|sqrt|[aA]bs))\s*$"
)
BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")


def number(text: str) -> Decimal | None:
    """The number that is the whole text, with commas at thousands, a dollar sign or a full stop; None if it is none."""
    found = NUMBER.fullmatch(text.strip())
    if found is None or not found["digits"]:
        return None
    value = Decimal(found["digits"].replace(",", ""))
    return value.copy_negate() if re.search(r"[-−]", found["sign"]) else value


def extracted(completion: str, marks: Sequence[re.Pattern[str]] = MARKS) -> str:
    """The part that is meant as the answer: all after the last ``####``, else ``answer is``, else ``=``, else all."""
    for mark in marks:
        found = list(mark.finditer(completion))
        if found:
            return completion[found[-1].end() :].strip()
    return completion.strip()


def boxed(text: str) -> str | None:
    r"""What is in the last ``\boxed{…}``; None if there is none, or its brace is never closed."""
    boxes = list(BOX.finditer(text))
    if not boxes:
        return None
    rest, depth = text[boxes[-1].end() :], 0
    if not rest.startswith("{"):  # TeX needs no braces around a short one
        short = re.match(r"[^\s$]+", rest)
        return short.group() if short else None
    for brace in re.finditer(r"\\.|[{}]", rest, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0 and brace.group() == "}":
            return rest[1 : brace.start()].strip()
    return None


def same(text: str, answer: str) -> bool:
    """Whether two texts are equal, as numbers if both are some; nothing is equal to nothing."""
    values = number(text), number(answer)
    if None not in values:
        return values[0] == values[1]
    return text.strip() == answer.strip() != ""


def exact_answer(completion: str, answer: str) -> float:
    """1 if the completion, or what :func:`extracted` reads from it, is the answer; numbers count by value."""
    return float(same(completion, answer) or same(extracted(completion), answer))


def boxed_answer(completion: str, answer: str) -> float:
    r"""1 if what is in the last ``\boxed{…}`` is the answer, as in :func:`exact_answer`."""
    content = boxed(completion)
    return 0.0 if content is None else exact_answer(content, answer)


@dataclass(frozen=True)
class MathVerify:
    r"""1 if math-verify finds the completion's answer and the right one mathematically equal.

    The completion's answer is what is in its last ``\boxed{…}``, or else what :func:`extracted` reads.
    Simplifying some expressions takes for ever, and no time limit but that of :class:`Verified` holds.

    Raises:
        ImportError: if math-verify is not installed.
        ValueError: when called with an answer that it cannot read, which nothing could be equal to.
    """

    def __post_init__(self) -> None:
        try:
            import math_verify  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise ImportError("MathVerify needs math-verify: pip install 'fgfn[tasks]'") from error
        logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it has no time limit of its own

    def __reduce__(self) -> tuple[type[MathVerify], tuple[()]]:
        return MathVerify, ()  # so that a worker loads the package when it starts, before the clock runs

    def __call__(self, completion: str, answer: str, /) -> float:
        from math_verify import verify

        right = _parsed(answer)
        if not right:
            raise ValueError(f"math-verify cannot read the answer {answer!r}; use exact_answer for answers in words")
        box = boxed(completion)
        content = extracted(completion) if box is None else box
        if boxed(f"\\boxed{{{content}}}") != content.strip():
            return 0.0  # braces that would close the box early
        given = _parsed(content)
        return float(verify(right, given, timeout_seconds=None, raise_on_error=True))


def _parsed(content: str) -> list[Any]:
    """Some mathematics as SymPy expressions; in a box, it is read as a whole."""
    from math_verify import parse

    return parse(f"\\boxed{{{content}}}", parsing_timeout=None, raise_on_error=True)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class GymScore:
    """1 if a generator of reasoning-gym gives full marks, for the problems of :func:`envs.tokens.sources.gym`.

    A generator pays in part for an answer in a longer text, and some find a number wherever it stands: so
    only full marks for what :func:`extracted` reads count, and where the answer is a number, only for a
    number. Some generators evaluate completions as Python: those that could call a function or look up
    an attribute, but for a few functions of mathematics, are wrong unread.

    Raises:
        ImportError: if reasoning-gym is not installed.
        ValueError: when called with an answer that is not of a problem of this version of reasoning-gym.
    """

    def __post_init__(self) -> None:
        try:
            import reasoning_gym  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError as error:
            raise ImportError("GymScore needs reasoning-gym: pip install 'fgfn[tasks]'") from error

    def __reduce__(self) -> tuple[type[GymScore], tuple[()]]:
        return GymScore, ()  # as in MathVerify

    def __call__(self, completion: str, answer: str, /) -> float:
        generator, entry = _entry(answer)
        right = str(entry["answer"])
        if number(right) is not None:
            value = number(extracted(completion))
            return float(value is not None and (value == number(right) or _full(generator, f"{value:f}", entry)))
        content = extracted(completion, MARKS[:2])  # an answer in words may have a = of its own
        if content == right.strip():
            return 1.0
        return float((calls_nothing(content) or not _evaluates(generator)) and _full(generator, content, entry))


def calls_nothing(text: str) -> bool:
    """Whether a text, evaluated as Python or by SymPy, could only compute: no calls, no attributes."""
    if re.search(r"__|[\\#]|\.\s*[^\W\d]", text):
        return False
    return all(MAY_OPEN.search(text[: place.start()]) for place in re.finditer(r"\(", text))


def _full(generator: Any, content: str, entry: Any) -> bool:
    return generator.score_answer(content, entry) == 1.0


def _evaluates(generator: Any) -> bool:
    """Whether a generator's module evaluates text."""
    source = inspect.getsource(sys.modules[type(generator).__module__])
    return re.search(r"\b(?:eval|exec|parse_expr|sympify)\(", source) is not None


@lru_cache(maxsize=1024)
def _entry(answer: str) -> tuple[Any, Any]:
    """The generator that a problem comes from, and its entry made anew."""
    try:
        source = json.loads(answer)
        generator = _generator(source["gym"], source["size"], source["seed"], json.dumps(source["settings"]))
        entry = generator[source["entry"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"GymScore: expected the answer of a problem made by envs.tokens.sources.gym, got {answer!r} ({error})"
        ) from error
    if entry["answer"] != source["answer"]:
        raise ValueError(
            f"GymScore: {source['gym']} now gives {entry['answer']!r} where the problem was made with "
            f"{source['answer']!r}: another version of reasoning-gym"
        )
    return generator, entry


@lru_cache(maxsize=16)
def _generator(name: str, size: int, seed: int, settings: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(name, size=size, seed=seed, **json.loads(settings))
