"""A Ray cluster of one machine, apart from any other that runs there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from experiments.benchmarks import proc

PATIENCE = 180.0  # seconds to start in
OBJECT_STORE = 100 * 2**20  # bytes


@contextmanager
def cluster(cpus: int = 8, environment: Mapping[str, str] | None = None) -> Generator[str]:
    """The address of a new cluster, which is gone afterwards.

    Args:
        cpus: that it believes to have.
        environment: variables for its processes beside this one's.

    Raises:
        RuntimeError: if it does not start; the message has its output.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A short path: Ray puts sockets below it, whose names may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        command = [
            sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1",
            f"--port={port}", f"--num-cpus={cpus}", "--include-dashboard=false", "--disable-usage-stats",
            f"--object-store-memory={OBJECT_STORE}", f"--temp-dir={directory}",
        ]  # fmt: skip
        output = Path(directory) / "output.txt"
        variables = {**os.environ, "RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1", **(environment or {})}
        with open(output, "w", encoding="utf-8") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=variables)
        try:
            _await_start(process, output)
            yield f"127.0.0.1:{port}"
        finally:
            family = proc.descendants(process.pid)
            process.terminate()
            proc.left_of(family, 10)
            proc.kill(family)
            process.kill()
            process.wait()


def _await_start(process: subprocess.Popen[bytes], output: Path) -> None:
    end = time.monotonic() + PATIENCE
    while "Ray runtime started" not in output.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"a Ray cluster did not start: {output.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)
