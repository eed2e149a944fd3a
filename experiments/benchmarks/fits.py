"""How a cost grows: the exponent of a power law through measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """b of the y = a·x^b that fits best, by least squares of logarithms; NaN if all x are equal.

    Raises:
        ValueError: if there are not two points, or a number is not positive.
    """
    if len(x) < 2 or min(*x, *y) <= 0:
        raise ValueError(f"exponent: needs two points or more, of positive numbers, got {list(x)} and {list(y)}")
    logs = [[math.log(value) for value in values] for values in (x, y)]
    means = [sum(some) / len(some) for some in logs]
    away = [[value - mean for value in some] for some, mean in zip(logs, means, strict=True)]
    spread = sum(value**2 for value in away[0])
    return sum(a * b for a, b in zip(*away, strict=True)) / spread if spread > 0 else math.nan
