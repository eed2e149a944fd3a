"""Every sampler goes on bit for bit: n updates, a file, n more are 2n."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gfn.buffers import Buffer
from gfn.exploration import EpsilonUniform
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPBackward, MLPPolicy
from gfn.priorities import ByReward, Mixed, Recent
from gfn.samplers import (
    BackwardFromData,
    Jittered,
    LocalSearch,
    Mixture,
    OnPolicy,
    Refreshed,
    Repeated,
    Replay,
    Stale,
    Synchronised,
    every_terminal,
)
from gfn.schedules import Linear
from gfn.training import Trainer
from tests.stored import grid, network
from tests.trainers import differences, snapshot

ENV = grid()
RATIO = Linear(1.0, 3.0, 12)
MIXED = Mixed(Recent(5.0), ByReward(Linear(0.0, 1.0, 12)), 0.5)
Make = Callable[[MLPPolicy[Any], MLPBackward[Any], OnPolicy[Any], int], Any]
SAMPLERS: dict[str, Make] = {
    "on policy": lambda policy, backward, on, seed: on,
    "averaged": lambda policy, backward, on, seed: OnPolicy(ENV, policy, 8, averaging=0.8, seed=seed),
    "replay": lambda policy, backward, on, seed: Replay(ENV, on, Buffer(ENV, 20, MIXED, seed=seed), RATIO),
    "re-expanded": lambda policy, backward, on, seed: Replay(
        ENV, on, Buffer(ENV, 20, unique="terminal", evict="lowest", seed=seed), 1.0, True, backward, seed=seed
    ),
    "data": lambda policy, backward, on, seed: BackwardFromData(ENV, backward, every_terminal, 8, 4, 1.0, seed),
    "local search": lambda policy, backward, on, seed: LocalSearch(
        ENV, policy, backward, on, accept="metropolis", exploration=EpsilonUniform(0.2), seed=seed
    ),
    "mixture": lambda policy, backward, on, seed: Mixture(
        [on, BackwardFromData(ENV, backward, every_terminal, seed=seed)], [1, Linear(0.0, 1.0, 12)], 8
    ),
    "stale": lambda policy, backward, on, seed: Stale(ENV, on, 3),
    "synchronised": lambda policy, backward, on, seed: Synchronised(ENV, on, 4),
    "jittered": lambda policy, backward, on, seed: Jittered(ENV, on, 4, seed=seed),
    "refreshed": lambda policy, backward, on, seed: Refreshed(
        on, Buffer(ENV, 30, per_condition=25, max_reuse=9, max_age=9, replacement=False, seed=seed), 0.5, 3, seed=seed
    ),
    "repeated": lambda policy, backward, on, seed: Repeated(ENV, on, 4),
    "all at once": lambda policy, backward, on, seed: Stale(
        ENV, LocalSearch(ENV, policy, backward, Replay(ENV, on, Buffer(ENV, 30, seed=seed)), seed=seed), 2
    ),
}  # fmt: skip


def trainer(name: str, steps: int, seed: int) -> Trainer[Any]:
    policy = network(ENV, seed)
    with torch.random.fork_rng():
        backward = MLPBackward(ENV, policy)
    on = OnPolicy(ENV, policy, 8, exploration=EpsilonUniform(Linear(0.5, 0.0, 12)), seed=seed)
    sampler = SAMPLERS[name](policy, backward, on, seed)
    return Trainer(Objective(policy, backward, Alpha(0.5), DevGrad()), sampler, steps=steps, lr=0.05)


@pytest.mark.parametrize("stop", [1, 6])
@pytest.mark.parametrize("name", SAMPLERS)
def test_resume_is_exact(name: str, stop: int) -> None:
    torch.manual_seed(0)
    whole = trainer(name, 12, seed=0)
    whole.run()
    torch.manual_seed(0)
    first = trainer(name, stop, seed=0)
    first.run()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    torch.manual_seed(1)
    second = trainer(name, 12, seed=1)  # nothing may depend on what the new process begins with
    unlike = differences(snapshot(second), snapshot(whole))
    assert any(line.startswith(".sampler") for line in unlike), "there is something to restore"
    second.load_state_dict(torch.load(file, weights_only=True))
    second.run()
    assert not differences(snapshot(second), snapshot(whole))
