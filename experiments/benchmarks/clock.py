"""CPU time, by what it is spent on."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """Divides the CPU time of this process among labels: each moment counts for the innermost label that is open.

    What it watches is as it was before once the clock, used as a context, is left.

    Attributes:
        spent: seconds for each label.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0
        self._undo = ExitStack()

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def enter(self, label: str) -> None:
        """From now on time counts for this label."""
        self._charge()
        self._open.append(label)

    def leave(self) -> None:
        """From now on time counts for the label that was open before, if there was one."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        now = time.process_time()
        if self._open:
            self.spent[self._open[-1]] = self.spent.get(self._open[-1], 0.0) + now - self._since
        self._since = now

    def around(self, label: str, function: Callable[P, T]) -> Callable[P, T]:
        """The same function, whose time counts for a label."""

        @wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            self.enter(label)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return timed

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Count the time of a method, of an object or of a class, for a label from now on."""
        if name in vars(owner):
            self._undo.callback(setattr, owner, name, vars(owner)[name])
        else:
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, self.around(label, getattr(owner, name)))


def cpu_of_children() -> float:
    """CPU seconds so far of the processes that this one has started and that are running; on Linux alone.

    Raises:
        OSError: elsewhere.
    """
    stats = [Path(f"/proc/{child.pid}/stat").read_text() for child in multiprocessing.active_children()]
    times = [stat.rpartition(")")[2].split()[11:13] for stat in stats]  # behind the name, which may hold anything
    return sum(int(user) + int(system) for user, system in times) / os.sysconf("SC_CLK_TCK")


def peak_memory() -> float:
    """Largest resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if sys.platform == "darwin" else peak / 1024  # bytes there, KiB elsewhere
