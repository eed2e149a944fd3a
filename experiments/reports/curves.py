"""Total variation, Jensen–Shannon divergence and modes against trajectories, for any set of finished runs.

    python -m experiments.reports.curves 'runs/grid_ftb_*/*' out=report

groups the runs by what differs in their configs besides the seed, draws the median of each group with
the range over its seeds, and writes ``curves.png`` and ``curves.md``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from experiments.reports.arguments import run_directories
from experiments.runs import RunError
from experiments.schema import flat
from gfn.callbacks import read_lines

PANELS = {
    "eval/tv": "total variation",
    "eval/jsd_nats": "Jensen–Shannon divergence (nats)",
    "regions": "regions found in training",
    "eval/regions_kept": "regions kept (≥ ¼ of their mass)",
}
IGNORED = ("seed", "run", "name", "logger", "resume", "threads")
# Okabe & Ito's colours, told apart by colour-blind readers, with line styles for print in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
STYLES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
        label: what sets them apart from other groups.
        lines: the metrics of each run.
        directories: where each run is.
    """

    label: str
    lines: tuple[list[dict[str, Any]], ...]
    directories: tuple[Path, ...] = ()


def load(directories: Sequence[Path]) -> list[Group]:
    """Read runs and group them.

    Raises:
        RunError: if a directory holds no run, or none is given.
    """
    if not directories:
        raise RunError("no run directories were given; name some, such as 'runs/grid_ftb_*/*'")
    grouped: dict[str, list[Path]] = {}
    for directory, own in zip(directories, differences(directories), strict=True):
        label = ", ".join(map(_named, own.items())) or "all"
        grouped.setdefault(label, []).append(directory)
    return [
        Group(label, tuple(read_lines(path / "metrics.jsonl") for path in paths), tuple(paths))
        for label, paths in sorted(grouped.items())
    ]


def _named(item: tuple[str, Any]) -> str:
    """A setting; of a class, its name alone."""
    name, value = item
    return value.rpartition(".")[2] if name.endswith("_target_") else f"{name} = {value}"


def differences(directories: Sequence[Path]) -> list[dict[str, Any]]:
    """By what the config of each run differs from those of others, the seed apart, under names as short as they can be.

    Raises:
        RunError: if a directory holds no run.
    """
    configs: list[dict[str, Any]] = []
    for directory in directories:
        if not (directory / "config.yaml").is_file():
            raise RunError(f"{directory} is not a run directory: it has no config.yaml")
        config = flat(_with_short_schedules(yaml.safe_load((directory / "config.yaml").read_text(encoding="utf-8"))))
        configs.append({k: v for k, v in config.items() if not _ignored(k)})
    values = {key: {str(c[key]) for c in configs if key in c} for config in configs for key in config}
    # What only some have, always with one value, comes with the class that they chose or with a newer version.
    differing = sorted(key for key, found in values.items() if len(found) > 1)
    last = [key.rpartition(".")[2] for key in differing]
    names = {key: short if last.count(short) == 1 else key for key, short in zip(differing, last, strict=True)}
    return [{names[k]: _shown(config[k]) for k in differing if k in config} for config in configs]


def _shown(value: Any) -> Any:
    """Null as in configs."""
    return "null" if value is None else value


def _with_short_schedules(node: Any) -> Any:
    """A config with every schedule written as on the command line, such as ``linear:0.0:1.0:1200``."""
    if not isinstance(node, Mapping):
        return node
    items = cast("Mapping[str, Any]", node)
    kind = str(items.get("_target_", ""))
    if kind.startswith("gfn.schedules."):
        return ":".join([kind.rpartition(".")[2].lower(), *(str(v) for k, v in items.items() if k != "_target_")])
    return {key: _with_short_schedules(value) for key, value in items.items()}


def _ignored(key: str) -> bool:
    return any(key == name or key.startswith(name + ".") or key.endswith(".seed") for name in IGNORED)


