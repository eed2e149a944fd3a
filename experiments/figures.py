"""Figures of a single run: the learned distribution beside its target, and progress against trajectories."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from experiments.build import Run
from gfn import exact
from gfn.callbacks import read_lines
from gfn.environment import as_multimodal
from gfn.metrics import total_variation
from gfn.sampling import rollout

PAINTED = 512  # samples


@runtime_checkable
class Drawable(Protocol):
    """An environment whose terminal states lie on a plane, so that a distribution over them is a picture."""

    def image(self, states: Any, values: Tensor, /) -> Tensor:
        """Values of terminal states ``[X]`` summed into a picture ``[height, width]``."""
        ...


@runtime_checkable
class Painted(Protocol):
    """An environment that paints terminal states itself."""

    def paint(self, states: Any, figure: Any, /) -> None:
        """Fill a figure of matplotlib with terminal states."""
        ...


def draw(run: Run, directory: Path) -> list[Path]:
    """Draw what can be drawn of a run into ``figures/``; returns the files."""
    import matplotlib

    matplotlib.use("Agg")
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    folder = directory / "figures"
    folder.mkdir(exist_ok=True)
    drawn = [draw_progress(run, directory, folder / "progress.png")]
    evaluator = run.parts["evaluator"]
    if evaluator is not None and evaluator.graph is not None:
        drawn.append(draw_distribution(run, evaluator.graph, folder / "distribution.png"))
    if isinstance(run.parts["env"], Painted):
        drawn.append(draw_samples(run, run.parts["env"], folder / "samples.png"))
    return [path for path in drawn if path is not None]


@torch.no_grad()
def draw_samples(run: Run, painted: Painted, path: Path) -> Path:
    """Samples of the policy as their environment paints them, drawn by a generator of their own."""
    import matplotlib.pyplot as plt

    env, policy = run.parts["env"], run.parts["policy"]
    generator = torch.Generator(env.device).manual_seed(run.config["seed"])
    samples = rollout(env, policy, env.reset(PAINTED, generator), generator=generator).final
    figure = plt.figure(figsize=(9, 4.5), layout="constrained")
    painted.paint(samples, figure)
    figure.suptitle(f"{run.config['name']}: samples after {run.trainer.trajectories} trajectories")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def draw_distribution(run: Run, graph: exact.StateGraph[Any], path: Path) -> Path:
    """Target and learned distribution side by side on one scale, or one against the other where there is no picture."""
    import matplotlib.pyplot as plt

    env, policy = run.parts["env"], run.parts["policy"]
    learned = exact.log_terminal(graph, policy).cpu()
    target, terminal = graph.log_target.cpu(), graph.states[graph.terminal]
    tv = total_variation(learned, target) / graph.n_conditions
    if isinstance(env, Drawable):
        pictures = {"target": env.image(terminal, target.exp()), "learned": env.image(terminal, learned.exp())}
        figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
        top = max(float(picture.max()) for picture in pictures.values())
        for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
            shown = axis.imshow(picture.numpy(), origin="lower", vmin=0, vmax=top, cmap="viridis")
            axis.set(title=title, xlabel="coordinate 0", ylabel="coordinate 1")
        figure.colorbar(shown, ax=axes, label="probability")  # pyright: ignore[reportPossiblyUnboundVariable]
    else:
        figure, axis = plt.subplots(figsize=(5, 5), layout="constrained")
        axis.scatter(target.numpy(), learned.numpy(), s=6, alpha=0.5, edgecolors="none")
        low = max(float(target[target.isfinite()].min()), -50.0)
        axis.plot([low, float(target.max())], [low, float(target.max())], color="black", linewidth=0.8)
        axis.set(xlabel="log probability, target (nats)", ylabel="log probability, learned (nats)")
    figure.suptitle(f"{run.config['name']}: total variation {tv:.4f} after {run.trainer.trajectories} trajectories")
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def draw_progress(run: Run, directory: Path, path: Path) -> Path | None:
    """Total variation, modes found and log Z against trajectories, from the metrics file; None without one."""
    import matplotlib.pyplot as plt

    lines = read_lines(directory / "metrics.jsonl")
    if not lines:
        return None
    modal = as_multimodal(run.parts["env"])
    counts = dict(modal.mode_counts) if modal is not None else {}
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    if not _curve(axes[0], lines, "eval/tv", "total variation"):
        _curve(axes[0], lines, "loss", "loss")
    for style, (name, count) in zip(("-", "--", ":"), counts.items(), strict=False):
        total = f" (of {count})" if count is not None else ""
        _curve(axes[1], lines, name, f"{name.replace('_', ' ')} found{total}", style)
    if counts:
        axes[1].set(ylabel="modes found in training", ylim=(0, None))
        axes[1].legend()
    else:
        _curve(axes[1], lines, "log_reward", "mean log reward (nats)")
    _curve(axes[2], lines, "log_z", "log Z, estimated (nats)")
    true = [line["eval/log_z_exact"] for line in lines if "eval/log_z_exact" in line]
    if true:
        axes[2].axhline(true[-1], color="black", linewidth=0.8, linestyle="--", label="exact")
        axes[2].legend()
    figure.suptitle(str(run.config["name"]))
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _curve(axis: Any, lines: list[dict[str, Any]], name: str, label: str, style: str = "-") -> bool:
    points = [(line["trajectories"], line[name]) for line in lines if name in line]
    if not points:
        return False
    x, y = cast("tuple[list[float], list[float]]", tuple(map(list, zip(*points, strict=True))))
    axis.plot(x, torch.tensor(y).numpy(), style, label=label)
    axis.set(xlabel="trajectories", ylabel=label)
    return True
