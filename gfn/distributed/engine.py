"""Engines: what makes searchers work. Here the one that needs nothing."""

from __future__ import annotations

from typing import Any, Protocol

from gfn.distributed.hub import Hub, Weights
from gfn.distributed.searcher import Searcher


class Engine(Protocol):
    """Runs searchers that make the groups a hub gives out.

    Attributes:
        time_limit: seconds a searcher has for one group.
    """

    time_limit: float

    def start(self, hub: Hub, searcher: Searcher[Any]) -> None:
        """Begin to make the groups of ``hub`` as ``searcher`` would, whose policy is the one that is trained."""
        ...

    def publish(self, version: int) -> Weights:
        """The policy as it is now, after ``version`` updates, in the form in which this engine's searchers read it."""
        ...

    def gather(self, n: int) -> None:
        """Return when the next ``n`` groups are there.

        Raises:
            SearchError: if they do not come; whatever a searcher failed with.
        """
        ...

    def settings(self) -> dict[str, float]:
        """What there is to say about the searchers, for the log."""
        ...

    def close(self) -> None:
        """End all searchers; there is nothing to do where none has started."""
        ...


class InProcess:
    """One searcher in the trainer's own process, which takes turns with it.

    It works ahead as far as it may before each batch, so that the lag is exactly the largest allowed; two runs
    are equal bit for bit.
    """

    time_limit = float("inf")

    def __init__(self) -> None:
        self._started: tuple[Hub, Searcher[Any]] | None = None

    def start(self, hub: Hub, searcher: Searcher[Any]) -> None:
        self._started = hub, searcher

    def publish(self, version: int) -> Weights:
        return Weights(version)  # the searcher's policy is the trainer's own

    def gather(self, n: int) -> None:
        assert self._started is not None, "start comes first"
        hub, searcher = self._started
        while (job := hub.lease("this process", 0.0)) is not None:
            try:
                group = searcher(job.number, job.weights.version)
            except BaseException:
                hub.lose("this process", "it failed")
                raise
            hub.put("this process", job.number, group.tensors(), 0.0)

    def settings(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._started = None
