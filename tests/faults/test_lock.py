"""Promise 11: two runs do not share a directory."""

from __future__ import annotations

import errno
import os
import socket
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from experiments import lock
from experiments.lock import OccupiedError, occupied
from tests.faults.children import call, command, ended, start

SMALL = ("env.side=4", "policy.width=8", "sampler.batch_size=8", "evaluator.every=50", "logger=quiet")


def hold(directory: Path, link: Connection) -> None:
    with occupied(directory):
        link.send(os.getpid())
        link.recv()


def test_the_second_run_refuses_and_names_the_first(tmp_path: Path) -> None:
    ours, its = Pipe()
    holder = start(hold, tmp_path, its)
    pid = ours.recv()
    with pytest.raises(OccupiedError) as told, occupied(tmp_path):
        pass
    assert f"{tmp_path} is in use by process {pid} on {socket.gethostname()} since " in str(told.value)
    assert "choose another directory (run=…)" in str(told.value)
    code, output = call(command, tmp_path, *SMALL, f"run={tmp_path}", output=tmp_path / "output")
    assert code == 1
    assert f"gfn-train: {tmp_path} is in use by process {pid}" in output
    assert "Traceback" not in output
    assert not (tmp_path / "config.yaml").exists(), "nothing was written"

    holder.kill()  # it leaves its name in the file
    assert ended(holder) == -9
    assert str(pid) in (tmp_path / lock.NAME).read_text()
    code, output = call(command, tmp_path, *SMALL, f"run={tmp_path}", "trainer.steps=2", output=tmp_path / "output")
    assert code == 0, output
    assert (tmp_path / lock.NAME).read_text() == ""


def test_a_lock_is_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with occupied(tmp_path / "new" / "place"):
            assert str(os.getpid()) in (tmp_path / "new" / "place" / lock.NAME).read_text()
    with pytest.raises(ZeroDivisionError), occupied(tmp_path):
        raise ZeroDivisionError
    with occupied(tmp_path):
        pass


def test_where_nothing_can_be_locked_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: Any) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("fcntl.flock", unable)
    with pytest.warns(UserWarning, match="cannot be locked .*make sure that no other run uses it"), occupied(tmp_path):
        pass
