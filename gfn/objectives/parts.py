"""Gradients of a loss over more trajectories than can be scored at once, or on one machine.

A batch is cut at its scores: all of it is scored without gradient, the loss of the whole is
differentiated with respect to the scores, and the trajectories are scored again, part by part, to
carry these coefficients on to the parameters. The gradient is exactly that of the whole batch, for
every balance, divergence and partition, so that neither the group size of DevGrad nor the number of
processes is bound to what fits in memory. It asks for scores that come out the same twice (no
dropout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from gfn import processes
from gfn.objectives.balance import Scores
from gfn.objectives.learner import Learner, Reported
from gfn.states import cat
from gfn.trajectories import Trajectories

PADDED = ("log_pf", "log_pb", "mask", "log_behaviour", "log_flow", "log_inflow")
PLAIN = ("log_reward", "group", "weight", "log_walk", "returned")
DIFFERENTIABLE = ("log_pf", "log_pb", "log_flow", "log_inflow", "log_walk")


def backward_in_parts(learner: Learner[Any], t: Trajectories[Any], step: int, size: int) -> tuple[Tensor, Reported]:
    """Add the gradient of the whole batch's loss to the parameters, scoring ``size`` trajectories at a time.

    In a process group every process brings its own trajectories, the loss is that of all together,
    and gradients are summed, so that each process holds the gradient of the joint batch. Trajectories
    with the same group number share an initial state also across processes.

    Returns:
        The loss of the whole, detached, and its report.

    Raises:
        ValueError: if ``size`` is not positive.
    """
    if size < 1:
        raise ValueError(f"the size of a part must be at least 1, got {size}")
    if size < len(t):  # those of like length together, since policies may pad a part to its longest
        t = t[t.lengths.argsort(stable=True)]
    batches = [t[start : start + size] for start in range(0, len(t), size)]
    with torch.no_grad():
        own = join([learner.scores(batch) for batch in batches])
    everyone = processes.gathered(own)
    first = sum(len(scores.group) for scores in everyone[: processes.rank()])
    joint = join(everyone)
    leaves = {name: _leaf(value) for name, value in _tensors(joint).items() if name in DIFFERENTIABLE}
    loss, report = learner.loss(replace(joint, **leaves), step)
    loss.backward()
    for parameter in learner.parameters():  # so far only those of log Z, the same on every process
        if parameter.grad is not None:
            parameter.grad /= len(everyone)
    for batch in batches:
        rows = slice(first, first + len(batch))
        _carry_on(learner.scores(batch), {name: leaf.grad for name, leaf in leaves.items()}, rows)
        first += len(batch)
    _sum_gradients(learner)
    return loss.detach(), report


def join(parts: Sequence[Scores]) -> Scores:
    """Scores of several batches as one, padded to the longest."""
    width = max(part.mask.shape[1] for part in parts)
    tables = [_tensors(part) for part in parts]

    def padded(name: str) -> Tensor:
        return torch.cat([pad(table[name], (0, width - table["mask"].shape[1])) for table in tables])

    joined = {name: padded(name) for name in PADDED if name in tables[0]}
    plain = {name: torch.cat([table[name] for table in tables]) for name in PLAIN if name in tables[0]}
    return replace(parts[0], **joined, **plain, initial=cat([part.initial for part in parts]))


def _tensors(scores: Scores) -> dict[str, Tensor]:
    named = {name: getattr(scores, name) for name in (*PADDED, *PLAIN)}
    return {name: value for name, value in named.items() if value is not None}


def _leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_()


def _carry_on(scores: Scores, coefficients: dict[str, Tensor | None], rows: slice) -> None:
    """Backpropagate the coefficients of some rows through their scores."""
    outputs, gradients = list[Tensor](), list[Tensor]()
    for name, value in _tensors(scores).items():
        coefficient = coefficients.get(name)
        if coefficient is not None and value.requires_grad:
            outputs.append(value)
            gradients.append(coefficient[rows][..., : value.shape[-1]].to(value.dtype))
    if outputs:
        torch.autograd.backward(outputs, gradients)


def _sum_gradients(learner: Learner[Any]) -> None:
    if processes.count() == 1:
        return
    for parameter in learner.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
