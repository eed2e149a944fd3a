"""Digits of a tuned diffusion prior: how evenly each divergence covers the classes that are asked for.

    python -m experiments.reports.digits 'runs/digits_even/*/*' out=report

groups the runs by what differs in their configs besides the seed, as :mod:`experiments.reports.curves` does, and
writes ``digits.md`` (the last evaluation of each run: share on target, and entropy of the histogram of the target's
classes over its maximum, by a classifier that the reward does not know), ``digits.png`` (these histograms, and the
prior's) and ``digits_samples.png`` (samples of the first run of each group).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from envs.diffusion.digits import Digits, evenness
from envs.diffusion.painting import sheet
from experiments.reports.arguments import run_directories
from experiments.reports.curves import COLOURS, load, table
from experiments.runs import RunError, open_run
from gfn.checkpoint import CheckpointError
from gfn.policies import Policy
from gfn.sampling import rollout

COLUMNS = {
    "eval/on_target": "on target",
    "eval/class_entropy": "class entropy / maximum",
    "eval/log_reward_mean": "mean log r",
    "eval/kl_prior": "KL to the prior, nats",
    "eval/kl_estimate": "KL estimate to the target, nats",
    "eval/log_z_importance": "log Ẑ",
}
SAMPLES, SHOWN = 2048, 40
FAILURES = (RunError, CheckpointError)


@dataclass(frozen=True)
class Drawn:
    """Samples of one run.

    Attributes:
        images: some of them, ``[SHOWN, H, W]``.
        counts: how many of all are of each of the target's classes, ``[C]``.
        classes: which those are.
        prior: the same counts of the policy that training began with; None where there is none.
    """

    images: Tensor
    counts: Tensor
    classes: list[int]
    prior: Tensor | None


@torch.no_grad()
def draw_samples(directory: Path) -> Drawn:
    """Sample from a run, and from the prior it was tuned from.

    Raises:
        RunError, CheckpointError: if it holds no sound checkpoint, or its ends are no digits.
    """
    _, parts, _ = open_run(directory)
    env, objective = parts["env"], parts["objective"].eval()
    target = getattr(env, "target", None)
    if not isinstance(target, Digits):
        raise RunError(f"{directory} is no run of digits: expected env=digits, got {type(env).__name__}")

    def counted(policy: Policy[Any]) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(env.device).manual_seed(0)
        x = rollout(env, policy, env.reset(SAMPLES, generator), generator=generator).final.x
        return x, torch.bincount(target.judged(x), minlength=10)[target.classes]

    x, counts = counted(objective.policy)
    prior = objective.backward_policy.prior
    before = None if prior is None else counted(prior)[1]
    return Drawn(x[:SHOWN].view(-1, *target.images.pixels.shape[1:]), counts, target.classes, before)


def histograms(groups: dict[str, list[Drawn]], path: Path) -> None:
    """Shares of the target's classes among samples on target: one panel a group, one bar a class, dots for seeds."""
    import matplotlib.pyplot as plt

    columns = min(4, len(groups))
    rows = -(-len(groups) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.2 * columns, 2.8 * rows), layout="constrained", squeeze=False)
    for axis, (label, runs) in zip(axes.flat, groups.items(), strict=False):
        shares = torch.stack([run.counts / run.counts.sum().clamp(min=1) for run in runs])
        names = [str(c) for c in runs[0].classes]
        axis.bar(names, shares.mean(0).numpy(), color=COLOURS[0])
        for share in shares:
            axis.plot(names, share.numpy(), ".", color="black", markersize=4)
        axis.axhline(1 / len(names), color="black", linewidth=0.8, linestyle="--")
        prior = runs[0].prior
        if prior is not None:
            axis.plot(names, (prior / prior.sum()).numpy(), "_", color=COLOURS[1], markersize=14, label="prior")
            axis.legend()
        entropy = torch.tensor([evenness(run.counts) for run in runs]).median()
        axis.set_title(f"{label}\nentropy {float(entropy):.3f}", fontsize="medium")
        axis.set(ylabel="share on target")
    for axis in axes.flat[len(groups) :]:
        axis.set_axis_off()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def grids(groups: dict[str, list[Drawn]], path: Path) -> None:
    """Samples of the first run of each group, one row of images below another."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(len(groups), 1, figsize=(10, 1.5 * len(groups)), layout="constrained", squeeze=False)
    for axis, (label, runs) in zip(axes.flat, groups.items(), strict=True):
        axis.imshow(-sheet(runs[0].images.clamp(-1, 1), SHOWN // 2).numpy(), cmap="gray", vmin=-1, vmax=1)
        axis.set_title(label, fontsize="medium")
        axis.set_axis_off()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: Sequence[str]) -> int:
    """Report on the runs that match the given patterns; exit code 1 with a message if that cannot be done."""
    import matplotlib

    matplotlib.use("Agg")
    directories, out = run_directories(arguments)
    try:
        groups = load(directories)
        drawn = {group.label: [draw_samples(path) for path in group.directories] for group in groups}
    except FAILURES as error:
        print(f"digits: {error}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    histograms(drawn, out / "digits.png")
    grids(drawn, out / "digits_samples.png")
    text = table(groups, COLUMNS, last=1)
    (out / "digits.md").write_text(text, encoding="utf-8")
    print(text, end="")
    print(f"written to {out / 'digits.md'}, digits.png and digits_samples.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
