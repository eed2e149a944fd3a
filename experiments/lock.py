"""One run at a time in a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

NAME = ".lock"
UNABLE = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)


class OccupiedError(RuntimeError):
    """Another process is at work in a run directory."""


@contextmanager
def occupied(directory: Path) -> Generator[None]:
    """Keep a run directory to this process; a second one that asks for it is told whose it is.

    The operating system takes the lock back when its process ends, however it ends, so what a killed process
    has left in the file keeps nobody out. Where files cannot be locked, a warning says so.

    Raises:
        OccupiedError: if another process is at work there; the message names its host and number.
        OSError: if the directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(handle, path)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n".encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(handle, 200, 0).decode(errors="replace").strip() or "another process"
        raise OccupiedError(
            f"{path.parent} is in use by {owner}: wait for it or end it, or choose another directory (run=…)"
        ) from None
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        warnings.warn(
            f"{path.parent} cannot be locked ({error.strerror}): make sure that no other run uses it", stacklevel=4
        )
