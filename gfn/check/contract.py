"""How a clause of a contract is examined, and how a breach is told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from gfn.environment import Environment
from gfn.states import States

S = TypeVar("S", bound=States)


class ContractError(AssertionError):
    """An environment or a policy breaks its contract; the message begins with the clause it breaks."""


class Contract(Generic[S]):
    """One examination of one environment.

    Attributes:
        env: the environment.
        generator: source of all randomness.
        tolerance: largest difference, absolute or relative, between floats that count as equal.
        kept: names of the clauses examined so far, in order.
    """

    def __init__(self, env: Environment[S], seed: int, tolerance: float):
        self.env, self.tolerance = env, tolerance
        self.generator = torch.Generator(env.device).manual_seed(seed)
        self.kept: list[str] = []

    @contextmanager
    def clause(self, name: str) -> Generator[None]:
        """Examine a clause: any error in the body is a breach of it."""
        try:
            yield
        except ContractError as breach:
            raise ContractError(f"{name}: {breach}") from breach.__cause__
        except Exception as error:
            raise ContractError(f"{name}: expected an answer, came {type(error).__name__}: {error}") from error
        if name not in self.kept:
            self.kept.append(name)

    def require(
        self, ok: Tensor | bool, expected: str, came: str, hint: str, at: S | None = None, instead: S | None = None
    ) -> None:
        """Raise a :class:`ContractError` unless every row is ``ok``.

        Args:
            ok: bool, or bool ``[N]``.
            expected: what the contract promises.
            came: what came.
            hint: how to mend it.
            at: the states asked about, ``[N]``; the first bad one is shown.
            instead: the states that came, ``[N]``; likewise.
        """
        rows = torch.as_tensor(ok).reshape(-1)
        if bool(rows.all()):
            return
        first = int((~rows).nonzero()[0, 0])
        shown = "" if instead is None else f" {self._show(instead, first)}"
        where = "" if at is None else f" in state {self._show(at, first)} ({int((~rows).sum())} of {len(rows)} rows)"
        raise ContractError(f"expected {expected}; came {came}{shown}{where}. Hint: {hint}")

    def _show(self, states: S, row: int) -> str:
        one = states[row : row + 1]
        try:
            return f"[{self.env.describe(one)[0]}]"
        except Exception:
            return repr(one)

    def require_same(self, name: str, value: Any, wanted: Any, came: str, hint: str, at: S | None = None) -> None:
        """Require that two batches (tensors or states) agree row by row, dtypes included."""
        differs, what = difference(value, wanted, self.tolerance)
        states = value if at is not None and type(value) is type(at) and len(value) == len(at) else None
        self.require(~differs, name, came + (f" ({what})" if what else ""), hint, at, states)

    def require_pure(self, name: str, ask: Callable[[S, Tensor], Any], states: S) -> None:
        """Require that a method is a function of each row and of nothing else, and leaves its argument alone.

        Args:
            name: of the method, for the message.
            ask: call it for these rows of ``states``, given both the states of the rows and their numbers.
            states: all the rows.
        """
        everything = torch.arange(len(states), device=self.env.device)
        given, before = states[everything], copy.deepcopy(states)
        first = ask(given, everything)
        kept = copy.deepcopy(first)
        self.require_same(
            f"{name} to leave the states it is given as they were",
            given,
            before,
            "them changed in place, to",
            "build new tensors, as in x + move, instead of writing into those of the argument",
            before,
        )
        for rows in self.subsets(len(states)):
            self.require_same(
                f"{name} to answer for each state alone",
                ask(before[rows], rows),
                kept[rows],
                "another answer when the batch holds other rows",
                "do not mix rows: no statistics over the batch, no state from earlier calls, no randomness",
                before[rows],
            )
        self.require_same(
            f"{name} to leave its earlier answers alone",
            first,
            kept,
            "an earlier answer changed by a later call",
            "return a new tensor each time, not a buffer that is used again",
            before,
        )
        self.require_same(
            f"{name} to give the same answer whenever it is asked",
            ask(before, everything),
            kept,
            "another answer the second time",
            "keep nothing between calls, and draw nothing at random",
            before,
        )

    def require_tensor(
        self, name: str, ask: Callable[[S], Tensor], states: S, shape: tuple[int, ...], *dtypes: torch.dtype
    ) -> Tensor:
        """Require that a method gives tensors of this form and is pure; its answer."""
        answer = ask(copy.deepcopy(states))
        self.require_form(name, answer, shape, *dtypes)
        self.require_pure(name, lambda some, rows: ask(some), states)
        return answer

    def require_form(self, name: str, value: Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
        """Require a tensor of this shape and one of these dtypes (none: any floating point)."""
        wanted = " or ".join(map(str, dtypes)) or "a float"
        right = value.dtype in dtypes if dtypes else value.is_floating_point()
        hint = "one row for each state, one dtype throughout"
        self.require(tuple(value.shape) == shape, f"{name} of shape {shape}", str(tuple(value.shape)), hint)
        self.require(right, f"{name} of dtype {wanted}", str(value.dtype), hint)

    def some(self, n: int, most: int) -> Tensor:
        """At most ``most`` of n rows, in random order."""
        return torch.randperm(n, generator=self.generator, device=self.env.device)[:most]

    def subsets(self, n: int) -> Sequence[Tensor]:
        """Half the rows in random order, one row twice, and a few rows alone."""
        order = self.some(n, n)
        return [order[: max(1, n // 2)], order[:1].repeat(2), *order[:3].split(1)]


def parts(states: Any) -> dict[str, Any]:
    """The data a batch is made of: itself if a tensor, else its fields, those of batches within it as ``a.b``."""
    if isinstance(states, Tensor):
        return {"": states}
    if not is_dataclass(states):
        return dict(vars(states))
    found: dict[str, Any] = {}
    for name in (f.name for f in fields(states)):
        value = getattr(states, name)
        found |= (
            {f"{name}.{k}".rstrip("."): v for k, v in parts(value).items()} if is_dataclass(value) else {name: value}
        )
    return found


def form(states: Any) -> str:
    """What a batch is made of, whatever the number of rows: for messages, and to compare."""
    inside = [
        f"{name} {str(part.dtype).removeprefix('torch.')} {list(part.shape[1:])}".strip()
        for name, part in tensors(states).items()
    ]
    return f"{type(states).__name__}({', '.join(inside)})"


def tensors(states: Any) -> dict[str, Tensor]:
    """Those parts of a batch that are tensors."""
    return {name: part for name, part in parts(states).items() if isinstance(part, Tensor)}


def difference(value: Any, wanted: Any, tolerance: float) -> tuple[Tensor, str]:
    """Which rows of two batches differ, bool ``[N]``, and if all do because of their form, in what."""
    n = len(wanted)
    everything = torch.ones(n, dtype=torch.bool)
    if type(value) is not type(wanted) or len(value) != n:
        got, asked = type(value).__name__, type(wanted).__name__
        return everything, f"{got} of {len(value)} rows for {asked} of {n}"
    if form(value) != form(wanted):
        return everything, f"{form(value)} for {form(wanted)}"
    differs, ours = ~everything, parts(value)
    for name, part in parts(wanted).items():
        differs = differs | _rows_differ(ours[name], part, n, tolerance)
    return differs, ""


def _rows_differ(part: Any, wanted: Any, n: int, tolerance: float) -> Tensor:
    if isinstance(part, Tensor) and part.equal(wanted):
        return torch.zeros(n, dtype=torch.bool)
    if isinstance(part, Tensor) and part.ndim > 0 and len(part) == n:
        if part.is_floating_point():
            equal = torch.isclose(part, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        else:
            equal = part == wanted
        return ~equal.reshape(n, max(1, equal.numel() // max(1, n))).all(1).cpu()
    if isinstance(part, list | tuple) and len(cast("list[Any]", part)) == n:
        pairs = zip(cast("list[Any]", part), cast("list[Any]", wanted), strict=False)
        unequal = [not _equal(a, b) for a, b in pairs]
        return torch.tensor(unequal + [True] * (n - len(unequal)), dtype=torch.bool)
    return torch.full((n,), not _equal(part, wanted))


def _equal(a: Any, b: Any) -> bool:
    return a.equal(b) if isinstance(a, Tensor) else bool(a == b)
