"""Clauses about steps: forward, back again, and those that must be refused."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from gfn.check.contract import Contract, form
from gfn.environment import DiscreteEnvironment
from gfn.policies import Policy
from gfn.states import States, cat

S = TypeVar("S", bound=States)
REDRAWS = 8  # draws of an action that does not end the trajectory
REFUSALS = 32  # forbidden actions tried one by one, in live and in terminal states


@dataclass(frozen=True)
class Walk(Generic[S]):
    """Steps of complete trajectories, ``step(before, actions) == after``, and the states they ended in."""

    before: S
    actions: Tensor
    after: S
    final: S


def walk(contract: Contract[S], discrete: DiscreteEnvironment[S] | None, policy: Policy[S], start: S) -> Walk[S]:
    """Sample trajectories, looking at every step; every second one ends only where it must."""
    env = contract.env
    with contract.clause("max_steps"):
        limit = env.max_steps
        contract.require(type(limit) is int and limit > 0, "a positive integer", repr(limit), "set it in __init__")
    live, patient = start, torch.arange(len(start), device=env.device) % 2 == 0
    before, actions, after = list[S](), list[Tensor](), list[S]()
    for _ in range(limit):
        if discrete is not None:
            _check_live(contract, discrete, live)
        action = _draw(contract, policy, live, patient)
        with contract.clause("step"):
            moved = env.step(copy.deepcopy(live), action)
        before.append(live)
        actions.append(action)
        after.append(moved)
        with contract.clause("acyclic"):
            hint = "a step must change the state for good: no edge may lead back"
            contract.require(~env.is_initial(moved), "no step into an initial state", "one", hint, live)
        kept = ~env.is_terminal(moved)
        live, patient = moved[kept], patient[kept]
        if not len(live):
            break
    with contract.clause("max_steps"):
        hint = "raise max_steps to the longest trajectory there can be, or end this one"
        contract.require(len(live) == 0, f"an end within {limit} steps", "none", hint, live)
    ends = cat(after)
    return Walk(cat(before), torch.cat(actions), ends, ends[env.is_terminal(ends)])


def _check_live(contract: Contract[S], env: DiscreteEnvironment[S], live: S) -> None:
    with contract.clause("masks"):
        some, hint = env.forward_mask(live).any(1), "allow an action there, or make is_terminal true"
        contract.require(some, "forward_mask to allow an action while not terminal", "none", hint, live)


def _draw(contract: Contract[S], policy: Policy[S], live: S, patient: Tensor) -> Tensor:
    """An action for each state; for the patient, one that does not end the trajectory if there seems to be one."""
    env = contract.env
    with contract.clause("forward rollout"):
        distribution = policy.distribution(live)
        action = distribution.sample(contract.generator)
    for _ in range(REDRAWS):
        with contract.clause("step"):
            ends = env.is_terminal(env.step(copy.deepcopy(live), action)) & patient
        if not bool(ends.any()):
            break
        fresh = distribution.sample(contract.generator)
        action = torch.where(ends.reshape(-1, *[1] * (action.ndim - 1)), fresh, action)
    return action


def check_step(contract: Contract[S], before: S, actions: Tensor) -> None:
    """``step`` is pure and gives states of the same form."""
    env = contract.env
    with contract.clause("step"):
        after = env.step(copy.deepcopy(before), actions)
        hint = "step must return a batch like the one it is given, field by field, one row for each"
        contract.require(form(after) == form(before), f"step to give {form(before)}", form(after), hint)
        contract.require(len(after) == len(before), f"step to give {len(before)} states", f"{len(after)}", hint)
        contract.require_pure("step", lambda states, rows: env.step(states, actions[rows]), before)


def check_undo(contract: Contract[S], walked: Walk[S]) -> None:
    """``undo`` is pure and takes back what ``step`` did."""
    env = contract.env
    with contract.clause("undo"):
        contract.require_pure("undo", lambda states, rows: env.undo(states, walked.actions[rows]), walked.after)
        hint = "undo must take back exactly what step did, and restore every field"
        back = env.undo(walked.after, walked.actions)
        contract.require_same("undo(step(s, a), a) to be s", back, walked.before, "another state", hint, walked.before)


def check_forbidden(contract: Contract[S], env: DiscreteEnvironment[S], visited: S) -> None:
    """``step`` raises ValueError for what ``forward_mask`` forbids, also where the rest of the batch is allowed."""
    with contract.clause("forbidden"):
        mask, ended = env.forward_mask(visited), env.is_terminal(visited)
        for chosen in (~ended, ended):
            rows, actions = (~mask & chosen.unsqueeze(1)).nonzero(as_tuple=True)
            for i in contract.some(len(rows), REFUSALS).tolist():
                _require_refusal(contract, visited[rows[i : i + 1]], actions[i : i + 1])
        live = mask.any(1).nonzero().squeeze(1)
        among = (~mask[live]).nonzero()[-1:]
        mixed = mask[live].int().argmax(1)
        mixed[among[:, 0]] = among[:, 1]
        if len(among):
            _require_refusal(contract, visited[live], mixed)


def _require_refusal(contract: Contract[S], states: S, actions: Tensor) -> None:
    expected = f"a ValueError from step for a forbidden action (among {actions[:8].tolist()})"
    hint = "raise ValueError if any action of the batch is forbidden; never make another action of it"
    try:
        came = contract.env.step(states, actions)
    except ValueError:
        return
    except Exception as error:
        contract.require(False, expected, f"{type(error).__name__}: {error}", hint, states)
    else:
        contract.require(torch.zeros(len(came), dtype=torch.bool), expected, "the state", hint, states, came)


def check_backward_edges(contract: Contract[S], env: DiscreteEnvironment[S], states: S) -> None:
    """Every action that ``backward_mask`` allows undoes to a live parent, from which it leads back."""
    with contract.clause("backward edges"):
        child, action = env.backward_mask(states).nonzero(as_tuple=True)
        below = states[child]
        parent = env.undo(below, action)
        hint = "backward_mask must name exactly the actions by which some parent steps here"
        contract.require(
            ~env.is_terminal(parent), "a parent that is not terminal", "a terminal one", hint, below, parent
        )
        allowed = env.forward_mask(parent).gather(1, action.unsqueeze(1)).squeeze(1)
        contract.require(
            allowed, "each backward action to be a forward action of the parent", "one forbidden there", hint, below
        )
        contract.require_same("step(undo(s, a), a) to be s", env.step(parent, action), below, "another", hint, below)


def check_taken(contract: Contract[S], env: DiscreteEnvironment[S], walked: Walk[S]) -> None:
    """``backward_mask`` names the action that led to each state."""
    with contract.clause("backward edges"):
        allowed = env.backward_mask(walked.after).gather(1, walked.actions.unsqueeze(1)).squeeze(1)
        hint = "backward_mask must name exactly the actions by which some parent steps here"
        came = "it to forbid the one just taken"
        contract.require(allowed, "backward_mask to allow every action that led here", came, hint, walked.after)
