"""Small asynchronous runs with searchers of Ray, and environments that trouble them, which several tests share."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from envs.hypergrid import Classic, GridStates, Hypergrid
from gfn.distributed import Asynchronous, Engine
from gfn.environment import RewardError
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPPolicy, UniformBackward
from gfn.training import Trainer
from tests.stored import network

GROUPS, STEPS = 4, 15  # a step, and steps: 60 groups


@pytest.fixture
def local_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No token file in the home directory, searchers that start on a busy machine, too, and nothing stays."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 otherwise: other tests would keep them from starting
    import ray

    ray.shutdown()  # Ray reads its mode once in a process: now, and not when a test has set another
    yield
    left = ray.is_initialized()
    gc.collect()  # samplers of a test that failed, whose ends would come in the middle of the next
    ray.shutdown()
    assert not left, "the last sampler that was closed ends Ray"


class Troubled(Hypergrid):
    """A grid that takes its time, and in one process does something unheard of as long as a file says what."""

    def __init__(self, pause: float = 0.0, trouble: Path | None = None) -> None:
        super().__init__(4, 2, Classic(r0=0.1))
        self.pause, self.trouble = pause, trouble

    def log_reward(self, states: GridStates) -> Tensor:
        time.sleep(self.pause)
        order = self.trouble.read_text() if self.trouble is not None and self.trouble.exists() else ""
        if order == "fail":
            raise RewardError("the oracle is out of order")
        if order == "hang once" and self.trouble is not None:
            self.trouble.unlink()
        if order in ("hang", "hang once"):
            time.sleep(1000)
        if order == "die":
            os._exit(7)
        return super().log_reward(states)


class Noted(Asynchronous[GridStates]):
    """A sampler that notes which groups were trained on at which step, with their versions."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.notes: list[tuple[int, list[int], list[int]]] = []

    def __call__(self, step: int, size: int | None = None) -> Any:
        batch = super().__call__(step, size)
        self.notes.append((step, list(self.hub.take(self.groups)), batch.policy_version.tolist()))
        return batch


def searching(
    engine: Engine, env: Hypergrid, staleness: int = 2, policy: MLPPolicy[GridStates] | None = None, **settings: Any
) -> Trainer[GridStates]:
    """A run of 15 updates on 4 groups of 4 each."""
    policy = policy if policy is not None else network(env)
    fixed_lag = settings.pop("fixed_lag", False)
    sampler = Noted(env, policy, engine, 4 * GROUPS, 4, staleness, fixed_lag, seed=3)
    objective = Objective(policy, UniformBackward(env), Alpha(0.5), DevGrad())
    return Trainer(objective, sampler, **{"steps": STEPS, "lr": 0.05, **settings})


def gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False
