"""A small run of each environment, with everything on: replay by priority, exploration, schedules, evaluation."""

from __future__ import annotations

from pathlib import Path

from experiments.build import Run, build
from tests.composing import composed

EVERYTHING = (
    "sampler=replay", "sampler/buffer=mixed", "sampler.batch_size=8", "exploration=epsilon",
    "exploration.epsilon=linear:0.5:0.1", "sampler.buffer.priority.weight=linear:0.2:0.8",
    "trainer.lr=cosine:0.01:0.001",
    "evaluator.every=3", "evaluator.n_samples=16", "trainer.steps=8", "logger=quiet", "logger.metrics.every=1",
)  # fmt: skip
ENVIRONMENTS = {
    "hypergrid": ("env.side=4", "policy.width=8"),
    "synthesis": ("env=synthesis", "env.size=40", "env.max_reactions=2", "backward=exact_edges"),
    "tokens": ("env=tokens_toy", "env.max_tokens=3", "policy.width=8", "sampler.sampler.group_size=4"),
    "diffusion": ("env=diffusion", "env.steps=3", "policy.width=8"),
}


def small_run(name: str, directory: Path, stop_after: int | None = None, *overrides: str) -> Run:
    """A run of an environment in a directory; it asks to stop after so many updates of this process."""
    chosen = [o for o in EVERYTHING if not (name == "diffusion" and o.startswith("exploration"))]
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == stop_after

    return build(composed(*ENVIRONMENTS[name], *chosen, *overrides, run=str(directory)), directory, stop)
