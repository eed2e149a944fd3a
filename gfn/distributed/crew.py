"""Searchers in processes of Ray, and the thread of the trainer's process that hands work out to them.

Searchers keep nothing that matters: one that dies or hangs is replaced, and its group made again.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch

from gfn.distributed import ray_session
from gfn.distributed.hub import Hub, Job, SearchError, Weights
from gfn.distributed.searcher import Searcher

STILLBORN = 3  # searchers in a row that end before they are ready, after which the run ends


class Servant:
    """What runs in a searcher's process."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._searcher: Searcher[Any] | None = None
        self._serial = 0  # of its weights; 0 is what it was sent with

    def prepare(self, box: list[Any], dtype: torch.dtype) -> int:
        """Read what to search with from the object in the box, as which Ray passes it on unread; the process's id."""
        torch.set_default_dtype(dtype)
        self._searcher = pickle.loads(ray_session.module().get(box[0]))
        return os.getpid()

    def search(self, number: int, weights: Weights) -> dict[str, Any]:
        """A group as tensors, on the CPU."""
        assert self._searcher is not None, "it has been prepared"
        if weights.serial != self._serial:
            self._searcher.load(ray_session.module().get(weights.content[0]))
            self._serial = weights.serial
        device = self._searcher.env.device.type
        precise = torch.autocast(device, weights.precision) if weights.precision is not None else nullcontext()
        with precise:
            return self._searcher(number, weights.version).to("cpu").tensors()


@dataclass
class _Member:
    who: str
    actor: Any
    task: Any  # what it does now, a reference to the result; None if nothing
    job: Job | None  # what that is; None while it prepares
    since: float
    pid: int | None = None  # of a process that is ready


class Crew:
    """A number of searchers for one hub.

    Args:
        ray: the module, connected.
        hub: gives out groups, and is given them.
        actor: makes a searcher's process.
        box: holds the object that searchers prepare from.
        run: name of the run, with which the names of searchers begin.
        count: number of searchers.
        cpus: threads of each.
    """

    def __init__(self, ray: Any, hub: Hub, actor: Any, box: list[Any], run: str, count: int, cpus: int) -> None:
        self.ray, self.hub, self.run, self.count = ray, hub, run, count
        self.replaced = 0
        self._actor, self._box, self._cpus = actor, box, cpus
        self._members: list[_Member] = []
        self._stillborn = 0  # searchers in a row that died before they were ready
        self._busy = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread and all searchers, whatever they do."""
        self._ended.set()
        with self.hub.changed:
            self.hub.changed.notify_all()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)
        while self._members:
            self._dismiss(self._members.pop())

    def busy_seconds(self) -> float:
        """Time that searchers have worked, all together."""
        now = time.monotonic()
        return self._busy + sum(now - m.since for m in list(self._members) if m.job is not None)

    def status(self) -> str:
        """One line for messages."""
        now = time.monotonic()
        doing = [f"{m.who} {_doing(m)} for {now - m.since:.0f} s" for m in list(self._members)]
        return f"{self.hub.status(now)}; {', '.join(doing) or 'no searchers'}; {self.replaced} replaced"

    def pids(self) -> dict[str, int]:
        """The processes of the searchers that are ready."""
        return {m.who: m.pid for m in list(self._members) if m.pid is not None}

    def _serve(self) -> None:
        try:
            for place in range(self.count):
                self._members.append(self._hired(place))
            while not self._ended.is_set() and self.hub.error is None:
                self._hand_out()
                self._collect()
        except Exception as error:
            if not self._ended.is_set():
                self.hub.fail(error if isinstance(error, SearchError) else _lost_touch(error))

    def _hired(self, place: int) -> _Member:
        who = f"searcher-{place}"
        name = f"{self.run}-{who}-{self.replaced}"
        actor = self._actor.options(name=name).remote(self._cpus)
        task = actor.prepare.remote(self._box, torch.get_default_dtype())
        return _Member(who, actor, task, None, time.monotonic())

    def _hand_out(self) -> None:
        for member in self._members:
            if member.task is not None:
                continue
            job = self.hub.lease(member.who, time.monotonic())
            if job is None:
                return
            member.job, member.since = job, time.monotonic()
            member.task = member.actor.search.remote(job.number, job.weights)

    def _collect(self) -> None:
        """Wait until something happens, and see to it."""
        working = {member.task: member for member in self._members if member.task is not None}
        if not working:
            self.hub.wait_for_work(1.0)
            return
        patience = 1.0 if len(working) == len(self._members) else 0.01  # the idle ones wait for the trainer, too
        done, _ = self.ray.wait(list(working), timeout=patience)
        for task in done:
            self._finish(working[task])
        limit = time.monotonic() - self.hub.ledger.time_limit
        for member in [m for m in self._members if m.job is not None and m.since < limit]:
            self._replace(member, f"it took longer than time_limit={self.hub.ledger.time_limit:g} s")

    def _finish(self, member: _Member) -> None:
        job, errors = member.job, self.ray.exceptions
        try:
            answer = self.ray.get(member.task)
        except errors.RayTaskError as error:
            self.hub.fail(_told(error, member.who) if job is not None else _unprepared(error, member.who))
        except errors.RayError as error:
            self._replace(member, f"it died: {_line(error)}")
        else:
            if job is None:
                member.pid, self._stillborn = answer, 0
            else:
                self.hub.put(member.who, job.number, answer, time.monotonic())
                self._busy += time.monotonic() - member.since
            member.task, member.job, member.since = None, None, time.monotonic()

    def _replace(self, member: _Member, reason: str) -> None:
        self._stillborn += member.job is None
        if self._stillborn >= STILLBORN:
            raise SearchError(f"{STILLBORN} searchers in a row ended before they were ready, the last one: {reason}")
        self._dismiss(member)
        self.hub.lose(member.who, f"{member.who}: {reason}")
        self.replaced += 1
        place = self._members.index(member)
        self._members[place] = self._hired(place)

    def _dismiss(self, member: _Member) -> None:
        if self.ray.is_initialized():  # it would be started for this alone
            with suppress(Exception):  # it is gone
                self.ray.kill(member.actor)


def _doing(member: _Member) -> str:
    if member.task is None:
        return "idle"
    return "starting" if member.job is None else f"at group {member.job.number}"


def _line(error: Exception) -> str:
    """What it says, in one line; of a long one, beginning and end, where Ray puts the cause."""
    text = " ".join(str(error).split())
    return text if len(text) <= 600 else f"{text[:300]} … {text[-300:]}"


def _lost_touch(error: Exception) -> SearchError:
    return SearchError(f"lost touch with Ray: {_line(error)}; the same command goes on from the last checkpoint")


def _unprepared(error: Any, who: str) -> SearchError:
    """Every other searcher would fail alike, so that none is started in its place."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    return SearchError(
        f"{who} cannot start: {type(cause).__name__}: {cause}; environment, policy and exploration, and the modules of "
        f"their classes, have to be readable where searchers run; there: {_line(error)}"
    )


def _told(error: Any, who: str) -> Exception:
    """What a searcher failed with, with a note of where; where it cannot be sent, a description."""
    described = f"{who} failed: {error}"
    cause = error.cause
    if not isinstance(cause, Exception) or "ray" in type(cause).__module__.split("."):
        return SearchError(described)
    cause.add_note(described)
    return cause
