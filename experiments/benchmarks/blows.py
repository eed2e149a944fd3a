"""A run in a process of its own, which is struck: searchers are killed or frozen, and the trainer is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from experiments.benchmarks import proc
from experiments.benchmarks.endured import COMMAND, Plan
from experiments.benchmarks.proc import Process

PATIENCE = 30.0  # seconds in which the processes of a trainer that has ended must be gone
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # of Ray's; where its store was killed, they go a minute later
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "trainer": signal.SIGKILL}


@dataclass(frozen=True)
class Blow:
    """What strikes a run: a searcher is killed or frozen, or the trainer is killed.

    Attributes:
        kind: which of these.
        step: the update after which it does.
        delay: seconds after that.
    """

    kind: Literal["kill", "freeze", "trainer"]
    step: int
    delay: float


@dataclass(frozen=True)
class Weight:
    """Memory of a process: seconds since the run began, MiB of its own, and MiB of shared memory that it touched."""

    moment: float
    own: float
    shared: float


@dataclass
class Ordeal:
    """How a run went.

    Attributes:
        struck: how many blows fell, by kind.
        missed: how many came too late, since the run was over.
        resumes: times that the trainer was started again.
        replaced: searchers that were, as far as it was told of.
        trouble: what must not happen: hangs, failures, processes left behind.
        seconds: how long it took.
        memory: what processes held over time, by role and process.
    """

    struck: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIGNALS, 0))
    missed: int = 0
    resumes: int = 0
    replaced: int = 0
    trouble: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    memory: dict[tuple[str, Process], list[Weight]] = field(default_factory=dict[tuple[str, Process], list["Weight"]])


def endure(plan: Plan, blows: Sequence[Blow], directory: Path, limit: float, seed: int = 0) -> Ordeal:
    """Have a run done in ``directory``, struck by blows in order, and started again where its trainer is killed.

    Args:
        plan: what is trained.
        blows: what strikes it.
        directory: for its files; none of another run may be there.
        limit: seconds for everything, after which it counts as a hang.
        seed: of which searcher is struck.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plan.write(directory / "plan.json")
    ordeal, pending, began = Ordeal(), list(blows), time.monotonic()
    with open(directory / "output.txt", "w", encoding="utf-8") as output:
        striker = _Striker(plan, directory, ordeal, pending, began + limit, random.Random(seed), output)
        while striker.life() and not ordeal.trouble:
            ordeal.resumes += 1
    ordeal.missed, ordeal.seconds = len(pending), time.monotonic() - began
    return ordeal


class _Striker:
    def __init__(
        self, plan: Plan, directory: Path, ordeal: Ordeal, pending: list[Blow], deadline: float,
        chance: random.Random, output: IO[str],
    ) -> None:  # fmt: skip
        self.plan, self.directory, self.ordeal, self.pending = plan, directory, ordeal, pending
        self.deadline, self.chance, self.output = deadline, chance, output
        self.began = time.monotonic()
        self._due: float | None = None  # when the next blow falls, once its update is done

    def life(self) -> bool:
        """One life of the trainer; True if it was killed."""
        tidings = self.directory / "tidings.json"
        tidings.unlink(missing_ok=True)
        command = [sys.executable, "-c", COMMAND, str(self.directory)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
        process = subprocess.Popen(command, stdout=self.output, stderr=self.output, env=environment)
        told, family, killed, looked = dict[str, Any](), set[Process](), False, 0.0
        try:
            while process.poll() is None and not killed:
                told, now = _read(tidings) or told, time.monotonic()
                if now > looked + 1:
                    looked = now
                    family = {p for p in family if p.running} | set(proc.descendants(process.pid)) | _searchers(told)
                    self._weigh(process.pid, family)
                if now > self.deadline:
                    self.ordeal.trouble.append(f"it hangs, and is ended; {self._stacks(process)}")
                    return False
                killed = self._strike(process, told)
                time.sleep(0.02)
            self.ordeal.replaced += int(told.get("replaced", 0))
            if not killed and process.returncode != 0:
                self.ordeal.trouble.append(f"it failed: {self._tail()}")
        finally:
            self._bury(process, family | _searchers(told))
        return killed

    def _strike(self, process: subprocess.Popen[bytes], told: Mapping[str, Any]) -> bool:
        """Let the next blow fall if it is time; whether it hit the trainer."""
        if not self.pending or told.get("step", -1) < self.pending[0].step:
            self._due = None
            return False
        blow, now = self.pending[0], time.monotonic()
        self._due = now + blow.delay if self._due is None else self._due
        trainer, searchers = proc.of(process.pid), sorted(_searchers(told), key=lambda p: p.pid)
        victims = searchers if blow.kind != "trainer" else [trainer] if trainer is not None else []
        if now < self._due or not victims:
            return False
        self.chance.choice(victims).send(SIGNALS[blow.kind])
        self.ordeal.struck[blow.kind] += 1
        self._due = None
        del self.pending[0]
        if blow.kind == "trainer":
            process.wait()
        return blow.kind == "trainer"

    def _bury(self, process: subprocess.Popen[bytes], family: set[Process]) -> None:
        """See that nothing is left of a trainer that has ended; of one that hangs, end everything."""
        if process.poll() is None:
            process.kill()
            proc.kill(family)
        process.wait()
        proc.kill(p for p in family if p.name in AGENTS)
        left = proc.left_of(family, PATIENCE)
        if left:
            names = ", ".join(f"{p.pid} {p.name}" for p in left)
            self.ordeal.trouble.append(f"processes are left {PATIENCE:g} s after their trainer's end: {names}")
            proc.kill(left)

    def _weigh(self, pid: int, family: set[Process]) -> None:
        moment, trainer = time.monotonic() - self.began, proc.of(pid)
        roles = {trainer: "trainer"} if trainer is not None else {}
        roles |= {p: "searcher" for p in family if p.name.startswith("ray::Servant")}
        roles |= {p: "object store" for p in family if p.name.endswith("/raylet")}
        for process, role in roles.items():
            self.ordeal.memory.setdefault((role, process), []).append(Weight(moment, *process.memory))

    def _stacks(self, process: subprocess.Popen[bytes]) -> str:
        process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        return f"stacks: {self._tail()}"

    def _tail(self) -> str:
        return (self.directory / "output.txt").read_text(errors="replace")[-4000:]


def _searchers(told: Mapping[str, Any]) -> set[Process]:
    """Those that were told of and still run."""
    found = (proc.of(pid) for pid in told.get("pids", {}).values())
    return {process for process in found if process is not None and process.name.startswith("ray::")}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
