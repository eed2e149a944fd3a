"""``gfn-eval run=…``: measure the policy of a run, exactly where that is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Print every metric of a run and write them to its ``evaluation.json``."""
    from experiments.build import require_settings

    settings = require_settings(config, {"run": str, "n_samples": int, "seed": int, "threads": int})
    evaluate(Path(settings["run"]), settings["n_samples"], settings["seed"], settings["threads"])


def evaluate(directory: Path, n_samples: int, seed: int, threads: int) -> dict[str, float]:
    """Metrics of the newest sound checkpoint of a run directory.

    Raises:
        RunError, CheckpointError: if there is nothing sound to evaluate.
    """
    import torch

    from experiments.runs import open_run
    from gfn import storage
    from gfn.evaluation import Evaluator

    torch.set_num_threads(threads)
    config, parts, step = open_run(directory)
    configured: dict[str, Any] = config.get("evaluator") or {}
    kept = {key: value for key, value in configured.items() if not key.startswith("_")}
    kept |= {"n_samples": n_samples, "seed": seed}
    evaluator = Evaluator(parts["env"], parts["objective"], **kept)
    result = evaluator(step)
    target = directory / "evaluation.json"
    written = {"step": step, "n_samples": n_samples, "seed": seed, **result}
    storage.replace(target, (json.dumps(written, indent=2) + "\n").encode())
    width = max(map(len, result))
    print(f"{directory} after update {step} ({n_samples} samples, seed {seed}):")
    for name, value in result.items():
        print(f"  {name:<{width}}  {value:.6g}")
    print(f"written to {target}")
    return result


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, frozenset())


if __name__ == "__main__":
    cli()
