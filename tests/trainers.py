"""Small trainers and reporting callbacks that several tests share."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid, Sparse
from gfn.environment import DiscreteEnvironment
from gfn.evaluation import Evaluator
from gfn.exploration import EpsilonUniform
from gfn.objectives import Alpha, Divergence, LearnedLogZ, Objective, Partition
from gfn.policies import MLPBackward, MLPPolicy
from gfn.samplers import OnPolicy
from gfn.schedules import Cosine, Linear, Number
from gfn.training import Report, Trainer


def small_trainer(
    *,
    steps: int = 12,
    partition: Partition | None = None,
    divergence: Divergence | None = None,
    epsilon: Number = 0.0,
    policy: type[MLPPolicy[GridStates]] = MLPPolicy,
    width: int = 8,
    evaluate_every: int | None = 3,
    n_samples: int = 8,
    seed: int = 0,
    **settings: Any,
) -> Trainer[GridStates]:
    """On-policy training, P_B learned and tied, on a 4 × 4 grid with 3 modes; no evaluator if it is never asked."""
    env = Hypergrid(4, 2, Sparse(0.1))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        forward = policy(env, width, 1)
        backward = MLPBackward(env, forward)
    objective = Objective(forward, backward, divergence or Alpha(1.0), partition or LearnedLogZ())
    sampler = OnPolicy(env, forward, batch_size=8, exploration=EpsilonUniform(epsilon), seed=seed)
    evaluator = Evaluator(env, objective, evaluate_every, n_samples, seed=seed) if evaluate_every is not None else None
    return Trainer(objective, sampler, steps=steps, evaluator=evaluator, **settings)


def scheduled_trainer(**settings: Any) -> Trainer[GridStates]:
    """A small trainer in which all that can be scheduled is."""
    scheduled = {
        "divergence": Alpha(Linear(0.0, 1.5, 20)),
        "epsilon": Linear(0.5, 0.0, 15),
        "lr": Cosine(1e-2, 1e-4, 20),
        "partition": LearnedLogZ("data", lr=Linear(0.1, 0.01, 20)),
    }
    return small_trainer(**(scheduled | settings))


_BORROWED = "__init__ reset step undo is_initial is_terminal log_reward describe forward_mask backward_mask encode"
_METHODS = {name: getattr(Hypergrid, name) for name in (*_BORROWED.split(), "_move")}
# The grid as an environment that cannot be listed and does not know its modes.
Unlisted: Any = type("Unlisted", (DiscreteEnvironment,), _METHODS)


class Recorder:
    """Keeps every report, and notes how it was started and closed."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.started: list[int] = []
        self.closed = 0

    def start(self, step: int) -> None:
        self.started.append(step)

    def __call__(self, report: Report) -> None:
        self.reports.append(report)

    def close(self) -> None:
        self.closed += 1


class StopAfter:
    """Asks to stop after ``step`` updates; it is both the callback that counts and the ``stop`` that is asked."""

    def __init__(self, step: int) -> None:
        self.step, self.now = step, 0

    def start(self, step: int) -> None:
        self.now = step

    def __call__(self, report: Report) -> None:
        self.now = report.step

    def close(self) -> None:
        pass

    def wanted(self) -> bool:
        return self.now >= self.step


def snapshot(trainer: Trainer[Any]) -> dict[str, Any]:
    """A copy of the trainer's whole state, which further training does not change."""
    return copy.deepcopy(trainer.state_dict())


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal bit for bit, structure, types and tensors' dtypes included."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    """Where two nested states differ, for messages."""
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return [line for key in a for line in differences(a[key], b[key], f"{place}.{key}")]
    return [] if same(a, b) else [place]


def parts_of(directory: Path) -> list[str]:
    """Names of everything in a directory, sorted."""
    return sorted(path.name for path in directory.iterdir())
