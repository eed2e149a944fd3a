"""Figures: learned distributions beside their target, progress against trajectories, and samples.

:func:`draw` writes those of a run into its directory; the others return a figure of matplotlib, for notebooks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from experiments.build import Run
from experiments.reports.curves import COLOURS, STYLES
from gfn import exact
from gfn.callbacks import read_lines
from gfn.environment import as_multimodal
from gfn.evaluation import LADDER
from gfn.metrics import total_variation
from gfn.objectives import Divergence
from gfn.sampling import rollout

PAINTED = 512  # samples
MARKERS = "os^Dv"


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
    paths = [path for path in drawn if path is not None]
    if (directory / "tensorboard").is_dir():
        _show(paths, directory / "tensorboard", run.trainer.step)
    return paths


def _show(paths: Sequence[Path], directory: Path, step: int) -> None:
    """Pictures for TensorBoard."""
    import matplotlib.image
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(directory)) as writer:
        for path in paths:
            writer.add_image(path.stem, matplotlib.image.imread(path), step, dataformats="HWC")


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
    return _saved(figure, path)


def draw_distribution(run: Run, graph: exact.StateGraph[Any], path: Path) -> Path:
    """Target and learned distribution, with the total variation between them."""
    learned = exact.log_terminal(graph, run.parts["policy"]).cpu()
    tv = total_variation(learned, graph.log_target.cpu()) / graph.n_conditions
    figure = distributions(run.parts["env"], graph, {"learned": learned})
    figure.suptitle(f"{run.config['name']}: total variation {tv:.4f} after {run.trainer.trajectories} trajectories")
    return _saved(figure, path)


def distributions(env: Any, graph: exact.StateGraph[Any], learned: Mapping[str, Tensor]) -> Any:
    """The target and learned distributions on the scale of the target, or against it where there is no picture.

    Args:
        env: the environment.
        graph: its states, with the target.
        learned: log-probabilities of the terminal states, each ``[X]``, by what to call them.
    """
    import matplotlib.pyplot as plt

    target, terminal = graph.log_target.cpu(), graph.states[graph.terminal]
    shown = {"target": target, **learned} if isinstance(env, Drawable) else dict(learned)
    columns = len(shown) if len(shown) <= 4 else 3
    rows = -(-len(shown) // columns)
    figure, grid = plt.subplots(
        rows, columns, figsize=(3.8 * columns + 1, 3.8 * rows), layout="constrained", squeeze=False, sharey=True
    )
    axes = grid.flatten()
    for unused in axes[len(shown) :]:
        unused.axis("off")
    if isinstance(env, Drawable):
        pictures = [env.image(terminal, log_p.exp()).numpy() for log_p in shown.values()]
        top, highest = float(pictures[0].max()), max(float(picture.max()) for picture in pictures)
        for axis, title, picture in zip(axes, shown, pictures, strict=False):
            image = axis.imshow(picture, origin="lower", vmin=0, vmax=top, cmap="viridis")
            axis.set(title=title, xlabel="coordinate 0", ylabel="coordinate 1" if axis in grid[:, 0] else "")
        beyond = "max" if highest > 1.05 * top else "neither"
        figure.colorbar(image, ax=grid, label="probability", extend=beyond)  # pyright: ignore[reportPossiblyUnboundVariable]
        return figure
    low = max(float(target[target.isfinite()].min()), -50.0)
    for axis, (title, log_p) in zip(axes, shown.items(), strict=False):
        axis.scatter(target.numpy(), log_p.numpy(), s=6, alpha=0.5, edgecolors="none")
        axis.plot([low, float(target.max())], [low, float(target.max())], color="black", linewidth=0.8)
        axis.set(title=title, xlabel="log probability, target (nats)")
    grid[0][0].set(ylabel="log probability, learned (nats)")
    return figure


def draw_progress(run: Run, directory: Path, path: Path) -> Path | None:
    """Progress from the metrics file; None without one."""
    lines = read_lines(directory / "metrics.jsonl")
    if not lines:
        return None
    figure = progress(run.parts["env"], lines)
    figure.suptitle(str(run.config["name"]))
    return _saved(figure, path)


def progress(env: Any, lines: list[dict[str, Any]]) -> Any:
    """Total variation (or the loss), modes found and log Z against trajectories, from the lines of a metrics file."""
    import matplotlib.pyplot as plt

    modal = as_multimodal(env)
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
    return figure


def ladder(ends: Mapping[str, Mapping[str, float]]) -> Any:
    """The log Ẑ that the DevGrad of each α takes, for several evaluations by what to call them, and the exact one."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
    for i, (label, end) in enumerate(ends.items()):
        values = [end[f"eval/log_z_alpha_{alpha:g}"] for alpha in LADDER]
        colour, style, marker = COLOURS[i % len(COLOURS)], STYLES[i // 2 % len(STYLES)], MARKERS[i % len(MARKERS)]
        axis.plot(LADDER, values, style, marker=marker, color=colour, label=label)
    exact_log_z = [end["eval/log_z_exact"] for end in ends.values() if "eval/log_z_exact" in end]
    if exact_log_z:
        axis.axhline(exact_log_z[0], color="black", linewidth=0.8, linestyle="--", label="exact log Z")
    axis.set(xlabel="α of the estimate", ylabel="log Ẑ (nats)", xticks=LADDER)
    axis.legend()
    return figure


def losses(divergences: Mapping[str, Divergence], reach: float = 4.0) -> Any:
    """What divergences do: f against the ratio of model to target, and loss and slope against the residual Δ."""
    import matplotlib.pyplot as plt

    delta = torch.linspace(-reach, reach, 401, dtype=torch.float64)
    ratio = torch.linspace(0.02, 4, 400, dtype=torch.float64)
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for i, (label, divergence) in enumerate(divergences.items()):
        look = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // 2 % len(STYLES)], "label": label}
        axes[0].plot(ratio.numpy(), divergence.generator(ratio).numpy(), **look)
        axes[1].plot(delta.numpy(), divergence.loss(delta).numpy(), **look)
        axes[2].plot(delta.numpy(), divergence.slope(delta).numpy(), **look)
    axes[0].set(xlabel="u = model / target", ylabel="f(u)", ylim=(0, 3))
    axes[1].set(xlabel="Δ (nats): model below target | above", ylabel="loss L(Δ)", ylim=(0, 8))
    axes[2].set(xlabel="Δ (nats): pushed up | pushed down", ylabel="slope L'(Δ)", ylim=(-4, 4))
    axes[0].legend()
    for axis in axes[1:]:
        axis.axvline(0, color="black", linewidth=0.5)
    return figure


def _saved(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

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
