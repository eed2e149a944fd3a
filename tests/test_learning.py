"""Training reaches the exact answer, in a budget, by a margin that the untrained policy misses.

Distances are exact, by enumeration. Thresholds come from the seeds measured, which are named with
each; learning rates are constant throughout.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median

import pytest
import torch

from envs.hypergrid import Classic, GridStates, Hypergrid
from gfn.evaluation import Evaluator
from gfn.objectives import (
    Alpha,
    Clipped,
    DevGrad,
    Divergence,
    ForwardKL,
    Hellinger,
    Huber,
    Jeffreys,
    JensenShannon,
    LearnedLogZ,
    LogCosh,
    Objective,
    Partition,
    ReverseKL,
    Tempered,
)
from gfn.policies import MLPBackward, MLPPolicy, UniformBackward
from gfn.samplers import OnPolicy
from gfn.training import Trainer
from tests.marks import mostly_slow
from tests.trainers import Recorder

Metrics = dict[str, float]


@dataclass(frozen=True)
class Curve:
    """Evaluations of one run.

    Attributes:
        untrained: before the first update.
        evaluations: every few updates, in order.
        found: training metrics of the last update.
    """

    untrained: Metrics
    evaluations: list[Metrics]
    found: Metrics

    def last(self, name: str) -> float:
        return self.evaluations[-1][name]


def learn(
    env: Hypergrid,
    seed: int,
    *,
    steps: int,
    every: int,
    divergence: Divergence,
    partition: Partition,
    learned_backward: bool,
    batch: int = 16,
    width: int = 32,
    lr: float = 5e-3,
    fused: bool = False,
) -> Curve:
    """Train on policy, without exploration, with Adam at a constant rate."""
    torch.manual_seed(seed)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, width, depth=2)
    backward = MLPBackward(env, policy) if learned_backward else UniformBackward(env)
    objective = Objective(policy, backward, divergence, partition)
    evaluator = Evaluator(env, objective, every=every, seed=seed)
    recorder = Recorder()
    sampler = OnPolicy(env, policy, batch_size=batch, fused=fused, seed=seed)
    trainer = Trainer(objective, sampler, steps=steps, lr=lr, evaluator=evaluator, callbacks=[recorder])
    untrained = evaluator(0)
    trainer.run()
    evaluations = [dict(r.evaluation) for r in recorder.reports if r.evaluation is not None]
    return Curve(untrained, evaluations, dict(recorder.reports[-1].metrics))


def trajectory_balance(env: Hypergrid, seed: int, steps: int, every: int, fused: bool = False) -> Curve:
    """The baseline of the literature: TB, learned tied P_B, batch 16, 256 × 2, Adam 1e-3, log Z 0.1."""
    return learn(
        env, seed, steps=steps, every=every, divergence=Alpha(1.0), partition=LearnedLogZ(lr=0.1),
        learned_backward=True, width=256, lr=1e-3, fused=fused,
    )  # fmt: skip


MEMBERS: dict[str, Callable[[], Divergence]] = {
    "forward_kl": ForwardKL,
    "hellinger": Hellinger,
    "reverse_kl": ReverseKL,
    "jensen_shannon": JensenShannon,
    "jeffreys": Jeffreys,
    "huber": Huber,
    "log_cosh": LogCosh,
    "clipped_pearson": lambda: Clipped(Alpha(2.0), 5.0),
    "tempered_forward_kl": lambda: Tempered(ForwardKL(), 0.5),
}


LEARNED = list(itertools.product(MEMBERS, [DevGrad, LearnedLogZ]))


@pytest.mark.parametrize(
    ("member", "partition"),
    mostly_slow(LEARNED, [("hellinger", DevGrad), ("reverse_kl", LearnedLogZ), ("forward_kl", DevGrad)]),
)
def test_every_member_learns(member: str, partition: type[DevGrad] | type[LearnedLogZ]) -> None:
    """6 × 6 points, 4 800 trajectories."""
    curve = learn(
        Hypergrid(6, 2, Classic()), 0, steps=300, every=300, divergence=MEMBERS[member](), partition=partition(),
        learned_backward=False,
    )  # fmt: skip
    assert curve.untrained["tv"] > 0.3
    assert curve.last("tv") <= 0.05
    assert abs(curve.last("log_z_error")) <= 0.05


@pytest.mark.slow
def test_trajectory_balance_solves_8x8() -> None:
    """10 000 trajectories."""
    curves = [trajectory_balance(Hypergrid(8, 2, Classic()), seed, steps=625, every=625) for seed in range(5)]
    assert min(c.untrained["tv"] for c in curves) > 0.3
    assert min(abs(c.untrained["log_z_error"]) for c in curves) > 0.3
    assert median(c.last("tv") for c in curves) <= 0.01
    assert median(abs(c.last("log_z_error")) for c in curves) <= 0.01


@pytest.mark.slow
def test_trajectory_balance_solves_8x8x8x8() -> None:
    """50 000 trajectories; each run counts with the median of its last five evaluations, 2 000 trajectories apart."""
    curves = [trajectory_balance(Hypergrid(8, 4, Classic()), seed, 3125, every=125, fused=True) for seed in range(3)]
    assert min(c.untrained["tv"] for c in curves) > 0.2
    assert max(c.untrained["regions_kept"] for c in curves) < 16
    assert median(median(e["tv"] for e in c.evaluations[-5:]) for c in curves) <= 0.065
    assert [(c.last("regions_kept"), c.found["regions"]) for c in curves] == [(16, 16)] * 3


@pytest.mark.slow
def test_low_alpha_covers_modes_and_high_alpha_seeks_them() -> None:
    """Four corners far apart and nothing between them; no exploration."""
    kept: dict[float, list[float]] = {}
    untrained: dict[float, list[float]] = {}
    for alpha in (0.0, 2.0):
        curves = [
            learn(
                Hypergrid(12, 2, Classic(r0=1e-3)), seed, steps=500, every=500, divergence=Alpha(alpha),
                partition=DevGrad(), learned_backward=False, batch=64, lr=3e-3,
            )
            for seed in range(5)
        ]  # fmt: skip
        kept[alpha] = [c.last("regions_kept") for c in curves]
        untrained[alpha] = [c.untrained["regions_kept"] for c in curves]
    assert mean(untrained[0.0]) - mean(untrained[2.0]) < 1
    assert mean(kept[0.0]) - mean(kept[2.0]) >= 2
