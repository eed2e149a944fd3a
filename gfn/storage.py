"""Where files are kept, and how they are written so that nothing is lost."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def cache_directory() -> Path:
    """The user's cache of this project: ``fgfn`` in ``$XDG_CACHE_HOME``, if that is absolute, or else ``~/.cache``."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache") / "fgfn"


def replace(path: Path, *content: bytes | memoryview) -> None:
    """Write a file, in a folder that need not exist; a crash at any moment leaves the old one or the new one whole.

    Raises:
        OSError: if it cannot be written; what was there stays, and nothing half written is left to fill the disk.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            for piece in content:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync(path.parent)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        size = sum(len(piece) for piece in content)
        reason = f"{error.strerror or error} ({size} bytes to write, {room(path.parent)})"
        raise OSError(error.errno, reason, str(path)) from error


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, outlive a machine that stops at once; whoever wrote them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def room(directory: Path) -> str:
    """How much is free there, for messages."""
    for place in (directory, *directory.parents):
        with suppress(OSError):
            return f"{shutil.disk_usage(place).free} bytes free in {place}"
    return f"nothing known of the room in {directory}"
