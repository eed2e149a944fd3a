"""Memory that does not grow with the number of rows: functions of rows, computed some at a time, and twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def in_chunks(function: Callable[..., Tensor], size: int | None, *columns: Any) -> Tensor:
    """``function(*columns)``, one value for each row, asked about ``size`` rows at a time; None asks about all.

    What a chunk needs for its gradient is computed again in the backward pass rather than kept, so that memory
    is that of one chunk. The gradient is the same, if the function answers for each row alone.
    """
    rows = len(columns[0])
    if size is None or rows <= size:
        return function(*columns)

    def answered(start: int) -> Tensor:
        return function(*(column[start : start + size] for column in columns))

    parts: list[Any] = [checkpoint(answered, start, use_reentrant=False) for start in range(0, rows, size)]
    return torch.cat(parts)
