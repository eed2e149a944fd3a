"""Whether the trainer's gradient is that of the loss as it is defined, whatever makes it fast."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, one_hot

from experiments.benchmarks.grids_runs import Cell, built, load, parameters, task_of
from gfn.trajectories import Trajectories


def gradient_error(cell: Cell, weights: Path, config: Sequence[str] = ()) -> float:
    """Distance between the gradient that training uses and the plain one, relative to the size of the latter.

    One update of a run, at learning rate 0, leaves its gradient; the plain one is of the same trajectories, every
    step of theirs scored by itself in float64 with nothing but matrix products.

    Raises:
        ConfigError: if the config does not fit.
    """
    given = dict(np.load(weights))
    seen = list[Trajectories[Any]]()
    with tempfile.TemporaryDirectory() as folder:
        run = built(task_of(cell, config), Path(folder), lambda: True)
        load(run, given)
        run.trainer.objective.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        run.trainer.run()
    trained = parameters(run)
    plain = {name: torch.from_numpy(given[name]).double().requires_grad_() for name in trained}
    _loss(plain, seen[0], cell).backward()
    gaps, sizes = list[Tensor](), list[Tensor]()
    for name, parameter in trained.items():
        found, right = parameter.grad, plain[name].grad
        if found is None or right is None:
            raise ValueError(
                f"gradient_error: {name} has no gradient in the {'run' if found is None else 'plain loss'}"
            )
        gaps.append((found.double() - right).norm())
        sizes.append(right.norm())
    return float(torch.stack(gaps).norm() / torch.stack(sizes).norm())


def _loss(weights: dict[str, Tensor], batch: Trajectories[Any], cell: Cell) -> Tensor:
    """½ (log Z + log P_F − log P_B − log R)², mean over trajectories."""
    row = torch.arange(len(batch)).repeat_interleave(batch.lengths)
    coords, stops = batch.sources.coords, batch.actions == cell.ndim
    logits = _head(weights, "forward", coords, cell)
    grow = coords < cell.side - 1
    log_pf = _chosen(logits, torch.cat([grow, torch.ones_like(grow[:, :1])], 1), batch.actions)
    after, shrink = batch.targets.coords, batch.targets.coords > 0
    shrink = torch.cat([shrink & ~stops.unsqueeze(1), stops.unsqueeze(1)], 1)
    logits = _head(weights, "backward", after, cell) if "backward.weight" in weights else torch.zeros_like(logits)
    steps = log_pf - _chosen(logits, shrink, batch.actions)
    delta = weights["log_z"] - batch.log_reward + torch.zeros(len(batch)).double().index_add(0, row, steps)
    return 0.5 * delta.square().mean()


def _head(weights: dict[str, Tensor], name: str, coords: Tensor, cell: Cell) -> Tensor:
    x = one_hot(coords, cell.side).flatten(1).double()
    for layer in ("trunk.0", "trunk.1"):
        x = linear(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]).relu()
    return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _chosen(logits: Tensor, allowed: Tensor, actions: Tensor) -> Tensor:
    log_probs = logits.masked_fill(~allowed, -torch.inf).log_softmax(1)
    return log_probs.gather(1, actions.unsqueeze(1)).squeeze(1)
