"""Other people's trainers, each installed in an environment of its own in the user's cache, when first wanted."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gfn.storage import cache_directory

SCRIPTS = Path(__file__).parent / "workers"
OURS = "ours"
SIDES = ("torchgfn", "torchgfn-cached", "gfnx", "gfnx-flat")


@dataclass(frozen=True)
class Peer:
    """A trainer that is no part of this project.

    Attributes:
        name: of its package.
        script: file in :mod:`experiments.benchmarks.workers`.
        packages: what pip is to install, in steps, each heedless of what the ones before asked for.
    """

    name: str
    script: str
    packages: tuple[tuple[str, ...], ...]

    @property
    def folder(self) -> Path:
        """Where its environment is."""
        return cache_directory() / "peers" / self.packages[0][0].replace("==", "-")

    def python(self) -> Path:
        """The interpreter of its environment, which is made first if it is not there.

        Raises:
            RuntimeError: if that does not work; with the last lines of what pip says.
        """
        found, done = self.folder / "bin" / "python", self.folder / "installed"
        if not done.exists():
            print(f"installing {self.name} in {self.folder}", file=sys.stderr)
            self._do([sys.executable, "-m", "venv", "--clear", str(self.folder)])
            for packages in self.packages:
                self._do([str(found), "-m", "pip", "install", "--quiet", *packages])
            done.touch()
        return found

    def _do(self, command: list[str]) -> None:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"{self.name} cannot be installed: {' '.join(result.stderr.split()[-40:])}")


def peers() -> dict[str, Peer]:
    """All of them, by name; torch, where one needs it, as it is here."""
    torch = f"torch=={version('torch').partition('+')[0]}"
    return {
        "torchgfn": Peer("torchgfn", "with_torchgfn.py", (("torchgfn==2.4.1", torch),)),
        "gfnx": Peer("gfnx", "with_gfnx.py", (("gfnx==0.0.1",), ("equinox==0.13.8", "jax==0.10.2"))),
    }


def command_of(side: str) -> tuple[list[str], str]:
    """The command that starts a side, such as ``ours``, ``gfnx`` or ``gfnx-flat``, and its variant.

    Raises:
        RuntimeError: if a peer cannot be installed.
        KeyError: if there is no such side.
    """
    name, _, variant = side.partition("-")
    if name == OURS:
        return [sys.executable, "-m", "experiments.benchmarks.workers.with_ours"], variant
    peer = peers()[name]
    return [str(peer.python()), str(SCRIPTS / peer.script)], variant


def checked_sides(text: str) -> list[str]:
    """Names of peers, with their variants, from a text such as ``torchgfn,gfnx-flat``; ``none`` is none.

    Raises:
        ValueError: if there is no such peer or variant.
    """
    sides = [] if text == "none" else text.split(",")
    bad = [side for side in sides if side not in SIDES]
    if bad:
        raise ValueError(f"peers: expected none, or some of {', '.join(SIDES)}, got {bad[0]!r}")
    return sides
