"""Competitors in processes of their own, which take turns: each does nothing until it is told to train."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.grids_runs import Cell, task_of
from experiments.benchmarks.peers import OURS, command_of

HIDDEN = ("PYTHONPATH", "PYTHONHOME")  # would show peers our packages, one of which has torchgfn's name
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"), "1")
TOLD = 600  # characters of what a process that died has said


@dataclass(frozen=True)
class Window:
    """What training took for a while.

    Attributes:
        iterations: number of them.
        cpu, wall: seconds.
        steps: of all trajectories together.
        memory: largest resident memory of the process so far, MiB; 0 if it was not asked for.
        load: the machine's load average after it.
    """

    iterations: int
    cpu: float
    wall: float
    steps: int
    memory: float = 0.0
    load: float = 0.0


class Competitor:
    """A process that trains one cell, in one thread.

    Args:
        side: who it is, such as ``ours`` or ``gfnx-flat``.
        cell: what it trains.
        weights: file of weights to begin with; None leaves it its own.
        rates: learning rates of networks and of log Z.
        seed: of its weights and trajectories.
        config: further overrides, for our own side alone.

    Attributes:
        setup: CPU seconds until it could begin.
        first: its first iteration, in which some compile.
        versions: of its packages.

    Raises:
        RuntimeError: if it cannot be installed, or dies; the message has the end of what it said.
    """

    def __init__(
        self,
        side: str,
        cell: Cell,
        weights: Path | None = None,
        rates: tuple[float, float] = (0.0, 0.0),
        seed: int = 0,
        config: Sequence[str] = (),
    ):
        self.side = side
        command, variant = command_of(side)
        task = task_of(cell, config, rates, seed)
        task |= {"variant": variant, "weights": None if weights is None else str(weights.resolve())}
        inherited = {name: value for name, value in os.environ.items() if side == OURS or name not in HIDDEN}
        self._folder = tempfile.TemporaryDirectory()
        self._said = Path(self._folder.name) / "said"
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [*command, json.dumps(task)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**inherited, **ONE_THREAD},
            )
        try:
            ready = self._answer()
        except RuntimeError:
            self.close()
            raise
        self.setup, self.versions = float(ready["setup"]), dict(ready["versions"])
        self.first = Window(**ready["first"], load=os.getloadavg()[0])

    def __enter__(self) -> Competitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def train(self, **limit: float) -> Window:
        """Train for ``seconds`` or ``iterations``, at least one.

        Raises:
            RuntimeError: if it dies.
        """
        return Window(**self._ask(limit), load=os.getloadavg()[0])

    def keep(self, path: Path) -> None:
        """Have it write its weights now, in the form that ``weights`` takes.

        Raises:
            RuntimeError: if it dies.
        """
        self._ask({"keep": str(path.resolve())})

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # what it died of is told below
            print(json.dumps(order), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        said = " ".join(self._said.read_text(errors="replace").split())[-TOLD:]
        raise RuntimeError(f"{self.side} died with code {self._process.returncode}: …{said}")

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()
        self._folder.cleanup()
