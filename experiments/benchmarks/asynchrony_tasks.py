"""What asynchronous training is timed at: expressions with an exact target, molecules with quick and slow rewards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from envs.synthesis.rewards import Property
from envs.synthesis.rewards.reward import Values


@dataclass(frozen=True)
class Slow(Property):
    """A property of molecules that takes its time, as docking or a judge on another machine does, and no core.

    Args:
        name: of the property.
        seconds: for each molecule.
    """

    seconds: float = 0.02

    def __call__(self, smiles: Sequence[str]) -> Values:
        time.sleep(self.seconds * len(smiles))
        return super().__call__(smiles)

    @property
    def quick(self) -> Property:
        """The same property, at once."""
        return Property(self.name)


@dataclass(frozen=True)
class Task:
    """What is learned, and how far.

    Attributes:
        title: for readers.
        overrides: the config, without the sampler.
        batch: trajectories of an update.
        group: trajectories of a group.
        lease: trajectories that a searcher makes at once.
        metric: what is to reach the goal: ``kl_model_target`` downwards, or a number of modes found in training.
        goal: where it is reached.
        steps: updates of a run.
        every: updates between two looks at the metric.
        waits: whether searchers mostly wait for the reward, so that there may be more of them than cores.
    """

    title: str
    overrides: tuple[str, ...]
    batch: int
    group: int
    lease: int
    metric: str
    goal: float
    steps: int
    every: int
    waits: bool = False

    @property
    def groups(self) -> int:
        """Units of work in a batch."""
        return self.batch // self.lease

    def reached(self, value: float) -> bool:
        """Whether a value of the metric is at the goal."""
        return value <= self.goal if self.metric == KL else value >= self.goal


KL, MODES = "kl_model_target", "good_scaffolds"
MOLECULES = ("env=synthesis", "env.max_reactions=2", "divergence=alpha", "divergence.alpha=1.0")
SLOW = ("env.reward._target_=experiments.benchmarks.asynchrony_tasks.Slow", "env.reward.seconds=0.02")
TASKS = {
    "tokens": Task(
        "expressions",
        ("experiment=tokens/expressions", "divergence.alpha=1.0", "trainer.lr=3e-4", "evaluator.n_samples=2048"),
        batch=128, group=16, lease=128, metric=KL, goal=0.7, steps=300, every=10,
    ),
    "molecules": Task(
        "molecules", MOLECULES, batch=64, group=16, lease=16, metric=MODES, goal=200.0, steps=60, every=1
    ),
    "slow": Task(
        "molecules, 20 ms each", (*MOLECULES, *SLOW), batch=64, group=16, lease=16, metric=MODES, goal=200.0,
        steps=60, every=1, waits=True,
    ),
}  # fmt: skip
