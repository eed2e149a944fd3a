"""Whatever the data, the minimiser is the same: exact distances, from data the current policy did not draw.

A policy with one logit for each state and action can represent every distribution, so nothing but
the balance decides where training ends, as long as the data reach every trajectory.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch

from gfn.buffers import Buffer
from gfn.exact import log_terminal, state_graph
from gfn.metrics import total_variation
from gfn.objectives import Alpha, DevGrad, LearnedLogZ, Objective
from gfn.policies import Tabular, UniformBackward
from gfn.priorities import ByReward
from gfn.samplers import (
    BackwardFromData,
    LocalSearch,
    Mixture,
    OnPolicy,
    Refreshed,
    Repeated,
    Replay,
    Stale,
    every_terminal,
)
from gfn.schedules import Cosine
from gfn.training import Trainer
from tests.stored import grid, uniform

ENV = grid()
GRAPH = state_graph(ENV)
BACKWARD = UniformBackward(ENV)
STEPS, BATCH = 150, 32


def target(seed: int) -> BackwardFromData[Any]:
    return BackwardFromData(ENV, BACKWARD, every_terminal, BATCH, inverse_temperature=1.0, seed=seed)


DATA: dict[str, Callable[[OnPolicy[Any], int], Any]] = {
    "uniform": lambda on, seed: uniform(ENV, batch_size=BATCH, seed=seed),
    "target": lambda on, seed: target(seed),
    "stale": lambda on, seed: Stale(ENV, on, 20),
    "replay": lambda on, seed: Replay(ENV, on, Buffer(ENV, 500, seed=seed), 3.0, batch_size=BATCH, seed=seed),
}
MORE: dict[str, Callable[[OnPolicy[Any], int], Any]] = {
    "re-expanded": lambda on, seed: Replay(
        ENV, on, Buffer(ENV, 500, ByReward(), seed=seed), 3.0, True, BACKWARD, BATCH, seed
    ),
    "local search": lambda on, seed: LocalSearch(
        ENV, on.policy, BACKWARD, on, 1, fraction=1.0, accept="metropolis", seed=seed
    ),
    "repeated": lambda on, seed: Repeated(ENV, on, 4),
    "refreshed": lambda on, seed: Refreshed(
        OnPolicy(ENV, on.policy, 100, seed=seed), Buffer(ENV, 600, seed=seed), 0.5, 5, BATCH, seed=seed
    ),
    "mixture": lambda on, seed: Mixture([on, target(seed)], [1, 1], BATCH),
    "averaged": lambda on, seed: OnPolicy(ENV, on.policy, BATCH, averaging=0.9, seed=seed),
}  # fmt: skip


def distances(make: Callable[[OnPolicy[Any], int], Any], partition: Any, seed: int) -> tuple[float, float]:
    """Total variation from R/Z before and after training."""
    torch.manual_seed(seed)
    policy = Tabular(ENV, ENV.forward_mask, torch.zeros(GRAPH.n, ENV.n_actions))
    sampler = make(OnPolicy(ENV, policy, BATCH, seed=seed), seed)
    before = total_variation(log_terminal(GRAPH, policy), GRAPH.log_target)
    objective = Objective(policy, BACKWARD, Alpha(1.0), partition())
    Trainer(objective, sampler, steps=STEPS, lr=Cosine(0.05, 0.002, STEPS)).run()
    return before, total_variation(log_terminal(GRAPH, policy), GRAPH.log_target)


@pytest.mark.parametrize("partition", [LearnedLogZ, DevGrad])
@pytest.mark.parametrize("name", DATA)
def test_the_minimiser_does_not_depend_on_the_data(name: str, partition: Any) -> None:
    """4 800 trajectories; measured medians are 0.001 to 0.006, the latter for uniform data."""
    runs = [distances(DATA[name], partition, seed) for seed in range(3)]
    assert min(before for before, _ in runs) > 0.3
    assert median(after for _, after in runs) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("partition", [LearnedLogZ, DevGrad])
@pytest.mark.parametrize("name", MORE)
def test_nor_on_further_ways_to_come_by_them(name: str, partition: Any) -> None:
    runs = [distances(MORE[name], partition, seed) for seed in range(3)]
    assert min(before for before, _ in runs) > 0.3
    assert median(after for _, after in runs) <= 0.02
