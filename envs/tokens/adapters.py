"""Adapters of a model under training on a server, one set for each version that is in use."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from envs.tokens.connections import ServerError
from envs.tokens.server import Server
from gfn.distributed import SearchError

FAREWELL = 10.0  # seconds a server has to forget an adapter


class Adapters:
    """Saves adapters, has a server load them, again if it forgets them, and removes those no longer in use.

    A name is never used twice, not by another run either: servers keep what they have computed of a prompt by the name
    of the adapter. What a killed run has left in the folder is removed first, so no two runs may share one.

    Args:
        server: where they are used.
        model: with adapters of peft.
        directory: folder to save them in, which the server sees under the same path.
        limit: seconds for a load.

    Attributes:
        reloaded: how often the server had forgotten one.
    """

    def __init__(self, server: Server, model: Any, directory: Path, limit: float) -> None:
        self.server, self.model, self.directory, self.limit = server, model, directory, limit
        self.reloaded = 0
        self._names, self._lock = set[str](), threading.Lock()
        for name, card in server.models(limit).items():
            if card.adapter and Path(card.root).parent == directory:
                self._remove(name)
        for left in directory.glob("policy-v*"):
            shutil.rmtree(left, ignore_errors=True)

    def publish(self, version: int) -> str:
        """Save the adapters as they are and have them loaded; the name under which they are served.

        Raises:
            SearchError: if they cannot be saved, or the server does not take them.
        """
        name = f"policy-v{version}-{uuid.uuid4().hex[:8]}"
        part = self.directory / f"{name}.part"
        try:
            part.mkdir(parents=True)
            # Looking for embeddings to save would ask the hub about the model every time; adapters have none.
            self.model.save_pretrained(part, save_embedding_layers=False)
            part.rename(self.directory / name)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise SearchError(
                f"adapters cannot be saved: {error}; give a folder with space that the server sees, too, by "
                "sampler.engine.directory"
            ) from error
        self._names.add(name)
        self.server.load(name, self.directory / name, self.limit)
        return name

    def restore(self, name: str) -> None:
        """Have the server load an adapter again, unless another request has seen to it."""
        with self._lock:
            if name not in self.server.models(self.limit):
                self.server.load(name, self.directory / name, self.limit)
                self.reloaded += 1

    def keep(self, names: Set[str]) -> None:
        """Remove all others."""
        for name in sorted(self._names - names):
            self._names.remove(name)
            self._remove(name)

    def close(self) -> None:
        """Remove all, and the folder."""
        self.keep(set())
        with suppress(OSError):  # it holds something else, or was never there
            self.directory.rmdir()

    def _remove(self, name: str) -> None:
        with suppress(ServerError):  # it has forgotten it, or is not there
            self.server.unload(name, FAREWELL)
        shutil.rmtree(self.directory / name, ignore_errors=True)
