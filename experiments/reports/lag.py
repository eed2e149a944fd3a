"""How far from the target objectives end, against the age of the trajectories they learn from.

    python -m experiments.reports.lag 'runs/grid_lag/*/*' 'runs/expr_lag/*/*' out=report

takes runs that differ in ``name`` (the method), ``sampler.lag`` and ``seed``, those of several environments apart, and
writes ``lag.png`` and ``lag.md``. Values are medians over the last quarter of a run's evaluations, then over seeds,
with their range. A run counts as worse if it ends further from the target than at its first evaluation, or does not
end; one that broke off before any evaluation counts nowhere else.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from experiments.reports.arguments import run_directories
from experiments.reports.completions import chosen, values
from experiments.reports.curves import COLOURS, STYLES, cell
from experiments.runs import RunError
from gfn.callbacks import read_lines

DISTANCE = "eval/kl_model_target"
COLUMNS = {
    DISTANCE: "KL(policy‖target), nats",
    "eval/tv": "total variation",
    "eval/regions_kept": "modes kept",
    "eval/exceptions_mass": "right",
    "eval/unique_right": "right and distinct",
    "eval/log_reward_mean": "mean log R",
    "eval/log_z_importance": "importance log Ẑ",
}
DRAWN = (DISTANCE, "eval/regions_kept", "eval/unique_right")
LATE = 4  # one part in so many of the evaluations is the end


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        environment: name of its class.
        method: name of the run.
        lag: in updates.
        evaluations: lines of its metrics file that hold one.
        ended: whether it made all its updates.
    """

    environment: str
    method: str
    lag: int
    evaluations: list[dict[str, Any]]
    ended: bool

    def late(self, name: str) -> float:
        """The median of the last evaluations."""
        return statistics.median(line[name] for line in self.evaluations[-max(1, len(self.evaluations) // LATE) :])

    @property
    def worse(self) -> bool:
        """Whether training did harm."""
        return not self.ended or not self.evaluations or self.late(DISTANCE) > self.evaluations[0][DISTANCE]


def load(directories: Sequence[Path]) -> list[Outcome]:
    """Read runs.

    Raises:
        RunError: if there are none, or one has no exact distance from its target.
    """
    if not directories:
        raise RunError("no run directories were given; name some, such as 'runs/*'")
    return [_outcome(directory) for directory in directories]


def _outcome(directory: Path) -> Outcome:
    if not (directory / "config.yaml").is_file():
        raise RunError(f"{directory} is not a run directory: it has no config.yaml")
    config = yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))
    lines = read_lines(directory / "metrics.jsonl")
    evaluations = [line for line in lines if DISTANCE in line]
    ended = bool(lines) and lines[-1]["step"] == config["trainer"]["steps"]
    if ended and not evaluations:
        raise RunError(f"{directory} has no exact distance from its target ({DISTANCE}); see evaluator.exact")
    environment = config["env"]["_target_"].rpartition(".")[2]
    return Outcome(environment, config["name"], config["sampler"].get("lag", 0), evaluations, ended)


def _known(outcomes: Sequence[Outcome], names: Sequence[str]) -> list[str]:
    return [name for name in names if all(name in o.evaluations[-1] for o in outcomes if o.evaluations)]


def _late(outcomes: Sequence[Outcome], name: str) -> list[float]:
    return [o.late(name) for o in outcomes if o.evaluations]


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: one table for each environment, one row for each method and lag."""
    parts: list[str] = []
    for environment in values(outcomes, "environment"):
        here = chosen(outcomes, environment=environment)
        names = _known(here, list(COLUMNS))
        head = ["method", "lag", "seeds", "worse", *(COLUMNS[name] for name in names)]
        rows = [f"{environment}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for method in values(here, "method"):
            for lag in values(here, "lag"):
                group = chosen(here, method=method, lag=lag)
                if group:
                    late = [_late(group, name) for name in names]
                    cells = [cell(v) if v else "–" for v in late]
                    first = [method, str(lag), str(len(group)), str(sum(o.worse for o in group))]
                    rows.append("| " + " | ".join([*first, *cells]) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """One row an environment: distance from the target and modes against the lag, in the range of the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    environments, methods = values(outcomes, "environment"), values(outcomes, "method")
    panels = [_known(chosen(outcomes, environment=e), DRAWN) for e in environments]
    size = (len(environments), max(len(names) for names in panels))
    figure, axes = plt.subplots(*size, figsize=(5.2 * size[1], 4.2 * size[0]), layout="constrained", squeeze=False)
    for row, (environment, names) in enumerate(zip(environments, panels, strict=True)):
        here = chosen(outcomes, environment=environment)
        for column, name in enumerate(names):
            _draw_panel(axes[row][column], here, methods, name)
            axes[row][column].set_title(environment, fontsize="medium")
        for axis in axes[row][len(names) :]:
            axis.set_axis_off()
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    seeds = sorted({len(chosen(outcomes, environment=o.environment, method=o.method, lag=o.lag)) for o in outcomes})
    figure.suptitle(f"median and range of {' or '.join(map(str, seeds))} seed{'s' * (seeds != [1])}", fontsize="medium")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_panel(axis: Any, outcomes: Sequence[Outcome], methods: Sequence[str], name: str) -> None:
    lags, half = values(outcomes, "lag"), -(-len(methods) // 2)  # so many colours, each in two styles
    for i, method in enumerate(methods):
        groups = {lag: _late(chosen(outcomes, method=method, lag=lag), name) for lag in lags}
        groups = {lags.index(lag): late for lag, late in groups.items() if late}
        places, colour = list(groups), COLOURS[i % half % len(COLOURS)]
        look = {"linestyle": STYLES[i // half], "marker": "os"[i // half], "markersize": 4, "color": colour}
        axis.plot(places, [statistics.median(v) for v in groups.values()], **look, label=method)
        low, high = [min(v) for v in groups.values()], [max(v) for v in groups.values()]
        axis.fill_between(places, low, high, color=colour, alpha=0.1)
    axis.set_xticks(range(len(lags)), [str(lag) for lag in lags])
    axis.set(xlabel="lag (updates)", ylabel=COLUMNS[name], **({"yscale": "log"} if name == DISTANCE else {}))


def main(arguments: Sequence[str]) -> int:
    """Report on the runs that match the patterns among the arguments; exit code 1 with a message if there are none."""
    directories, out = run_directories(arguments)
    try:
        outcomes = load(directories)
    except RunError as error:
        print(f"lag: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    draw(outcomes, out / "lag.png")
    (out / "lag.md").write_text(table(outcomes), encoding="utf-8")
    print(table(outcomes), end="")
    print(f"written to {out / 'lag.png'} and {out / 'lag.md'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
