"""Marks of cases that only the long suite runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """All cases, those not among the ``quick`` ones marked slow.

    Raises:
        ValueError: if a quick one is no case.
    """
    every = list(cases)
    if strange := [case for case in quick if case not in every]:
        raise ValueError(f"no such cases: {strange}")
    return [
        case if case in quick else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in every
    ]
