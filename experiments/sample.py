"""``gfn-sample run=… n=1000``: terminal states drawn from the policy of a run, with their log-rewards."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

BATCH = 1024
COLUMNS = ("state", "log_reward", "length", "log_pf", "log_pb")


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="sample")
def main(config: DictConfig) -> None:
    """Sample from a run into a CSV or JSON-lines file, or to the terminal."""
    from experiments.build import require_settings

    schema = {"run": str, "n": int, "format": Literal["csv", "jsonl"], "out": str, "seed": int, "threads": int}
    settings = require_settings(config, schema)
    rows = sample(Path(settings["run"]), settings["n"], settings["seed"], settings["threads"])
    if settings["out"] == "-":
        write(rows, settings["format"], sys.stdout)
        return
    target = Path(settings["out"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "w", encoding="utf-8", newline="") as file:
        count = write(rows, settings["format"], file)
    print(f"{count} samples written to {target}")


def sample(directory: Path, n: int, seed: int, threads: int) -> Iterator[dict[str, Any]]:
    """Draw ``n`` trajectories from the newest sound checkpoint of a run, on policy; one row for each.

    Raises:
        RunError, CheckpointError: if there is nothing sound to sample from.
    """
    import torch

    from experiments.runs import open_run
    from gfn.sampling import rollout

    torch.set_num_threads(threads)
    _, parts, _ = open_run(directory)
    env, objective = parts["env"], parts["objective"].eval()
    generator = torch.Generator(env.device).manual_seed(seed)
    for start in range(0, n, BATCH):
        t = rollout(env, objective.policy, env.reset(min(BATCH, n - start), generator), generator=generator)
        with torch.no_grad():
            scores = objective.scores(t)
        columns = (
            env.describe(t.final),
            t.log_reward.tolist(),
            t.lengths.tolist(),
            scores.log_pf.double().sum(1).tolist(),
            scores.log_pb.double().sum(1).tolist(),
        )
        for row in zip(*columns, strict=True):
            yield dict(zip(COLUMNS, row, strict=True))


def write(rows: Iterator[dict[str, Any]], form: str, file: TextIO) -> int:
    """Write rows as CSV with a header, or as one JSON object a line; returns how many."""
    count = 0
    table = csv.writer(file, lineterminator="\n")
    if form == "csv":
        table.writerow(COLUMNS)
    for row in rows:
        if form == "csv":
            table.writerow(row[column] for column in COLUMNS)
        else:
            file.write(json.dumps(row) + "\n")
        count += 1
    return count


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, frozenset())


if __name__ == "__main__":
    cli()
