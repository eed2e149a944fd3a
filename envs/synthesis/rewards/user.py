"""A reward from any function of molecules."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from envs.synthesis.rewards.reward import Values, molecules, require_values
from gfn.environment import RewardError


@dataclass(frozen=True)
class Function:
    """A reward computed by your function.

    Args:
        function: of one molecule, to a number, or with ``batched`` of a list of them, to as many numbers.
            To run in other processes it has to be importable: defined in a module, not a lambda.
        name: default, that of the function.
        takes: what the function is given: ``smiles`` as they come, or RDKit ``mols``.
        batched: whether it is given lists.
        signed: whether it may be negative, so a score for a desirability and no reward.
        version: caches keep the values of different versions apart. They notice by themselves
            that the function's own source text has changed, but not what it calls.

    Raises:
        ValueError: if ``takes`` is anything else.
        RewardError: when called, if the function raises (the cause is chained), or returns anything but
            as many finite numbers, ≥ 0 unless signed; it names the function and the molecules.
    """

    function: Callable[[Any], Any] = field(repr=False)
    name: str = ""
    takes: Literal["smiles", "mols"] = "smiles"
    batched: bool = False
    signed: bool = False
    version: str = ""
    source: str = field(init=False)

    def __post_init__(self) -> None:
        if self.takes not in ("smiles", "mols"):
            raise ValueError(f"Function: expected takes to be smiles or mols, got {self.takes!r}")
        inner, arguments = _unwrapped(self.function)
        called = getattr(inner, "__name__", type(inner).__name__)
        object.__setattr__(self, "name", self.name or called)
        object.__setattr__(self, "source", f"{inner.__module__}.{called}{arguments} {_digest(inner)}")

    def __call__(self, smiles: Sequence[str]) -> Values:
        items = list(smiles) if self.takes == "smiles" else molecules(self.name, smiles)
        if self.batched:
            values = self._value(items, list(smiles))
        else:
            values = [self._checked(item, text) for item, text in zip(items, smiles, strict=True)]
        return require_values(self.name, values, smiles, signed=self.signed)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        return {self.name: self(smiles)}

    def _checked(self, item: Any, smiles: str) -> float:
        """One number; wrapped in a list, so that a list where a number belongs is told with its molecule."""
        return float(require_values(self.name, [self._value(item, [smiles])], [smiles], signed=self.signed)[0])

    def _value(self, item: Any, smiles: Sequence[str]) -> Any:
        try:
            return self.function(item)
        except Exception as error:
            where = (
                smiles[0] if len(smiles) == 1 else f"a batch of {len(smiles)} molecules that starts with {smiles[:1]}"
            )
            raise RewardError(f"{self.name} raised {type(error).__name__} for {where}: {error}") from error


def _unwrapped(function: Callable[[Any], Any]) -> tuple[Any, str]:
    """The function inside a partial one, and the arguments it was given."""
    if not isinstance(function, partial):
        return function, ""
    return function.func, f"{function.args}{sorted(function.keywords.items())}"


def _digest(function: Any) -> str:
    """Of the source text of a function, or of the class of a callable object; empty where there is none."""
    try:
        text = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
