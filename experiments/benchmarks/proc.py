"""What Linux tells about processes: who started whom, and how much memory they hold."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process, told from a later one of the same number by when it was started, in ticks of the kernel's clock."""

    pid: int
    born: int

    @property
    def running(self) -> bool:
        """Whether it is there; one that has ended and not been waited for is not."""
        fields = _stat(self.pid)
        return bool(fields) and fields[0] not in "ZX" and int(fields[19]) == self.born

    @property
    def name(self) -> str:
        """The first word of its command line, which it may set itself; empty if it has ended."""
        with suppress(OSError):
            return (PROC / str(self.pid) / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        return ""

    @property
    def memory(self) -> tuple[float, float]:
        """Resident memory of its own and shared memory that it has touched, MiB; zeros if it has ended."""
        found = {"RssAnon": 0.0, "RssShmem": 0.0}
        with suppress(OSError):
            for line in (PROC / str(self.pid) / "status").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in found:
                    found[key] = int(value.split()[0]) / 1024
        return found["RssAnon"], found["RssShmem"]

    def send(self, number: int) -> None:
        """Send it a signal, if it is there."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def of(pid: int) -> Process | None:
    """The process that has this number now."""
    fields = _stat(pid)
    return Process(pid, int(fields[19])) if fields else None


def descendants(pid: int) -> list[Process]:
    """The processes that ``pid`` has started, and those that they have, as far as they run."""
    children: dict[int, list[Process]] = {}
    for directory in PROC.iterdir():
        if directory.name.isdecimal() and (fields := _stat(int(directory.name))):
            children.setdefault(int(fields[1]), []).append(Process(int(directory.name), int(fields[19])))
    found = list(children.get(pid, []))
    for process in found:  # which grows
        found += children.get(process.pid, [])
    return found


def left_of(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Those that still run after so long at most."""
    end = time.monotonic() + seconds
    while left := [process for process in processes if process.running]:
        if time.monotonic() > end:
            break
        time.sleep(0.1)
    return left


def kill(processes: Iterable[Process]) -> None:
    """Send signal 9 to each."""
    for process in processes:
        process.send(signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """Fields of its status from its state on, behind the name, which may hold anything; none if it has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
