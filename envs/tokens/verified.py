"""Values of completions in batches, computed by processes that can be killed."""

from __future__ import annotations

import math
import pickle
import reprlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from envs.tokens.verifiers import Verifier
from gfn.environment import RewardError
from gfn.workers import Failure, Workers

Pair: TypeAlias = tuple[str, str]  # completion and answer


class Verified:
    """Values of completions under a verifier, which may fail, hang or crash.

    With workers, each call runs in a process that is killed when its time is over, and replaced. They
    start when first needed, load the verifier before its time counts, and end with :meth:`close` or
    with the object. Equal pairs are verified once, and the latest values kept.

    A failure is never a wrong answer: by default it raises.

    Args:
        verifier: function of a completion and an answer, to a finite number; for workers it has to be
            importable, so no lambda.
        workers: 0 verifies in this process, where no time limit holds and a crash ends the program.
        time_limit: seconds for one completion.
        retries: how often a completion is tried again that failed by an exception, by a value that is no
            finite number, or by the death of its worker. One that ran out of time is not.
        on_failure: the value of a completion that failed; ``mask``: not known, and what led to it is left out of the
            update. Default: raise.
        memory: how many values are kept, those of failures included.

    Attributes:
        failures: how many completions got ``on_failure``, by reason: ``time limit``, ``worker died``,
            ``not a number`` or the name of an exception.

    Raises:
        ValueError: if a number does not fit, or the verifier cannot be pickled for workers.
        RewardError: when called, without ``on_failure``, naming completion, answer and reason.
        RuntimeError: when called, if no worker starts.
    """

    def __init__(
        self,
        verifier: Verifier,
        workers: int = 0,
        time_limit: float = 10.0,
        retries: int = 1,
        on_failure: float | Literal["mask"] | None = None,
        memory: int = 100_000,
    ) -> None:
        _require_numbers(workers, time_limit, retries, on_failure, memory)
        self.verifier, self.workers, self.time_limit = verifier, workers, time_limit
        self.retries, self.on_failure, self.memory = retries, on_failure, memory
        self.failures: Counter[str] = Counter()
        self._payload = _pickled(verifier) if workers else b""
        self._workers: Workers | None = None
        self._kept: LRUCache[Pair, float] = LRUCache(memory)

    def __repr__(self) -> str:
        """What the values depend on."""
        return f"Verified({_name(self.verifier)}, on_failure={self.on_failure})"

    def __call__(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """The value of each completion and answer, ``[N]``."""
        values = {pair: self._kept[pair] for pair in set(pairs) if pair in self._kept}
        made = self._computed([pair for pair in dict.fromkeys(pairs) if pair not in values])
        self._kept.update(made)
        values |= made
        return np.array([values[pair] for pair in pairs], dtype=np.float64)

    def close(self) -> None:
        """End the workers, whatever they do; the next call starts new ones."""
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but workers and kept values, which a copy makes for itself."""
        return {**self.__dict__, "_workers": None, "_kept": LRUCache[Pair, float](self.memory)}

    def _computed(self, pairs: list[Pair]) -> dict[Pair, float]:
        """The value of each of some distinct pairs, after as many rounds as failures take."""
        values: dict[Pair, float] = {}
        for rounds_left in reversed(range(1 + self.retries)):
            again: list[Pair] = []
            with closing(self._outcomes(pairs)) as outcomes:
                for pair, outcome in zip(pairs, outcomes, strict=True):
                    if not isinstance(outcome, Failure):
                        values[pair] = outcome
                    elif rounds_left and outcome.kind != "time limit":
                        again.append(pair)
                    else:
                        values[pair] = self._failed(pair, outcome)
            pairs = again
        return values

    def _outcomes(self, pairs: list[Pair]) -> Generator[float | Failure]:
        if self.workers == 0:
            return (outcome_of(self.verifier, pair) for pair in pairs)
        if self._workers is None:
            self._workers = Workers(_Task(self._payload), self.workers, self.time_limit)
        return self._workers.run(pairs)

    def _failed(self, pair: Pair, failure: Failure) -> float:
        if self.on_failure is None:
            completion, answer = map(_SHORT.repr, pair)
            raise RewardError(
                f"{_name(self.verifier)} failed for the completion {completion} and the answer {answer}: "
                f"{failure.reason}; to go on, give such completions a value by on_failure=, "
                "or leave them out by on_failure=mask"
            )
        self.failures[failure.kind] += 1
        return math.nan if isinstance(self.on_failure, str) else self.on_failure


def outcome_of(verifier: Verifier, pair: Pair) -> float | Failure:
    """What a verifier says; an exception, or anything but a finite number, becomes a failure."""
    try:
        value: Any = verifier(*pair)
    except (Exception, SystemExit) as error:
        return _raised(error)
    if not isinstance(value, Real | np.bool_) or not math.isfinite(value):
        return Failure("not a number", f"expected a finite number, got {_SHORT.repr(value)}")
    return float(value)


@dataclass(frozen=True)
class _Task:
    """Calls a pickled verifier; what keeps it from loading is told by the calls."""

    payload: bytes

    def __call__(self, pair: Pair, /) -> float | Failure:
        try:
            verifier = _loaded(self.payload)
        except Exception as error:
            return _raised(error)
        return outcome_of(verifier, pair)

    def __reduce__(self) -> tuple[Callable[[bytes], _Task], tuple[bytes]]:
        return _arrived, (self.payload,)


def _arrived(payload: bytes) -> _Task:
    """The task in a worker that starts: the verifier is loaded before any clock runs."""
    with suppress(Exception):
        _loaded(payload)
    return _Task(payload)


@lru_cache(maxsize=1)
def _loaded(payload: bytes) -> Verifier:
    return pickle.loads(payload)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 400


def _raised(error: BaseException) -> Failure:
    return Failure(type(error).__name__, f"it raised {type(error).__name__}: {error}")


def _name(verifier: Verifier) -> str:
    return getattr(verifier, "__name__", type(verifier).__name__)


def _pickled(verifier: Verifier) -> bytes:
    try:
        return pickle.dumps(verifier)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"Verified: {_name(verifier)} cannot be sent to another process ({error}); define it at the top level of "
            "a module that can be imported, or give workers=0"
        ) from error


def _require_numbers(
    workers: int, time_limit: float, retries: int, on_failure: float | str | None, memory: int
) -> None:
    value = on_failure if isinstance(on_failure, int | float) else 0.0 if on_failure in (None, "mask") else math.nan
    problems = {
        f"workers ≥ 0, got {workers}": workers < 0,
        f"time_limit > 0 seconds, got {time_limit}": not 0 < time_limit < math.inf,
        f"retries ≥ 0, got {retries}": retries < 0,
        f"on_failure: mask or finite, got {on_failure}": not math.isfinite(value),
        f"memory ≥ 1 values, got {memory}": memory < 1,
    }
    wrong = [text for text, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise ValueError(f"Verified: expected {'; '.join(wrong)}")
