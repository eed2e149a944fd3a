"""What a run is made of, before anything is trained: ``gfn-train trainer.steps=0``."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from experiments.build import STAGES, Run


def inventory(run: Run) -> str:
    """Every part with what it is and how many parameters it has, then what the optimizer moves, and how fast."""
    rows = [
        (stage, _kind(run.parts[stage]), _size(run.parts[stage])) for stage in STAGES if run.parts[stage] is not None
    ]
    wide, kind = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"  {stage:<{wide}}  {what:<{kind}}  {size}".rstrip() for stage, what, size in rows]
    trainer = run.trainer
    for group, settings in zip(trainer.groups, trainer.optimizer.param_groups, strict=True):
        count = sum(parameter.numel() for parameter in group.parameters)
        lines.append(f"  trained: {group.name}, {count} parameters, learning rate {settings['lr']:g}")
    lines += [f"  {line}" for line in _listed(run)]
    return "\n".join([f"{run.config['name']} is made of", *lines])


def _kind(part: Any) -> str:
    part = part.func if isinstance(part, partial) else part
    if isinstance(part, nn.Module) or not callable(part) or not hasattr(part, "__qualname__"):
        return f"{type(part).__module__}.{type(part).__qualname__}"
    return f"{part.__module__}.{part.__qualname__}"


def _size(part: Any) -> str:
    """Parameters of a module, those that are trained and all; several parts may share some."""
    if not isinstance(part, nn.Module):
        return ""
    every = list(part.parameters())
    count, trained = sum(p.numel() for p in every), sum(p.numel() for p in every if p.requires_grad)
    return f"{count} parameters" + (f", {trained} of them trained" if trained < count else "") if count else ""


def _listed(run: Run) -> list[str]:
    """How large an environment is that can be listed."""
    evaluator = run.parts["evaluator"]
    if evaluator is None or evaluator.graph is None:
        return []
    graph = evaluator.graph
    log_z = torch.as_tensor(graph.log_z).mean()
    where = f" (mean of {graph.n_conditions} conditions)" if graph.n_conditions > 1 else ""
    return [
        f"listed: {graph.n} states, {len(graph.terminal)} of them terminal, {len(graph.source)} edges, "
        f"exact log Z {float(log_z):.4f}{where}"
    ]
