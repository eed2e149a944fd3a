"""``gfn-train``: compose a run from the config, train it, and leave a run directory."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

GROUPS = frozenset(
    {"env", "policy", "backward", "objective", "balance", "flow", "divergence", "partition", "exploration", "sampler"}
    | {"trainer", "evaluator", "logger", "experiment"}
)


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="train")
def main(config: DictConfig) -> float | None:
    """Train the composed run; the final total variation if it is known, for sweeps that optimise."""
    from hydra.core.hydra_config import HydraConfig

    runtime = HydraConfig.get()
    return train(config, Path(runtime.runtime.output_dir), list(runtime.overrides.task))


def train(config: DictConfig, run_dir: Path, overrides: list[str]) -> float | None:
    """Build, resume if there is something to resume, train, draw and describe."""
    from experiments import runs
    from experiments.build import build
    from experiments.figures import draw
    from experiments.inventory import inventory
    from experiments.lock import occupied
    from experiments.targets import apart_from
    from gfn import processes
    from gfn.callbacks import Signals
    from gfn.distributed import Interrupted

    with processes.together(), Signals() as signals, ExitStack() as stack:
        run_dir = processes.gathered(run_dir)[0]
        config.run = str(run_dir)
        if processes.rank() == 0:
            stack.enter_context(occupied(run_dir))
        with apart_from(run_dir):
            run = build(config, run_dir, signals.wanted)
        runs.prepare(run, run_dir, overrides)
        if run.trainer.steps == 0 and processes.rank() == 0:
            print(inventory(run))
        started = run.trainer.step
        try:
            report = run.trainer.run()
        except Interrupted:  # by one of the signals, before the update had begun
            report = None
        if processes.rank() == 0:
            draw(run, run_dir)
            if report is not None or started < run.trainer.steps:  # else its README tells of how it ended
                runs.describe(run, run_dir, report, started)
            print(f"{run_dir}: {run.trainer.step} of {run.trainer.steps} steps; see {run_dir / 'README.md'}")
    if signals.received is not None:
        sys.exit(128 + signals.received)
    return (report.evaluation or {}).get("tv") if report is not None else None


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, GROUPS, resumes=True)


if __name__ == "__main__":
    cli()
