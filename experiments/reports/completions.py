"""Language models with an exact target: objectives at several learning rates, each as fresh and as late as it was run.

    python -m experiments.reports.completions 'runs/*' out=report

takes runs of ``env=tokens`` that differ in ``name`` (the method), ``trainer.lr``, ``sampler.lag`` and ``seed``, and
writes ``completions.png`` and ``completions.md``. A run is said to hold if at its end it is nearer to the target, in
KL(policy‖target), than the model it started from.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import yaml

from experiments.reports.arguments import run_directories
from experiments.reports.curves import COLOURS, STYLES, cell
from experiments.runs import RunError
from gfn.callbacks import read_lines

T = TypeVar("T")
COLUMNS = {
    "eval/kl_model_target": "KL to target",
    "eval/tv_coarse": "TV, coarse",
    "eval/log_z_error": "own log Ẑ − log Z",
    "eval/log_z_importance": "importance log Ẑ",
    "eval/exceptions_mass": "right",
    "eval/unique_right": "right and distinct",
    "eval/entropy": "entropy",
}


@dataclass(frozen=True)
class Outcome:
    """One run: what it was and what it measured.

    Attributes:
        method: name of the run.
        lag: in updates.
        rate: learning rate at the start.
        beta: β of the reward.
        evaluations: lines of its metrics file that hold one.
    """

    method: str
    lag: int
    rate: float
    beta: float
    evaluations: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any]:
        return self.evaluations[-1]

    @property
    def holds(self) -> bool:
        """Whether it ended nearer to the target than it began, as the reference."""
        log_z = self.last["eval/log_z_exact"]
        right = math.expm1(log_z) / math.expm1(1 / self.beta)  # share of the reference, from its log Z
        return self.last["eval/kl_model_target"] < log_z - right / self.beta


def load(directories: Sequence[Path]) -> list[Outcome]:
    """Read runs.

    Raises:
        RunError: if there are none, or one is no run with an exact target of completions.
    """
    if not directories:
        raise RunError("no run directories were given; name some, such as 'runs/*'")
    return [_outcome(directory) for directory in directories]


def _outcome(directory: Path) -> Outcome:
    if not (directory / "config.yaml").is_file():
        raise RunError(f"{directory} is not a run directory: it has no config.yaml")
    config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    try:
        return outcome(config, read_lines(directory / "metrics.jsonl"))
    except RunError as error:
        raise RunError(f"{directory} {error}") from error


def outcome(config: Mapping[str, Any], lines: Sequence[dict[str, Any]], method: str | None = None) -> Outcome:
    """A run from its config and metrics; ``method`` is what to call it in place of its name.

    Raises:
        RunError: if it was not evaluated against an exact target.
    """
    lines = [line for line in lines if "eval/exceptions_mass" in line]
    if not lines:
        raise RunError("has no evaluation against an exact target of completions; run env=tokens")
    rate = config["trainer"]["lr"]
    rate = rate if isinstance(rate, float) else rate.get("start", rate.get("value"))
    return Outcome(method or config["name"], config["sampler"].get("lag", 0), rate, config["env"]["temperature"], lines)


def chosen(outcomes: Sequence[T], **wanted: Any) -> list[T]:
    """Those with these attributes."""
    return [o for o in outcomes if all(getattr(o, key) == value for key, value in wanted.items())]


def values(outcomes: Sequence[Any], attribute: str) -> list[Any]:
    """The different values of an attribute, in order."""
    return sorted({getattr(o, attribute) for o in outcomes})


def _median(outcomes: Sequence[Outcome], name: str) -> float:
    return statistics.median(o.last[name] for o in outcomes)


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: median (and range) over seeds at the end of each method, lag and learning rate."""
    head = ["method", "lag", "learning rate", "seeds", "hold", *COLUMNS.values()]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for lag in values(outcomes, "lag"):
        for method in values(outcomes, "method"):
            for rate in values(outcomes, "rate"):
                group = chosen(outcomes, lag=lag, method=method, rate=rate)
                if group:
                    cells = [cell([o.last[name] for o in group]) for name in COLUMNS]
                    first = [method, str(lag), f"{rate:g}", str(len(group)), str(sum(o.holds for o in group))]
                    rows.append("| " + " | ".join([*first, *cells]) + " |")
    return "\n".join(rows) + "\n"


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Right answers against updates and KL against the learning rate, at each lag; reward against KL and entropy."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lags = values(outcomes, "lag")
    figure, axes = plt.subplots(2, len(lags) + 1, figsize=(4.6 * (len(lags) + 1), 7.6), layout="constrained")
    for column, lag in enumerate(lags):
        late = chosen(outcomes, lag=lag)
        _draw_progress(axes[0][column], late, f"lag {lag}, each at its best learning rate")
        _draw_rates(axes[1][column], late, f"lag {lag}")
    _draw_frontier(axes[0][-1], outcomes, "eval/kl_prior", "KL to the reference (nats)")
    _draw_optimum(axes[0][-1], outcomes)
    _draw_frontier(axes[1][-1], outcomes, "eval/entropy", "entropy of completions (nats)")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def frontier(outcomes: Sequence[Outcome]) -> Any:
    """Reward against KL to the reference, with the most that any policy has, and against entropy; a figure."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    _draw_frontier(axes[0], outcomes, "eval/kl_prior", "KL to the reference (nats)")
    _draw_optimum(axes[0], outcomes)
    _draw_frontier(axes[1], outcomes, "eval/entropy", "entropy of completions (nats)")
    _each_method(outcomes, lambda _, look: axes[1].plot([], [], **{**look, "linestyle": "", "marker": "o"}))
    axes[1].legend()
    return figure


def _each_method(outcomes: Sequence[Outcome], line: Callable[[list[Outcome], dict[str, Any]], None]) -> None:
    for i, method in enumerate(values(outcomes, "method")):
        look = {"color": COLOURS[i % len(COLOURS)], "linestyle": STYLES[i // 3 % len(STYLES)], "label": method}
        line(chosen(outcomes, method=method), look)


def _draw_progress(axis: Any, outcomes: Sequence[Outcome], title: str) -> None:
    def line(of_method: list[Outcome], look: dict[str, Any]) -> None:
        rates = values(of_method, "rate")
        best = min(rates, key=lambda rate: _median(chosen(of_method, rate=rate), "eval/kl_model_target"))
        runs = [o.evaluations for o in chosen(of_method, rate=best)]
        steps = [e["step"] for e in runs[0]]
        middle = [
            statistics.median(e[i]["eval/exceptions_mass"] for e in runs if len(e) > i) for i in range(len(steps))
        ]
        axis.plot(steps, middle, **{**look, "label": look["label"]})

    _each_method(outcomes, line)
    target = outcomes[0].last["eval/exceptions_mass_target"]
    axis.axhline(target, color="black", linewidth=0.8, linestyle=":")
    axis.set(title=title, xlabel="updates", ylabel="probability of a right answer", ylim=(0, 1))


def _draw_rates(axis: Any, outcomes: Sequence[Outcome], title: str) -> None:
    def line(of_method: list[Outcome], look: dict[str, Any]) -> None:
        rates = values(of_method, "rate")
        groups = [[o.last["eval/kl_model_target"] for o in chosen(of_method, rate=rate)] for rate in rates]
        axis.plot(rates, [statistics.median(g) for g in groups], marker="o", markersize=3, **look)
        axis.fill_between(rates, [min(g) for g in groups], [max(g) for g in groups], color=look["color"], alpha=0.12)

    _each_method(outcomes, line)
    axis.set(
        title=title, xscale="log", yscale="log", xlabel="learning rate", ylabel="KL(policy‖target) at the end (nats)"
    )


def _draw_frontier(axis: Any, outcomes: Sequence[Outcome], name: str, label: str) -> None:
    def points(of_method: list[Outcome], look: dict[str, Any]) -> None:
        for lag, marker in zip(values(outcomes, "lag"), "o^sv", strict=False):
            late = chosen(of_method, lag=lag)
            x, y = [o.last[name] for o in late], [o.last["eval/reward"] for o in late]
            axis.scatter(x, y, s=16, marker=marker, color=look["color"], alpha=0.8, edgecolors="none")

    _each_method(outcomes, points)
    every = [o.last[name] for o in outcomes]
    axis.set_xlim(0, 1.5 * float(np.quantile(every, 0.9)))  # runs that collapsed may lie far outside
    marks = ", ".join(f"{m} lag {lag}" for lag, m in zip(values(outcomes, "lag"), "●▲■▼", strict=False))
    axis.set(title=marks, xlabel=label, ylabel="mean reward", ylim=(0, 1.03))


def _draw_optimum(axis: Any, outcomes: Sequence[Outcome]) -> None:
    """The most reward that any policy has at a KL to the reference: that of the targets of all β."""
    some = outcomes[0]
    right = math.expm1(some.last["eval/log_z_exact"]) / math.expm1(1 / some.beta)
    strength = np.linspace(0, 12, 200)  # 1/β
    log_z = np.log1p(right * np.expm1(strength))
    reward = right * np.exp(strength - log_z)
    axis.plot(reward * strength - log_z, reward, color="black", linewidth=1)


def main(arguments: Sequence[str]) -> int:
    """Report on the runs that match the patterns among the arguments; exit code 1 with a message if there are none."""
    directories, out = run_directories(arguments)
    try:
        outcomes = load(directories)
    except RunError as error:
        print(f"completions: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    draw(outcomes, out / "completions.png")
    (out / "completions.md").write_text(table(outcomes), encoding="utf-8")
    print(table(outcomes), end="")
    print(f"written to {out / 'completions.png'} and {out / 'completions.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
