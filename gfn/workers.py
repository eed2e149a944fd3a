"""Processes that each compute one call at a time, and can be killed with whatever they have started."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import weakref
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class Failure:
    """Why a call gave nothing: a kind to count, and the reason in full."""

    kind: str
    reason: str


class Task(Protocol):
    """What the processes compute: picklable, and failing by what it returns rather than by raising."""

    def __call__(self, call: Any, /) -> Any: ...


@dataclass
class _Worker:
    process: SpawnProcess
    link: Connection
    ready: bool = False
    number: int | None = None  # of the call it computes
    deadline: float = float("inf")


class Workers:
    """Processes that compute calls, in any order, whose outcomes come in the order of the calls.

    A process that dies or takes too long is replaced. They are started afresh rather than forked, which
    is safe with threads, when there is work for them, and end with :meth:`close` or with this object.

    Args:
        task: computes a call.
        count: number of processes.
        time_limit: seconds for one call.
    """

    def __init__(self, task: Task, count: int, time_limit: float) -> None:
        self._task, self._count, self._time_limit = task, count, time_limit
        self._members: list[_Worker] = []
        weakref.finalize(self, _end_all, self._members)

    def run(self, calls: Sequence[Any]) -> Generator[Any | Failure]:
        """What each call returns, or its failure: ``time limit`` or ``worker died``.

        When it is closed early, the processes that are at work are ended.

        Raises:
            RuntimeError: if a process does not start.
        """
        waiting, done = deque(enumerate(calls)), dict[int, Any | Failure]()
        try:
            for turn in range(len(calls)):
                while turn not in done:
                    self._feed(waiting)
                    done.update(self._collected())
                yield done.pop(turn)
        finally:
            for worker in [worker for worker in self._members if worker.number is not None]:
                self._members.remove(worker)
                _end(worker)

    def close(self) -> None:
        """End the processes, whatever they do."""
        _end_all(self._members)

    def _feed(self, waiting: deque[tuple[int, Any]]) -> None:
        free = [worker for worker in self._members if worker.number is None]
        for _ in range(min(len(waiting) - len(free), self._count - len(self._members))):
            self._members.append(_started(self._task))
        for worker in free:
            if worker.ready and waiting:
                number, call = waiting.popleft()
                worker.number, worker.deadline = number, time.monotonic() + self._time_limit
                with suppress(OSError):  # it has died since; the call fails when that is noticed
                    worker.link.send(call)

    def _collected(self) -> dict[int, Any | Failure]:
        """Wait until something happens; outcomes by the numbers of their calls."""
        deadline = min(worker.deadline for worker in self._members)
        patience = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        wait([part for worker in self._members for part in (worker.link, worker.process.sentinel)], patience)
        done: dict[int, Any | Failure] = {}
        for worker in list(self._members):
            number = worker.number
            outcome = self._outcome(worker)
            if number is not None and outcome is not None:
                done[number] = outcome
        return done

    def _outcome(self, worker: _Worker) -> Any | Failure | None:
        """What became of a worker's call; None if it has none, or is still at work."""
        outcome: Any | Failure | None = None
        try:
            if worker.link.poll():
                outcome = worker.link.recv()
                worker.ready, worker.number, worker.deadline = True, None, float("inf")
                return outcome
            if worker.process.is_alive():
                if time.monotonic() < worker.deadline:
                    return None
                outcome = Failure("time limit", f"it took longer than the limit of {self._time_limit:g} s")
        except (EOFError, OSError):
            pass  # it died
        self._members.remove(worker)
        _end(worker)
        if not worker.ready:
            raise RuntimeError(
                f"a worker process ended with exit code {worker.process.exitcode} before it could start; a script "
                'that uses workers has to guard its start by `if __name__ == "__main__":`; or give workers=0'
            )
        return outcome or Failure("worker died", f"its process ended with exit code {worker.process.exitcode}")


def _started(task: Task) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    process = context.Process(target=_serve, args=(its, task))
    process.start()
    its.close()  # the process has one of its own; with this one open, nobody would see it close
    return _Worker(process, ours)


def _serve(link: Connection, task: Task) -> None:
    """The life of a worker: say that it is ready, then answer calls until nobody asks."""
    if os.name == "posix":
        os.setsid()  # so that it can be killed with the processes it starts
    torch.set_num_threads(1)  # there are as many workers as are meant to compute at once
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is for the process that asks
    with suppress(EOFError, OSError):
        link.send(None)
        while True:
            link.send(task(link.recv()))


def _end(worker: _Worker) -> None:
    if worker.ready and os.name == "posix" and worker.process.is_alive():
        with suppress(ProcessLookupError):
            os.killpg(worker.process.pid or 0, signal.SIGKILL)
    worker.process.kill()
    worker.process.join()
    worker.link.close()


def _end_all(workers: list[_Worker]) -> None:
    while workers:
        _end(workers.pop())
