"""Where things are kept that are made once for all runs of a user."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """The user's cache of this project: ``fgfn`` in ``$XDG_CACHE_HOME``, if that is absolute, or else ``~/.cache``."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(chosen) if os.path.isabs(chosen) else Path.home() / ".cache") / "fgfn"
