"""``gfn-export run=…``: the weights of a run as safetensors, with its config and a model card, to pass on.

In Python a run, exported or not, is opened in two lines::

    from experiments.trials import finished
    run = finished("runs/four_corners/2026-01-31_12-00-00")  # run.policy, run.env, run.lines
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra

from experiments.command import run_command

if TYPE_CHECKING:
    from omegaconf import DictConfig

SETTINGS = {"run": str, "out": str}
WEIGHTS = "weights.safetensors"


@hydra.main(version_base="1.3", config_path="pkg://configs", config_name="export")
def main(config: DictConfig) -> None:
    """Write weights, config and model card of a run's newest sound checkpoint into a folder."""
    from experiments.build import require_settings

    settings = require_settings(config, SETTINGS)
    files = export(Path(settings["run"]), Path(settings["out"]))
    print(f"{', '.join(path.name for path in files)} written to {settings['out']}")


def export(directory: Path, out: Path) -> list[Path]:
    """Write ``weights.safetensors``, ``config.yaml`` and ``README.md`` about a run into a folder.

    Raises:
        RunError, CheckpointError: if there is nothing sound to export.
    """
    from safetensors.torch import save

    from experiments.runs import open_run
    from gfn import storage
    from gfn.callbacks import read_lines

    config, parts, step = open_run(directory)
    state = parts["objective"].state_dict()
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}
    evaluated = [line for line in read_lines(directory / "metrics.jsonl") if "eval/elbo" in line]
    card = model_card(config, parts, step, evaluated[-1] if evaluated else {})
    contents = {
        WEIGHTS: save(weights, {"step": str(step)}),
        "config.yaml": (directory / "config.yaml").read_bytes(),
        "README.md": card.encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        storage.replace(out / name, content)
    return [out / name for name in contents]


def weights_of(directory: Path) -> tuple[dict[str, Any], int]:
    """The tensors of an exported run, and after how many updates they were.

    Raises:
        RunError: if there are none, or the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    from experiments.runs import RunError

    path = directory / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, int(file.metadata()["step"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}; export the run again") from error


def model_card(config: dict[str, Any], parts: dict[str, Any], step: int, last: dict[str, Any]) -> str:
    """What a stranger needs to know: what was trained for what, how well it did, how to load it."""
    import yaml

    from experiments.runs import versions

    count = sum(parameter.numel() for parameter in parts["policy"].parameters())
    chosen = {
        stage: str(node["_target_"]) for stage, node in config.items() if isinstance(node, dict) and "_target_" in node
    }
    head = yaml.safe_dump({"library_name": "fgfn", "tags": ["gflownet", chosen["env"].rpartition(".")[2].lower()]})
    rows = [
        f"| {name.removeprefix('eval/')} | {value:.6g} |" for name, value in last.items() if name.startswith("eval/")
    ]
    parts_table = [f"| {stage} | `{name}` |" for stage, name in chosen.items()]
    lines = [
        "---", head.rstrip(), "---", "",
        f"# {config['name']}", "",
        f"A generative flow network for `{chosen['env']}`: a policy of {count} parameters (`{chosen['policy']}`)",
        "that draws objects in proportion to their reward, step by step.",
        f"Trained by f-GFN for {step} updates, seed {config['seed']}.", "",
        "## Use", "",
        "```python",
        "from experiments.trials import finished",
        'run = finished(".")  # this folder: run.policy, run.env',
        "```", "",
        "## Parts", "", "| part | what |", "|---|---|", *parts_table, "",
        "## Last evaluation", "",
        *(["| metric | value |", "|---|---|", *rows] if rows else ["None was made."]), "",
        "## Limits", "",
        "What it samples is what its reward asks for, within its environment; rewards are models and can be wrong.",
        "Where no exact distance stands above, metrics are of its own samples and miss modes that it never visits.", "",
        "## Versions", "", versions(), "",
    ]  # fmt: skip
    return "\n".join(lines)


def cli() -> None:
    """Entry point of the console command."""
    run_command(main, frozenset())


if __name__ == "__main__":
    cli()
