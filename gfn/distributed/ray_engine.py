"""The engine whose searchers are processes of Ray, on this machine or on a cluster."""

from __future__ import annotations

import atexit
import time
import uuid
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from gfn.distributed import ray_session
from gfn.distributed.crew import Crew, Servant
from gfn.distributed.hub import Hub, SearchError, Weights
from gfn.distributed.searcher import Changing, Searcher
from gfn.training import never

SMALLEST = 78_643_200  # bytes of an object store, to Ray


class Ray:
    """Searchers that work while the trainer does (extra ``ray``).

    Environment, policy and exploration are sent to them once, by pickle; then only the weights that training
    changes. Their modules have to be importable there. Ray is started, or joined, at the first batch, and left when
    the sampler is closed or no longer used, or the process ends. Searchers that die are replaced; the processes of
    Ray itself on this machine take the trainer's with them, and the same command goes on from the last checkpoint.

    Args:
        searchers: number of processes.
        address: of a Ray cluster, as in ``auto`` or ``host:6379``; None starts Ray on this machine.
        cpus: threads of each searcher; on a cluster, also what is reserved for it.
        gpus: share of a GPU for each searcher.
        time_limit: seconds for one group, after which its searcher is replaced.
        timeout: seconds without any group after which training stops; those in which searchers start count.
        object_store_memory: bytes of shared memory of Ray on this machine, through which weights and groups pass;
            None leaves it to Ray, which goes on to the disk where it is full.
        stop: asked while the trainer waits for a batch; True ends the wait, and the update, with ``Interrupted``. Not
            in a process group, where others would wait for this process, nor with a fixed lag, where a checkpoint
            would have to wait for the same groups.

    Raises:
        ValueError: if a number is out of range.
        ImportError: if Ray is not installed.
    """

    def __init__(
        self,
        searchers: int = 2,
        address: str | None = None,
        cpus: int = 1,
        gpus: float = 0.0,
        time_limit: float = 600.0,
        timeout: float = 1800.0,
        object_store_memory: int | None = None,
        stop: Callable[[], bool] = never,
    ) -> None:
        if searchers < 1 or cpus < 1 or gpus < 0 or time_limit <= 0 or timeout <= 0:
            raise ValueError(
                "Ray: needs searchers >= 1, cpus >= 1, gpus >= 0, time_limit > 0 and timeout > 0, got "
                f"{searchers=} {cpus=} {gpus=} {time_limit=} {timeout=}"
            )
        if object_store_memory is not None and object_store_memory < SMALLEST:
            raise ValueError(f"Ray: object_store_memory must be at least {SMALLEST} bytes, got {object_store_memory}")
        if find_spec("ray") is None:
            raise ImportError("Ray: the package ray is not installed; pip install 'fgfn[ray]'")
        self.searchers, self.address, self.cpus, self.gpus = searchers, address, cpus, gpus
        self.time_limit, self.timeout, self.object_store_memory = time_limit, timeout, object_store_memory
        self.stop = stop
        self._running: _Running | None = None

    def start(self, hub: Hub, searcher: Searcher[Any]) -> None:
        device = searcher.env.device.type
        if device != "cpu" and self.gpus == 0:
            raise SearchError(f"the environment lies on {device}, and searchers have no GPU: set sampler.engine.gpus")
        content = _pickled(searcher)
        run = f"fgfn-{uuid.uuid4().hex[:8]}"
        ray = ray_session.join(run, self.address, self.object_store_memory)
        try:
            whole = _stored(ray, content, len(content), "environment, policy and exploration")
        except BaseException:
            ray_session.leave(run)
            raise
        # On this machine it is the user who counts, so that searchers start in any case.
        actor = ray.remote(num_cpus=0 if self.address is None else self.cpus, num_gpus=self.gpus, max_restarts=0)(
            Servant
        )
        crew = Crew(ray, hub, actor, [whole], run, self.searchers, self.cpus)
        finish = weakref.finalize(self, _end, crew)
        finish.atexit = False
        atexit.register(finish)  # what is registered last is called first: before Ray's own end
        self._running = _Running(crew, Changing(searcher.policy), device, finish)
        crew.start()

    def publish(self, version: int) -> Weights:
        return self._now.published(version)

    def gather(self, n: int) -> None:
        self._now.gather(n, self.timeout, self.stop)

    def settings(self) -> dict[str, float]:
        """Shares of time for which the trainer waited and searchers were idle, and how many were replaced."""
        now = self._now
        return {"waited": now.waited, "idle": now.idle, "searchers_replaced": float(now.crew.replaced)}

    def pids(self) -> dict[str, int]:
        """The processes of the searchers that are ready, by name."""
        return self._now.crew.pids()

    def close(self) -> None:
        if self._running is not None:
            self._running.finish()
            atexit.unregister(self._running.finish)
            self._running = None

    @property
    def _now(self) -> _Running:
        if self._running is None:
            raise SearchError("the searchers have been closed; call the sampler, which starts them again")
        return self._running


class _Running:
    """What there is while searchers run."""

    def __init__(self, crew: Crew, changing: Changing, device: str, finish: weakref.finalize[..., Any]) -> None:
        self.crew, self.finish = crew, finish
        self.waited = self.idle = 0.0  # shares of the time between the last two batches
        self._changing, self._device, self._serial = changing, device, 0
        self._last, self._busy, self._waited = time.monotonic(), 0.0, 0.0
        self._for_batch = False  # whether what is gathered next is a batch, and not what a checkpoint waits for

    def published(self, version: int) -> Weights:
        self._serial += 1
        self._for_batch = True
        arrays = self._changing.arrays()
        on = torch.is_autocast_enabled(self._device)
        precision = torch.get_autocast_dtype(self._device) if on else None
        content = [_stored(self.crew.ray, arrays, sum(array.nbytes for array in arrays.values()), "weights")]
        return Weights(version, self._serial, content, precision)

    def gather(self, n: int, timeout: float, stop: Callable[[], bool]) -> None:
        began = time.monotonic()
        self.crew.hub.await_groups(n, timeout, stop, self.crew.status)
        self._waited += time.monotonic() - began
        if self._for_batch:
            self._measure()

    def _measure(self) -> None:
        """The shares of the time since the last batch, in which a checkpoint may have waited, too."""
        now, busy = time.monotonic(), self.crew.busy_seconds()
        past = max(now - self._last, 1e-9)
        self.waited = self._waited / past
        self.idle = min(max(1 - (busy - self._busy) / (past * self.crew.count), 0.0), 1.0)
        self._last, self._busy, self._waited, self._for_batch = now, busy, 0.0, False


def _pickled(searcher: Searcher[Any]) -> bytes:
    try:
        return ray_session.module().cloudpickle.dumps(searcher)
    except Exception as error:  # of many kinds, whatever a class answers to pickle
        raise SearchError(
            f"environment, policy and exploration cannot be sent to searchers, since they cannot be pickled: {error}; "
            "give the class a __getstate__ that leaves out open files, processes and the like, or use "
            "sampler/engine=in_process"
        ) from error


def _stored(ray: Any, value: Any, size: int, what: str) -> Any:
    """A reference to a value in Ray's object store."""
    try:
        return ray.put(value)
    except Exception as error:
        raise SearchError(
            f"{what} of {size} bytes could not be put into Ray's object store: {error}; give it more, as in "
            f"sampler.engine.object_store_memory={max(4 * size, SMALLEST)}, free space on the disk where Ray keeps its "
            "files, or restart Ray"
        ) from error


def _end(crew: Crew) -> None:
    crew.close()
    ray_session.leave(crew.run)
