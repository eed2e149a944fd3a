"""Faults of asynchronous training with Ray, each brought about: every one is told at once, once, with what to do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from envs.hypergrid import Classic, GridStates, Hypergrid
from experiments.benchmarks.cluster import cluster
from gfn.checkpoint import CheckpointError
from gfn.distributed import InProcess, Ray, SearchError, ray_engine, ray_session
from gfn.distributed.searcher import Changing, Searcher
from gfn.exploration import NoExploration
from gfn.policies import MLPPolicy
from tests.searching import Troubled, local_ray, searching
from tests.stored import grid, network

__all__ = ["local_ray"]  # a fixture

with_ray = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def slow(test: Any) -> Any:
    """A test that starts Ray."""
    for mark in with_ray:
        test = mark(test)
    return test


# Without Ray, or without a cluster that answers


@pytest.mark.slow
def test_without_ray_the_command_names_the_extra(tmp_path: Path) -> None:
    blocked = (
        "import sys; sys.modules['ray'] = None; from experiments.train import cli; sys.argv[0] = 'gfn-train'; cli()"
    )
    chosen = ["sampler=asynchronous", "sampler/engine=ray", "logger=quiet", f"run={tmp_path / 'run'}"]
    done = subprocess.run([sys.executable, "-c", blocked, *chosen], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'fgfn[ray]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(5)
        yield server


@pytest.mark.parametrize(
    ("answer", "message"), [(None, "timed out"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "who is not Ray")]
)
def test_who_listens_at_the_address_and_is_not_ray(
    answer: bytes | None, message: str, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_session, "ANSWER", 0.3)
    held = list[socket.socket]()

    def serve() -> None:
        held.append(listener.accept()[0])
        if answer is not None:
            held[0].sendall(answer)
            held[0].close()

    threading.Thread(target=serve, daemon=True).start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(SearchError, match=f"cannot join the Ray cluster at {address}: .*{message}.*; start one with"):
        ray_session.join("a run", address, None)


@slow
def test_a_cluster_with_another_token() -> None:
    """Neither with a token of its own nor with none is one let in, and both are told why."""
    join = "from gfn.distributed import ray_session; ray_session.join('a run', sys.argv[1], None)"  # Ray reads it once
    with cluster(environment={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}) as address:
        began = time.monotonic()
        command = [sys.executable, "-c", f"import sys; {join}", address]
        tokens: list[dict[str, str]] = [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}]
        clients = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | t) for t in tokens]
        told = [client.communicate(timeout=240)[1] for client in clients]
        assert time.monotonic() - began < 120
    for text in told:
        last = text.strip().splitlines()[-1]
        assert f"SearchError: cannot join the Ray cluster at {address}: " in last
        assert "RAY_AUTH_MODE, RAY_AUTH_TOKEN and the version of Ray have to be those of the cluster" in last


# An object store that is too small


class Heavy(MLPPolicy[GridStates]):
    """A policy with more weights than it needs."""

    def __init__(self, env: Hypergrid, count: int) -> None:
        super().__init__(env, 8, 1)
        self.ballast = nn.Parameter(torch.zeros(count))


@slow
def test_weights_larger_than_the_object_store_go_by_way_of_the_disk() -> None:
    env = Troubled()
    policy = Heavy(env, 25_000_000)  # 100 MB
    run = searching(Ray(1, object_store_memory=ray_engine.SMALLEST), env, policy=policy)
    run.steps = 3
    run.run()
    assert [number for _, numbers, _ in run.sampler.notes for number in numbers] == list(range(12))
    run.sampler.close()


class Full:
    """Ray with an object store that is full, and no disk to go on to."""

    @staticmethod
    def put(value: Any) -> None:
        raise MemoryError("the store is full")


def test_where_there_is_no_room_for_weights_it_is_told_how_much_they_need() -> None:
    message = (
        "weights of 100000000 bytes could not be put into Ray's object store: the store is full; give it more, as in "
        "sampler.engine.object_store_memory=400000000, free space"
    )
    with pytest.raises(SearchError, match=message):
        ray_engine._stored(Full, b"", 100_000_000, "weights")


# Searchers that cannot start


class Unreadable(Hypergrid):
    """A grid that cannot be read in another process, or ends it."""

    def __init__(self, order: str) -> None:
        super().__init__(4, 2, Classic(r0=0.1))
        self.order, self.home = order, os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.home:
            if self.order == "die":
                os._exit(3)
            raise RuntimeError("there is no licence on this machine")


def phantom(kind: type, monkeypatch: pytest.MonkeyPatch) -> type:
    """The class as one of a module that is nowhere but in this process."""
    module = ModuleType("phantom")
    copy = type(kind.__name__, (kind,), {"__module__": "phantom", "__qualname__": kind.__name__})
    setattr(module, kind.__name__, copy)
    monkeypatch.setitem(sys.modules, "phantom", module)
    return copy


def begun(run: Any) -> str:
    """What it says that cannot go on, with one searcher that was started and no other in its place."""
    with pytest.raises(SearchError) as told:
        run.run()
    replaced = run.sampler.engine.settings()["searchers_replaced"]
    run.sampler.close()
    return f"{replaced:g} replaced: {told.value}"


@slow
def test_searchers_that_fail_at_the_start_are_told_of_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = begun(searching(Ray(1), Unreadable("raise")))
    assert failing.startswith(
        "0 replaced: searcher-0 cannot start: RuntimeError: there is no licence on this machine; "
    )
    missing = begun(searching(Ray(1), phantom(Troubled, monkeypatch)()))
    assert missing.startswith("0 replaced: searcher-0 cannot start: ModuleNotFoundError: No module named 'phantom'; ")


@slow
def test_searchers_that_die_at_the_start_are_replaced_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    dying = begun(searching(Ray(1), Unreadable("die")))
    expected = "2 replaced: 3 searchers in a row ended before they were ready, the last one: it died: "
    assert dying.startswith(expected)
    monkeypatch.setattr(ray_engine, "Servant", phantom(ray_engine.Servant, monkeypatch))
    foreign = begun(searching(Ray(1), Troubled()))
    assert foreign.startswith(expected)
    assert "No module named 'phantom'" in foreign


# Rewards, and weights


@slow
def test_a_reward_that_always_hangs_ends_the_run_after_some_attempts(tmp_path: Path) -> None:
    trouble = tmp_path / "trouble"
    run = searching(Ray(1, time_limit=3.0), Troubled(trouble=trouble))
    run.steps = 2
    run.run()
    trouble.write_text("hang")
    run.steps = 9
    message = (
        r"group \d+ was given to searchers 5 times and did not come, the last time because searcher-0: it took longer "
        r"than time_limit=3 s: \d+ groups given out, \d+ trained on, \d+ waiting; being made: \d+ with searcher-0"
    )
    with pytest.raises(SearchError, match=message):
        run.run()
    run.sampler.close()


def test_weights_that_are_not_those_of_searchers_are_refused() -> None:
    env = grid()
    wide, narrow = MLPPolicy(env, 16, 1), network(env)
    searcher = Searcher(env, narrow, NoExploration(), 2, 0)
    before = {name: value.clone() for name, value in narrow.state_dict().items()}
    sent = Changing(wide).arrays()
    name = next(iter(sent))
    shapes = [list(dict(policy.named_parameters())[name].shape) for policy in (wide, narrow)]
    told = f"weights {name} have shape {shapes[0]}, 4 bytes a number, and searchers hold shape {shapes[1]}, 4 bytes"
    with pytest.raises(ValueError, match=re.escape(told)):
        searcher.load(sent)
    with pytest.raises(ValueError, match=r"weights strange have shape .* and searchers hold no such tensor; close the"):
        searcher.load({"strange": np.zeros((3, 4), dtype=np.uint8)})
    assert all(torch.equal(before[name], value) for name, value in narrow.state_dict().items()), "none was taken over"


def test_a_policy_that_is_changed_under_its_searchers_is_refused() -> None:
    policy = network(grid())
    changing = Changing(policy)
    policy.extra = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match=r"weights extra have shape \[2\], .* and searchers hold no such tensor"):
        changing.arrays()


def test_a_checkpoint_of_another_width_is_refused(tmp_path: Path) -> None:
    env = Troubled()
    first = searching(InProcess(), env, checkpoints=tmp_path)
    first.steps = 1
    first.run()
    other = searching(InProcess(), env, policy=MLPPolicy(env, 16, 1), checkpoints=tmp_path)
    with pytest.raises(CheckpointError, match=r"does not fit this run: .* size mismatch .*use the configuration"):
        other.resume()
