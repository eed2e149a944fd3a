"""``gfn-sample run=… n=1000``: terminal states drawn from the policy of a run, with their log-rewards."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TextIO, runtime_checkable

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor

    from gfn.trajectories import Trajectories

BATCH = 1024
COLUMNS = ("state", "log_reward", "length", "log_pf", "log_pb")
SETTINGS = {
    "run": str,
    "n": int,
    "format": Literal["csv", "jsonl", "sdf"],
    "out": str,
    "files": str | None,
    "backward_samples": int,
    "seed": int,
    "threads": int,
}


@runtime_checkable
class Exporting(Protocol):
    """An environment that can write files of its own kind about sampled trajectories."""

    def export(self, t: Any, directory: Path, log_p: Tensor | None = None, /) -> list[Path]:
        """Write them into a folder and return their paths; ``log_p``: estimates for the final states, ``[B]``."""
        ...


@runtime_checkable
class Recorded(Protocol):
    """An environment of molecules, whose terminal states can be records of an SDF file."""

    def records(self, states: Any, facts: Iterable[dict[str, Any]], /) -> Iterator[str]:
        """The record of each state, with facts about it as fields."""
        ...


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="sample")
def main(config: DictConfig) -> None:
    """Sample from a run into a CSV, JSON-lines or SDF file and files of the environment's kind, or to the terminal."""
    from experiments.build import require_settings
    from experiments.schema import ConfigError

    settings = require_settings(config, SETTINGS)
    parts = opened(Path(settings["run"]), settings["threads"])
    if settings["format"] == "sdf" and not isinstance(parts["env"], Recorded):
        kind = type(parts["env"]).__name__
        raise ConfigError([f"format: sdf is for molecules, and this is a run of {kind}; choose csv or jsonl"])
    batches: Iterable[Trajectories[Any]] = draw(parts, settings["n"], settings["seed"])
    if settings["out"] == "-":
        write(parts, batches, settings["format"], sys.stdout)
        return
    folder: str | None = settings["files"] if isinstance(parts["env"], Exporting) else None
    if folder is not None:
        batches = list(batches)  # kept for the files
    target = Path(settings["out"])
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "w", encoding="utf-8", newline="") as file:
        count = write(parts, batches, settings["format"], file)
    print(f"{count} samples written to {target}")
    if folder is not None:
        files = export(parts, list(batches), Path(folder), settings["backward_samples"], settings["seed"])
        print(f"{len(files)} files about them written to {folder}")


def opened(directory: Path, threads: int) -> dict[str, Any]:
    """The parts of a run with the weights of its newest sound checkpoint, ready to be sampled from.

    Raises:
        RunError, CheckpointError: if there is nothing sound to sample from.
    """
    import torch

    from experiments.runs import open_run

    torch.set_num_threads(threads)
    _, parts, _ = open_run(directory)
    parts["objective"].eval()
    return parts


def draw(parts: dict[str, Any], n: int, seed: int) -> Iterator[Trajectories[Any]]:
    """``n`` trajectories of the parts' policy, batch by batch."""
    import torch
    from tqdm import tqdm

    from gfn.sampling import rollout

    env, policy = parts["env"], parts["objective"].policy
    generator = torch.Generator(env.device).manual_seed(seed)
    for start in tqdm(range(0, n, BATCH), desc="sampling", unit=" batches", disable=None, leave=False):
        yield rollout(env, policy, env.reset(min(BATCH, n - start), generator), generator=generator)


def rows(parts: dict[str, Any], t: Trajectories[Any]) -> Iterator[dict[str, Any]]:
    """What is written about each trajectory of a batch."""
    import torch

    env, objective = parts["env"], parts["objective"]
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


def export(
    parts: dict[str, Any], batches: list[Trajectories[Any]], folder: Path, backward_samples: int, seed: int
) -> list[Path]:
    """Have the environment write its files about trajectories, with estimates of log p(x) if walks back are wanted."""
    import torch

    from gfn.backward import terminal_log_prob
    from gfn.trajectories import Trajectories

    env, objective = parts["env"], parts["objective"]
    t, log_p = Trajectories.cat(batches), None
    if backward_samples > 0:
        generator = torch.Generator(env.device).manual_seed(seed)
        policies = objective.policy, objective.backward_policy
        log_p = terminal_log_prob(env, *policies, t.final, backward_samples, generator)
    return env.export(t, folder, log_p)


def write(parts: dict[str, Any], batches: Iterable[Trajectories[Any]], form: str, file: TextIO) -> int:
    """Write trajectories as CSV with a header, as one JSON object a line, or as SDF records; returns how many."""
    count = 0
    table = csv.writer(file, lineterminator="\n")
    if form == "csv":
        table.writerow(COLUMNS)
    for t in batches:
        count += len(t)
        written = rows(parts, t)
        if form == "csv":
            table.writerows([row[column] for column in COLUMNS] for row in written)
        elif form == "jsonl":
            file.writelines(json.dumps(row) + "\n" for row in written)
        else:
            file.writelines(parts["env"].records(t.final, written))
    return count


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, frozenset())


if __name__ == "__main__":
    cli()
