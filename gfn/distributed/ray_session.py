"""One connection to Ray for all runs of this process: the first makes it, the last ends it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from gfn.distributed.hub import SearchError

# What an HTTP/2 client says first, as gRPC's do: a preface, and a frame of settings that is empty.
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
ANSWER = 10.0  # seconds in which a cluster has to answer

_lock = threading.RLock()
_runs: set[str] = set()
_ours = False  # whether the connection is to be ended with the last run


def module() -> Any:
    """The module ``ray``, an extra that takes most of a second to import."""
    import ray

    return ray


def join(run: str, address: str | None, object_store_memory: int | None) -> Any:
    """The module ``ray``, connected; a connection that exists already is used as it is.

    Args:
        run: a name of its own, for :func:`leave`.
        address: of a cluster; None starts Ray on this machine.
        object_store_memory: bytes of shared memory of what is started here.

    Raises:
        SearchError: if there is no cluster at the address, or Ray does not start.
    """
    global _ours
    ray = module()
    with _lock:
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
            here = {"include_dashboard": False, "object_store_memory": object_store_memory}
            answered = False
            try:
                with _handler_kept():
                    answered = _answers(address)
                    ray.init(address=address or "local", logging_level="WARNING", **(here if address is None else {}))
            except Exception as error:  # of many kinds: whatever is wrong with the cluster or the machine
                what = f"join the Ray cluster at {address}" if address is not None else "start Ray on this machine"
                reason = " ".join(str(error).split())
                cure = _cure(address, answered)
                raise SearchError(f"cannot {what}: {reason}; {cure}, or use sampler/engine=in_process") from error
            _ours = True
        _runs.add(run)
    return ray


def leave(run: str) -> None:
    """A run needs the connection no longer; a second time does nothing."""
    global _ours
    with _lock:
        _runs.discard(run)
        if _ours and not _runs:
            _ours = False
            with _handler_kept():
                module().shutdown()


def _answers(address: str | None) -> bool:
    """Whether the address has a port where somebody speaks as Ray does (gRPC, over HTTP/2, unless it is encrypted).

    Raises:
        OSError: soon, where nobody does; Ray itself would try for minutes.
    """
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal():
        return False
    with socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=ANSWER) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return True
        connection.sendall(GREETING)
        answer = b""
        while len(answer) < 9 and (more := connection.recv(9 - len(answer))):
            answer += more
    if answer[3:4] != GREETING[-6:-5]:
        raise OSError("somebody listens there who is not Ray")
    return True


def _cure(address: str | None, answered: bool) -> str:
    if answered:
        return "RAY_AUTH_MODE, RAY_AUTH_TOKEN and the version of Ray have to be those of the cluster: compare them"
    return "start one with `ray start --head`" if address is not None else "read Ray's logs in /tmp/ray"


@contextmanager
def _handler_kept() -> Generator[None]:
    """Ray answers SIGTERM by leaving at once; whoever trains finishes the step and saves first."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
