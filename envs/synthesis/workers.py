"""Questions about molecules, answered here or by worker processes: the answers are the same."""

from __future__ import annotations

import multiprocessing
from collections.abc import Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from cachetools import LRUCache

from envs.synthesis.chemistry import Chemistry
from envs.synthesis.graphs import bits_of, graph_of
from envs.synthesis.retrosynthesis import Retrosynthesis
from envs.synthesis.templates import Template

REMEMBERED = 50_000  # answers kept
CHUNK = 4  # questions sent to a worker at once, at least


@dataclass(frozen=True)
class Subject:
    """Everything that answers depend on."""

    templates: tuple[Template, ...]
    blocks: tuple[str, ...]
    startable: tuple[int, ...] = ()
    prices: tuple[float, ...] = ()
    chemoselective: bool = False
    stereo: bool = False


class Expert:
    """Answers questions about one subject; what it remembers changes nothing but the time it takes."""

    def __init__(self, subject: Subject):
        self.chemistry = Chemistry(subject.templates, subject.blocks, subject.chemoselective, subject.stereo)
        self.back = Retrosynthesis(self.chemistry, {subject.blocks[i]: i for i in subject.startable}, subject.prices)

    def fits(self, smiles: str) -> Any:
        """Which slots a molecule fits, bool ``[n_slots]``."""
        return self.chemistry.fits(smiles)

    def graph(self, smiles: str) -> Any:
        """Atoms and bonds as numbers."""
        return graph_of(self.chemistry.parse(smiles))

    def bits(self, smiles: str) -> Any:
        """Numbers of the bits of the fingerprint."""
        return bits_of(self.chemistry.parse(smiles))

    def outcomes(self, parent: str, move: int, block: int) -> Any:
        """Every product of a move."""
        return self.back.outcomes(parent, move, block)

    def reacts(self, smiles: str, choices: tuple[tuple[int, int], ...]) -> bool:
        """Whether any of these moves with these blocks gives a product."""
        return any(self.back.outcomes(smiles, move, block) for move, block in choices)

    def origins(self, smiles: str, depth: int) -> Any:
        """Every edge into a molecule at a depth."""
        return self.back.origins(smiles, depth)

    def candidates(self, smiles: str) -> Any:
        """Every edge into a molecule, from parents that may be out of reach."""
        return self.back.candidates(smiles)

    def reachable(self, smiles: str, depth: int) -> bool:
        """Whether that many reactions lead to a molecule."""
        return self.back.reachable(smiles, depth)

    def cost(self, smiles: str, depth: int, step_cost: float) -> float:
        """What the cheapest synthesis of a molecule with so many reactions costs."""
        return self.back.cost(smiles, depth, step_cost)


_expert: Expert | None = None  # of a worker process


def _prepare(subject: Subject) -> None:
    global _expert
    _expert = Expert(subject)


def _answers(question: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    assert _expert is not None
    return [getattr(_expert, question)(*argument) for argument in arguments]


@dataclass
class Workers:
    """An :class:`Expert` that may be spread over processes, and remembers a bounded number of answers.

    Args:
        subject: what is asked about.
        count: worker processes; with 0, questions are answered in this one.

    Raises:
        ValueError: if ``count`` is negative.
    """

    subject: Subject
    count: int = 0
    _known: LRUCache[Hashable, Any] = field(default_factory=lambda: LRUCache(REMEMBERED), repr=False)

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"workers must not be negative, got {self.count}")
        self.expert = Expert(self.subject)
        self._pool: ProcessPoolExecutor | None = None

    def ask(self, question: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The answers to one question (a method of :class:`Expert`) about each of the arguments, in order."""
        known = {argument: self._known.get((question, argument)) for argument in arguments}
        missing = [argument for argument, answer in known.items() if answer is None]
        for argument, answer in zip(missing, self._found(question, missing), strict=True):
            known[argument] = self._known[(question, argument)] = answer
        return [known[argument] for argument in arguments]

    def _found(self, question: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        if self.count == 0 or len(arguments) <= CHUNK:
            return [getattr(self.expert, question)(*argument) for argument in arguments]
        size = max(CHUNK, -(-len(arguments) // (4 * self.count)))
        chunks = [arguments[i : i + size] for i in range(0, len(arguments), size)]
        try:
            parts = list(self._running().map(_answers, [question] * len(chunks), chunks))
        except BrokenProcessPool as error:
            self._pool = None
            raise RuntimeError(
                f"a worker process died while it was asked for the {question} of {len(arguments)} molecules, such as "
                f"{arguments[0]}; it may have run out of memory: set env.workers=0 to see where"
            ) from error
        return [answer for part in parts for answer in part]

    def _running(self) -> ProcessPoolExecutor:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")  # forking a process that runs threads may hang
            self._pool = ProcessPoolExecutor(self.count, spawn, _prepare, (self.subject,))
        return self._pool

    def close(self) -> None:
        """Let the processes go; the next question that needs them starts new ones."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def __deepcopy__(self, memo: Any) -> Workers:
        return self

    def __reduce__(self) -> tuple[type[Workers], tuple[Subject, int]]:
        return Workers, (self.subject, self.count)  # RDKit's objects and processes do not travel
