"""Hypergrids that are right but for one method, and what the contract has to say about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid
from gfn.check import ContractError, check_environment
from gfn.environment import Environment

Method = Callable[..., Any]
right = Hypergrid


class Cases(dict[str, tuple[str, str, dict[str, Any]]]):
    """For each way to break a grid: the clause that must catch it, what the message says, and the broken methods."""

    def add(self, clause: str, phrase: str, method: str = "", **others: Any) -> Callable[[Method], Method]:
        """Register a function as ``method`` (default: named like the clause) of a broken grid."""

        def register(function: Method) -> Method:
            self[function.__name__] = (clause, phrase, {method or clause: function, **others})
            return function

        return register

    def check(self, name: str, side: int = 4, **options: Any) -> None:
        """The broken grid of this name is caught by its clause."""
        clause, phrase, methods = self[name]
        caught(clause, phrase, type(name, (Hypergrid,), methods)(side, 2), **options)


def caught(clause: str, phrase: str, env: Environment[Any], *policies: Any, **options: Any) -> None:
    """The environment breaks this clause, and the message contains this phrase."""
    with pytest.raises(ContractError) as told:
        check_environment(env, *policies, **options)
    message = str(told.value)
    assert message.startswith(f"{clause}: expected "), message
    assert phrase in message, message


def at(states: GridStates, *coords: int) -> Tensor:
    """Which live states have these coordinates."""
    return (states.coords == torch.tensor(coords)).all(1) & ~states.stopped