def series(group: Group, name: str) -> tuple[list[int], list[list[float]]]:
    """Trajectories at which every run of a group has a value of ``name``, and the values there."""
    tables = [{line["trajectories"]: line[name] for line in lines if name in line} for lines in group.lines]
    common = sorted(set[int].intersection(*(set(table) for table in tables)))
    return common, [[table[x] for table in tables] for x in common]


def draw(groups: Sequence[Group], path: Path, wanted: Mapping[str, str] = PANELS) -> None:
    """Write :func:`figure` into a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = figure(groups, wanted)
    drawn.savefig(path, dpi=120)
    plt.close(drawn)


def figure(groups: Sequence[Group], wanted: Mapping[str, str] = PANELS) -> Any:
    """One panel a metric, one line a group: the median over seeds in the range of all of them."""
    import matplotlib.pyplot as plt

    panels = {name: label for name, label in wanted.items() if any(series(group, name)[0] for group in groups)}
    columns = len(panels) if len(panels) <= 4 else 3
    rows = -(-len(panels) // columns)
    drawn, axes = plt.subplots(rows, columns, figsize=(4.4 * columns, 4 * rows), layout="constrained", squeeze=False)
    for axis, (name, label) in zip(axes.flat, panels.items(), strict=False):
        for i, group in enumerate(groups):
            x, values = series(group, name)
            colour, style = COLOURS[i % len(COLOURS)], STYLES[i // 2 % len(STYLES)]
            mark = "o" if len(x) == 1 else ""  # a line of one point is not to be seen
            axis.plot(x, [statistics.median(v) for v in values], style, marker=mark, color=colour, label=group.label)
            if len(group.lines) > 1:
                axis.fill_between(x, [min(v) for v in values], [max(v) for v in values], color=colour, alpha=0.15)
        axis.set(xlabel="trajectories", ylabel=label)
        axis.locator_params(axis="x", nbins=5)
        low, high = axis.get_ylim()
        if low < high / 2:  # what varies by less is drawn to see how
            axis.set_ylim(bottom=0)
    handles, labels = axes[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    seeds = sorted({len(group.lines) for group in groups})
    drawn.suptitle(f"median and range of {' or '.join(map(str, seeds))} seed{'s' * (seeds != [1])}", fontsize="medium")
    return drawn


def table(groups: Sequence[Group], wanted: Mapping[str, str] = PANELS, last: int = 5) -> str:
    """Markdown: the median of the last evaluations of each run, then median and range over seeds."""
    names = [name for name in wanted if any(series(group, name)[0] for group in groups)]
    rows = [
        "| runs | seeds | trajectories | " + " | ".join(wanted[n] for n in names) + " |",
        "|---" * (3 + len(names)) + "|",
    ]
    for group in groups:
        most = max(line["trajectories"] for lines in group.lines for line in lines)
        cells = [cell([_late(lines, name, last) for lines in group.lines]) for name in names]
        rows.append(f"| {group.label} | {len(group.lines)} | {most} | " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def _late(lines: Sequence[Mapping[str, Any]], name: str, last: int) -> float:
    values = [line[name] for line in lines if name in line]
    return statistics.median(values[-last:]) if values else float("nan")


def cell(values: Sequence[float]) -> str:
    """The median of some values, and their range if there are several."""
    middle = f"{statistics.median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g}–{max(values):.3g})"


def main(arguments: Sequence[str]) -> int:
    """Draw the runs that match the given patterns; exit code 1 with a message if there are none."""
    return report("curves", arguments, PANELS)


def report(name: str, arguments: Sequence[str], wanted: Mapping[str, str], last: int = 5) -> int:
    """Write ``name.png`` and ``name.md`` about the runs that match the patterns among the arguments."""
    directories, out = run_directories(arguments)
    try:
        groups = load(directories)
        if not any(series(group, metric)[0] for group in groups for metric in wanted):
            raise RunError(f"the runs have none of the metrics {', '.join(wanted)} (yet, or in common)")
    except RunError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    draw(groups, out / f"{name}.png", wanted)
    (out / f"{name}.md").write_text(table(groups, wanted, last), encoding="utf-8")
    print(table(groups, wanted, last), end="")
    print(f"written to {out / name}.png and {out / name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
