"""A competitor in a process of its own: told line by line on its standard input what to do, it does nothing unasked.

It runs where this project is not installed, and so needs the standard library and NumPy alone. Weights go
between competitors as NumPy arrays by these names, matrices ``[out, in]``: ``trunk.0.weight``, ``trunk.0.bias``,
``trunk.1.weight``, …, ``forward.weight``, ``forward.bias``, ``backward.weight``, ``backward.bias``, ``log_z``. The
last action of ``forward`` is to stop; ``backward`` has a row for it too, which means nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Arrays = Mapping[str, "np.ndarray[Any, Any]"]


class Player(Protocol):
    """A trainer of one cell.

    Attributes:
        steps: number of steps of all trajectories so far, the last ones included.
        versions: of the packages that matter.
    """

    steps: int
    versions: dict[str, str]

    def train(self, stop: Callable[[], bool]) -> None:
        """Train, asking after every iteration whether to stop."""
        ...

    def weights(self) -> Arrays:
        """The weights now."""
        ...


class Watch:
    """Asked after every iteration whether to stop, it counts, and takes the time when it says so."""

    def __init__(self, seconds: float, iterations: int):
        self.seconds, self.limit, self.iterations = seconds, iterations, 0
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def __call__(self) -> bool:
        self.iterations += 1
        wall = time.perf_counter() - self.wall
        done = wall >= self.seconds or self.iterations >= self.limit
        if done:
            self.cpu, self.wall = time.process_time() - self.cpu, wall
        return done


def window(player: Player, order: Mapping[str, Any]) -> dict[str, float]:
    """Train for a number of seconds or of iterations: what it took, and the number of steps."""
    before = player.steps
    watch = Watch(order.get("seconds", float("inf")), order.get("iterations", sys.maxsize))
    player.train(watch)
    return {"iterations": watch.iterations, "cpu": watch.cpu, "wall": watch.wall, "steps": player.steps - before}


def peak_memory() -> float:
    """Largest resident memory of this process so far, in MiB; on Linux alone, elsewhere 0.

    What ``getrusage`` says begins with that of the process that started this one.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def write(path: Path, weights: Arrays) -> None:
    """Put weights into a file, from which ``numpy.load`` reads them."""
    arrays: dict[str, Any] = dict(weights)
    np.savez(path, **arrays)


def play(make: Callable[[Mapping[str, Any], Arrays | None], Player]) -> None:
    """Make the player of the task in the first argument, train one iteration, and then do what each line says.

    Lines are JSON: ``{"seconds": 2}`` or ``{"iterations": 100}`` to train, ``{"keep": path}`` to write the weights.
    Each is answered by a line of JSON. What libraries print goes to the standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.argv[1])
    given = None if task["weights"] is None else dict(np.load(task["weights"]))

    def answer(value: Mapping[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    player = make(task, given)
    setup = time.process_time()
    answer({"setup": setup, "first": window(player, {"iterations": 1}), "versions": player.versions})
    for line in sys.stdin:
        order = json.loads(line)
        if "keep" in order:
            write(Path(order["keep"]), player.weights())
            answer({})
        else:
            answer({**window(player, order), "memory": peak_memory()})
