"""Clauses about states one at a time: where they come from, what they look like, what they allow."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from gfn.check.contract import Contract, tensors
from gfn.environment import DiscreteEnvironment
from gfn.states import States, cat

S = TypeVar("S", bound=States)


def check_reset(contract: Contract[S], n: int) -> S:
    """``reset`` gives n states, initial and not terminal, on the environment's device."""
    env = contract.env
    with contract.clause("reset"):
        start = env.reset(n, contract.generator)
        hint = "it needs len, [index], to and cat: return a tensor, or a frozen dataclass on TensorStates"
        contract.require(_is_batch(start), "a batch of states", f"a {type(start).__name__}", hint)
        contract.require(
            len(start) == n, f"reset({n}) to give {n} states", f"{len(start)}", "give as many as asked for"
        )
        for name, tensor in tensors(start).items():
            right, hint = tensor.device.type == env.device.type, "pass device=self.device where reset makes tensors"
            contract.require(right, f"states on {env.device}", f"{name} on {tensor.device}", hint)
        hint = "reset, is_initial and is_terminal must agree about where trajectories start"
        contract.require(env.is_initial(start), "is_initial of every state of reset", "False", hint, start)
        contract.require(~env.is_terminal(start), "is_terminal of no state of reset", "True", hint, start)
    return start


def _is_batch(value: object) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, States) and hasattr(value, "cat"))


def check_states(contract: Contract[S], states: S) -> None:
    """Indexing, ``cat`` and ``to`` keep rows whole and in order."""
    n = len(states)
    with contract.clause("states"):
        twice = cat([states, states])
        contract.require(len(twice) == 2 * n, f"cat to give {2 * n} states", str(len(twice)), "join along dimension 0")
        hint = "each index must select the same rows of every field"
        for name, value in (
            ("s[a:b] to select rows", twice[n : 2 * n]),
            ("s[bool] to select rows", twice[torch.arange(2 * n, device=contract.env.device) < n]),
            ("cat([s[:1], s[1:]]) to be s", cat([states[:1], states[1:]])),
            ("s.to(device) to keep states", states.to(contract.env.device)),
        ):
            contract.require_same(name, value, states, "other states", hint, states)
        order = contract.some(n, 8)
        one_by_one = cat([states[i : i + 1] for i in order.tolist()])
        contract.require_same("s[order] to select rows", states[order], one_by_one, "other states", hint, one_by_one)
        contract.require(len(states[order[:0]]) == 0, "an empty index to give no states", "some", hint)


def check_describe(contract: Contract[S], states: S) -> None:
    """``describe`` gives one line of text for each state."""
    with contract.clause("describe"):
        lines = contract.env.describe(states)
        hint = "return a list with one short line for each state"
        contract.require(
            type(lines) is list and len(lines) == len(states),
            f"a list of {len(states)} lines",
            f"a {type(lines).__name__} of {len(lines)}",
            hint,
        )
        for line in lines:
            single = type(line) is str and "\n" not in line
            contract.require(single, "one line of text for each state", repr(line), hint)


def check_predicates(contract: Contract[S], states: S) -> None:
    """``is_initial`` and ``is_terminal`` are pure and boolean, and no state is both."""
    env, n = contract.env, len(states)
    for name, ask in (("is_initial", env.is_initial), ("is_terminal", env.is_terminal)):
        with contract.clause(name):
            contract.require_tensor(name, ask, states, (n,), torch.bool)


def examine(contract: Contract[S], discrete: DiscreteEnvironment[S] | None, states: S) -> None:
    """What dense environments promise about each state: masks and features."""
    if discrete is None:
        return
    check_masks(contract, discrete, states)
    with contract.clause("encode"):
        features = contract.require_tensor("encode", discrete.encode, states, (len(states), discrete.n_features))
        hint = "scale features, and keep logarithms and divisions away from zero"
        contract.require(features.isfinite().all(1), "finite features", "NaN or infinity", hint, states)


def check_masks(contract: Contract[S], env: DiscreteEnvironment[S], states: S) -> None:
    """Masks are pure and boolean: no dead ends, nothing after the end, nothing before the start."""
    live, initial = ~env.is_terminal(states), env.is_initial(states)
    with contract.clause("masks"):
        shape = (len(states), env.n_actions)
        forward = contract.require_tensor("forward_mask", env.forward_mask, states, shape, torch.bool).any(1)
        backward = contract.require_tensor("backward_mask", env.backward_mask, states, shape, torch.bool).any(1)
        hint = "allow an action there, or make is_terminal true"
        contract.require(forward | ~live, "forward_mask to allow an action while not terminal", "none", hint, states)
        hint = "nothing leads into an initial state: its row must be all False"
        contract.require(
            ~(backward & initial), "backward_mask to allow nothing at the start", "an action", hint, states
        )
        hint = "name the actions that lead there, or make is_initial true"
        contract.require(backward | initial, "backward_mask to allow an action elsewhere", "none", hint, states)
    with contract.clause("terminal"):
        hint = "the row of a terminal state must be all False"
        contract.require(~(forward & ~live), "no forward action in a terminal state", "one", hint, states)
