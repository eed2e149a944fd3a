"""Tasks for sequences of tokens: prompts, and how good a completion is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class Task(Protocol):
    """Prompts and the reward of completions, in tokens.

    Attributes:
        n_tokens: size of the vocabulary.
        stop_ids: tokens that end a completion; the first stands for all.
        prompts: token ids of each.
    """

    @property
    def n_tokens(self) -> int: ...

    @property
    def stop_ids(self) -> tuple[int, ...]: ...

    @property
    def prompts(self) -> Sequence[Sequence[int]]: ...

    def reward(self, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        """r of completions that ended, without their stop token, given the numbers of their prompts, ``[N]``."""
        ...

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text."""
        ...


@runtime_checkable
class Answered(Protocol):
    """A task that knows all its right answers; every other completion is worth 0."""

    def answers(self, prompt: int, /) -> list[list[int]]:
        """Every right completion of a prompt, without its stop token."""
        ...


@dataclass(frozen=True)
class Sums:
    """Letters that add up to the prompt: of ``letters`` letters a, b, …, worth 0, 1, …, modulo their number.

    Small enough to list: with four letters and five tokens there are 1 365 sequences for each prompt.
    A right answer of more letters is worth more: 1 for a single one, and ½ more for each further one.

    Args:
        letters: how many there are, and how many prompts.

    Raises:
        ValueError: unless there are 2 to 26 letters.
    """

    letters: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.letters <= 26:
            raise ValueError(f"Sums: letters must lie between 2 and 26, got {self.letters}")

    @property
    def n_tokens(self) -> int:
        return self.letters + 1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (self.letters,)

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        return [[total] for total in range(self.letters)]

    def reward(self, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        values = [
            0.5 + 0.5 * len(y) if y and sum(y) % self.letters == x else 0.0
            for x, y in zip(prompts, completions, strict=True)
        ]
        return np.array(values, dtype=np.float64)

    def text(self, tokens: Sequence[int]) -> str:
        return "".join("abcdefghijklmnopqrstuvwxyz"[token] if token < self.letters else "." for token in tokens)


ALPHABET = "0123456789+-="
EXPRESSION = re.compile(r"(0|[1-9]\d?)([+-])(0|[1-9]\d?)")


@dataclass(frozen=True)
class Expressions:
    """Sums and differences of two numbers from 0 to 99 with a given value, character by character.

    The prompt is ``33=``, right answers are ``a+b`` and ``c-b``, some hundred for each, all worth 1. With
    p the share of right answers under a prior, log Z(x) = log(1 − p + p e^(1/β)) exactly.

    Args:
        low, high: values asked for, from the first to the last.

    Raises:
        ValueError: unless 0 ≤ low ≤ high ≤ 99.
    """

    low: int = 10
    high: int = 99

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 99:
            raise ValueError(f"Expressions: needs 0 <= low <= high <= 99, got low={self.low} high={self.high}")

    @property
    def n_tokens(self) -> int:
        return len(ALPHABET) + 1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return (len(ALPHABET),)

    @property
    def prompts(self) -> Sequence[Sequence[int]]:
        return [encoded(f"{value}=") for value in range(self.low, self.high + 1)]

    def reward(self, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        values = [value_of(self.text(y)) == self.low + x for x, y in zip(prompts, completions, strict=True)]
        return np.array(values, dtype=np.float64)

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(ALPHABET[token] if token < len(ALPHABET) else "." for token in tokens)

    def answers(self, prompt: int) -> list[list[int]]:
        """Every right completion of a prompt, without its stop token."""
        value = self.low + prompt
        sums = [f"{a}+{value - a}" for a in range(max(0, value - 99), min(value, 99) + 1)]
        return [encoded(text) for text in (*sums, *(f"{value + b}-{b}" for b in range(100 - value)))]


def encoded(text: str) -> list[int]:
    """Characters as tokens; raises ValueError for one that is not in the alphabet."""
    return [ALPHABET.index(character) for character in text]


def value_of(text: str) -> int | None:
    """What an expression is worth; None if it is none."""
    found = EXPRESSION.fullmatch(text)
    if found is None:
        return None
    a, sign, b = found.groups()
    return int(a) + int(b) if sign == "+" else int(a) - int(b)
