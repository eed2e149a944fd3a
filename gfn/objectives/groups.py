"""Tables with one group of trajectories a row."""

from __future__ import annotations

import torch
from torch import Tensor


def places(group: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Row and column of each trajectory in a table with one group a row, long ``[B]`` each; the sizes, long ``[G]``."""
    _, row = group.unique(return_inverse=True)
    size = torch.bincount(row)
    order = row.argsort(stable=True)
    column = torch.empty_like(row)
    column[order] = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row[order]]
    return (row, column), size


def tabulated(values: Tensor, group: Tensor, fill: float) -> Tensor:
    """Values ``[B]`` laid out as ``[G, K]``, one group a row, the shorter ones filled up."""
    place, size = places(group)
    return values.new_full((len(size), int(size.max())), fill).index_put(place, values)
