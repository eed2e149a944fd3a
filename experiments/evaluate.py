"""``gfn-eval run=…``: measure the policy of a run, or of all runs of a sweep, exactly where that is possible."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

SETTINGS = {"run": str | None, "runs": str | None, "out": str, "n_samples": int, "seed": int, "threads": int}


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="evaluate")
def main(config: DictConfig) -> None:
    """Print every metric of a run and write them to its ``evaluation.json``; of a sweep's runs, make a table."""
    import torch

    from experiments.build import require_settings
    from experiments.schema import ConfigError

    settings = require_settings(config, SETTINGS)
    run, runs = settings["run"], settings["runs"]
    if (run is None) == (runs is None):
        given = "both were given" if run is not None else "a value is missing"
        raise ConfigError([f"run: {given}; give run=… for one run, or runs='…/*' for all that match"])
    torch.set_num_threads(settings["threads"])
    if run is not None:
        evaluate(Path(run), settings["n_samples"], settings["seed"])
        return
    from experiments.sweeps import tabulate

    found = [Path(path) for path in sorted(glob.glob(runs)) if Path(path).is_dir()]
    tabulate(found, Path(settings["out"]), settings["n_samples"], settings["seed"])


def evaluate(directory: Path, n_samples: int, seed: int) -> dict[str, float]:
    """Measure a run and print what was found.

    Raises:
        RunError, CheckpointError: if there is nothing sound to evaluate.
    """
    _, result = measured(directory, n_samples, seed)
    width = max(map(len, result))
    print(f"{directory} after update {result['step']} ({n_samples} samples, seed {seed}):")
    for name, value in result.items():
        if name != "step":
            print(f"  {name:<{width}}  {value:.6g}")
    print(f"written to {directory / 'evaluation.json'}")
    return result


def measured(directory: Path, n_samples: int, seed: int) -> tuple[dict[str, Any], dict[str, float]]:
    """The config of a run, and the ``step`` and metrics of its newest sound checkpoint, also written to a file there.

    Raises:
        RunError, CheckpointError: if there is nothing sound to evaluate.
    """
    from experiments.runs import open_run
    from gfn import storage
    from gfn.evaluation import Evaluator

    config, parts, step = open_run(directory)
    configured: dict[str, Any] = config.get("evaluator") or {}
    kept = {key: value for key, value in configured.items() if not key.startswith("_")}
    kept |= {"n_samples": n_samples, "seed": seed}
    result = {"step": step, **Evaluator(parts["env"], parts["objective"], **kept)(step)}
    written = {"n_samples": n_samples, "seed": seed, **result}
    storage.replace(directory / "evaluation.json", (json.dumps(written, indent=2) + "\n").encode())
    return config, result


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, frozenset())


if __name__ == "__main__":
    cli()
