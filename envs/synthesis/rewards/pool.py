"""Any reward in worker processes that can be killed, and an explicit policy for the molecules it fails on."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import numpy as np

from envs.synthesis.rewards.reward import Score, Values, require_values
from gfn.environment import RewardError
from gfn.workers import Failure, Workers

Row = dict[str, float]  # terms of one molecule
Call = tuple[list[str], bool]  # molecules, and whether all terms are wanted


class Pool:
    """A reward computed by worker processes, with a time limit, retries, and a policy for failures.

    A call that takes too long is killed with its worker, one that ends its worker (a crash of native
    code, too little memory) is noticed, and both workers are replaced. Results do not depend on the
    number of workers, which start with the first call and end with :meth:`close`, or with the object.
    They are started afresh, so the reward has to be picklable, and a script has to guard its start by
    ``if __name__ == "__main__":``.

    Args:
        reward: a reward, or a score if ``signed``.
        workers: 0 computes in this process, where nothing can be killed: no time limit holds, and a
            crash ends the program.
        time_limit: seconds for one call on one batch, what the reward loads when first called included.
        retries: how often a molecule is tried again that failed by an exception or by the death of its
            worker. One that ran out of time is not.
        batch: molecules in one call. Those of a batch that failed are tried one by one.
        on_failure: the value of a molecule that failed, whose other terms are NaN; ``mask``: not known, and what led
            to it is left out of the update. Default: raise.
        signed: whether the values may be negative.

    Attributes:
        failures: how many molecules got ``on_failure``, by reason: ``time limit``, ``worker died`` or the
            name of an exception, RewardError for values that are no legal rewards.

    Raises:
        ValueError: if a number does not fit, or the reward cannot be pickled.
        RewardError: when called, without ``on_failure``, naming the molecule that failed and why.
        RuntimeError: when called, if no worker starts.
    """

    def __init__(
        self,
        reward: Score,
        workers: int = 2,
        time_limit: float = 60.0,
        retries: int = 1,
        batch: int = 1,
        on_failure: float | Literal["mask"] | None = None,
        signed: bool = False,
    ) -> None:
        _require_numbers(workers, time_limit, retries, batch, on_failure, signed)
        self.reward, self.workers, self.time_limit = reward, workers, time_limit
        self.retries, self.batch, self.on_failure, self.signed = retries, batch, on_failure, signed
        self.failures: Counter[str] = Counter()
        self._payload = _pickled(reward) if workers else b""
        self._workers: Workers | None = None

    @property
    def name(self) -> str:
        """That of the reward."""
        return self.reward.name

    def __repr__(self) -> str:
        """What the values depend on."""
        return f"Pool({self.reward!r}, on_failure={self.on_failure})"

    def __call__(self, smiles: Sequence[str]) -> Values:
        return np.array([row[self.name] for row in self._rows(smiles, False)], dtype=np.float64)

    def terms(self, smiles: Sequence[str]) -> dict[str, Values]:
        rows = self._rows(smiles, True)
        names = dict.fromkeys(name for row in rows for name in row) or (self.name,)
        return {name: np.array([row.get(name, math.nan) for row in rows], dtype=np.float64) for name in names}

    def close(self) -> None:
        """End the workers, whatever they do; the next call starts new ones."""
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the workers, which a copy starts for itself."""
        return {**self.__dict__, "_workers": None}

    def _rows(self, smiles: Sequence[str], whole: bool) -> list[Row]:
        """The row of each molecule, after as many rounds as failures take."""
        rows: dict[int, Row] = {}
        pending = [list(range(i, min(i + self.batch, len(smiles)))) for i in range(0, len(smiles), self.batch)]
        for rounds_left in reversed(range(1 + self.retries + (self.batch > 1))):
            again: list[list[int]] = []
            calls = [([smiles[i] for i in batch], whole) for batch in pending]
            with closing(self._outcomes(calls)) as outcomes:
                for batch, outcome in zip(pending, outcomes, strict=True):
                    if not isinstance(outcome, Failure):
                        rows.update(zip(batch, outcome, strict=True))
                    elif len(batch) > 1 or (rounds_left and outcome.kind != "time limit"):
                        again += [[i] for i in batch]
                    else:
                        rows[batch[0]] = self._failed(smiles[batch[0]], outcome)
            pending = again
        return [rows[i] for i in range(len(smiles))]

    def _outcomes(self, calls: Sequence[Call]) -> Generator[list[Row] | Failure]:
        if self.workers == 0:
            return (computed(self.reward, call, self.signed) for call in calls)
        if self._workers is None:
            self._workers = Workers(_Task(self._payload, self.signed), self.workers, self.time_limit)
        return self._workers.run(calls)

    def _failed(self, smiles: str, failure: Failure) -> Row:
        if self.on_failure is None:
            raise RewardError(
                f"{self.name} failed for {smiles}: {failure.reason}; to go on, give such molecules a value by "
                "on_failure=, or leave them out by on_failure=mask"
            )
        self.failures[failure.kind] += 1
        return {self.name: math.nan if isinstance(self.on_failure, str) else self.on_failure}


@dataclass(frozen=True)
class _Task:
    """Computes a pickled reward, which is unpickled by the first call, whose failure can be told."""

    payload: bytes
    signed: bool

    def __call__(self, call: Call, /) -> list[Row] | Failure:
        try:
            reward = _unpickled(self.payload)
        except Exception as error:
            return _failure(error)
        return computed(reward, call, self.signed)


def computed(reward: Score, call: Call, signed: bool) -> list[Row] | Failure:
    """The terms of some molecules, or their values only; an exception becomes a failure, which any process can read."""
    smiles, whole = call
    try:
        terms = reward.terms(smiles) if whole else {reward.name: reward(smiles)}
        values = {name: np.asarray(term, dtype=np.float64) for name, term in terms.items()}
        values[reward.name] = require_values(reward.name, terms[reward.name], smiles, signed=signed)
        return [{name: float(term[i]) for name, term in values.items()} for i in range(len(smiles))]
    except (Exception, SystemExit) as error:
        return _failure(error)


def _failure(error: BaseException) -> Failure:
    cause = error.__cause__ or error
    said = str(error) if isinstance(error, RewardError) else f"it raised {type(error).__name__}: {error}"
    return Failure(type(cause).__name__, said)


@lru_cache(maxsize=1)
def _unpickled(payload: bytes) -> Score:
    """The reward of a worker, kept from call to call with whatever it has loaded."""
    return pickle.loads(payload)


def _pickled(reward: Score) -> bytes:
    try:
        return pickle.dumps(reward)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"Pool: {reward.name} cannot be sent to another process ({error}); define its functions at the top level "
            "of a module that can be imported, or give workers=0"
        ) from error


def _require_numbers(
    workers: int, time_limit: float, retries: int, batch: int, on_failure: float | str | None, signed: bool
) -> None:
    value = on_failure if isinstance(on_failure, int | float) else 0.0 if on_failure in (None, "mask") else math.nan
    problems = {
        f"workers ≥ 0, got {workers}": workers < 0,
        f"time_limit > 0 seconds, got {time_limit}": not 0 < time_limit < math.inf,
        f"retries ≥ 0, got {retries}": retries < 0,
        f"batch ≥ 1, got {batch}": batch < 1,
        f"on_failure: mask or finite, ≥ 0 unless signed, got {on_failure}": not math.isfinite(value)
        or (value < 0 and not signed),
    }
    wrong = [text for text, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise ValueError(f"Pool: expected {'; '.join(wrong)}")
