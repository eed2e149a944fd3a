"""Processes to inject faults into: forked from a server that has imported everything, they start in milliseconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds, on a busy machine


def start(function: Callable[..., None], *arguments: Any, output: Path | None = None) -> BaseProcess:
    """Call a function of a module in a process of its own; what it prints goes to a file, if one is named."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.preloaded"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)  # the server looks nowhere else for what it is to import
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    process = context.Process(target=_call, args=(function, arguments, output), daemon=True)
    process.start()
    return process


def ended(process: BaseProcess) -> int:
    """The exit code of a process, which has to end by itself; minus the signal that ended it."""
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"the process has not ended within {PATIENCE:g} s")
    return process.exitcode


def call(function: Callable[..., None], *arguments: Any, output: Path) -> tuple[int, str]:
    """Call a function in a process of its own; its exit code, and all that it printed."""
    code = ended(start(function, *arguments, output=output))
    return code, output.read_text(encoding="utf-8")


def command(directory: Path, *arguments: str, prepare: Callable[[], None] | None = None) -> None:
    """``gfn-train`` with arguments in a working directory, after something has been prepared to go wrong."""
    from experiments.train import cli

    os.chdir(directory)
    sys.argv = ["gfn-train", *arguments]
    if prepare is not None:
        prepare()
    cli()


def _call(function: Callable[..., None], arguments: tuple[Any, ...], output: Path | None) -> None:
    import torch

    torch.set_num_threads(1)
    if output is not None:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
    function(*arguments)
