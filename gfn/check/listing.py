"""Clauses about environments that list their states, and that name their modes."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from gfn.check.contract import Contract
from gfn.check.states import check_predicates, examine
from gfn.check.transitions import check_backward_edges
from gfn.environment import DiscreteEnvironment, Enumerable, TooManyStatesError, as_enumerable, as_multimodal
from gfn.exact import edge_log_pb, state_graph
from gfn.policies import Policy
from gfn.states import States

S = TypeVar("S", bound=States)
CHUNK = 16384  # listed states looked at together


def check_listing(
    contract: Contract[S], discrete: DiscreteEnvironment[S] | None, start: S, backward: Policy[S]
) -> None:
    """If the environment lists its states: the list is right, and every state in it keeps the other clauses."""
    listed = as_enumerable(contract.env)
    states = _all_states(contract, listed) if listed is not None else None
    if listed is None or states is None:
        return
    _check_index(contract, listed, states, start)
    chunks = torch.arange(len(states), device=contract.env.device).split(CHUNK)
    for part in chunks:
        check_predicates(contract, states[part])
        examine(contract, discrete, states[part])
    entering = _check_edges(contract, listed, states)
    if discrete is not None:
        for part in chunks:
            check_backward_edges(contract, discrete, states[part])
    _check_entering(contract, discrete, states, entering)
    _check_longest(contract)
    if discrete is None:
        _check_backward_total(contract, backward)


def _all_states(contract: Contract[S], listed: Enumerable[S]) -> S | None:
    """Every state, or None if there are too many to list."""
    try:
        return listed.enumerate()
    except TooManyStatesError:
        return None
    except Exception as error:
        with contract.clause("enumerate"):
            raise error


def _check_index(contract: Contract[S], listed: Enumerable[S], states: S, start: S) -> None:
    n, hint = len(states), "index must give each state its place in enumerate, which lists each state once"
    with contract.clause("index"):
        place = contract.require_tensor("index", listed.index, states, (n,), torch.long)
        right = place == torch.arange(n, device=place.device)
        contract.require(right, "index(enumerate()) to be 0 … n−1", "another number", hint, states)
    with contract.clause("enumerate"):
        hint = "list every state that reset can give and steps can lead to"
        _require_listed(contract, listed, states, start, hint)


def _require_listed(contract: Contract[S], listed: Enumerable[S], states: S, asked: S, hint: str) -> Tensor:
    """Positions of ``asked`` in the list of all states."""
    place = listed.index(asked)
    inside = (place >= 0) & (place < len(states))
    contract.require(inside, "every state to be listed", "one with an index outside", hint, asked)
    contract.require_same("every state to be listed", states[place], asked, "another in its place", hint, asked)
    return place


def _check_edges(contract: Contract[S], listed: Enumerable[S], states: S) -> Tensor:
    """Look at every edge; the number of edges into each state, ``[n]``."""
    env, n = contract.env, len(states)
    entering = torch.zeros(n, dtype=torch.long, device=env.device)
    live = (~env.is_terminal(states)).nonzero().squeeze(1)
    for part in live.split(CHUNK):
        with contract.clause("edges"):
            row, action = listed.edges(states[part])
            _require_edges(contract, states[part], row, action)
            source = part[row]
        with contract.clause("step"):
            child = env.step(states[source], action)
        with contract.clause("undo"):
            back, hint = env.undo(child, action), "undo must take back exactly what step did"
            contract.require_same("undo(step(s, a), a) to be s", back, states[source], "another", hint, states[source])
        with contract.clause("enumerate"):
            place = _require_listed(contract, listed, states, child, "list every state that steps can lead to")
            hint = "sort by number of steps, or by any order in which steps only go up"
            contract.require(place > source, "parents before children", "a child before", hint, states[source], child)
        entering += torch.bincount(place, minlength=n)
    return entering


def _require_edges(contract: Contract[S], states: S, row: Tensor, action: Tensor) -> None:
    hint = "give each edge out of a live state once: its row, and its action"
    contract.require_form("edges: rows", row, (len(action),), torch.long)
    leaving = torch.bincount(row, minlength=len(states))[: len(states)]
    contract.require(leaving > 0, "an edge out of every live state", "none", hint, states)
    distinct = len(torch.cat([row.unsqueeze(1), action.reshape(len(row), -1)], 1).unique(dim=0))
    contract.require(distinct == len(row), f"{len(row)} distinct edges", str(distinct), hint)


def _check_entering(
    contract: Contract[S], discrete: DiscreteEnvironment[S] | None, states: S, entering: Tensor
) -> None:
    with contract.clause("enumerate"):
        reached = (entering > 0) | contract.env.is_initial(states)
        hint = "list only states that can be reached"
        contract.require(reached, "each state to be initial or to be stepped into", "one that is neither", hint, states)
    if discrete is None:
        return
    with contract.clause("backward edges"):
        chunks = torch.arange(len(states), device=entering.device).split(CHUNK)
        backward = torch.cat([discrete.backward_mask(states[part]).sum(1) for part in chunks])
        came = "another number"
        hint = "forward_mask and backward_mask must name the same edges"
        contract.require(backward == entering, "as many backward actions as steps into the state", came, hint, states)


def _check_longest(contract: Contract[S]) -> None:
    with contract.clause("max_steps"):
        longest = len(state_graph(contract.env).level_ends)
        hint = f"set max_steps to at least {longest}"
        contract.require(
            longest <= contract.env.max_steps, f"paths of {contract.env.max_steps} steps", f"one of {longest}", hint
        )


def _check_backward_total(contract: Contract[S], backward: Policy[S]) -> None:
    """P_B adds up to one over the edges into each state; for dense masks the number of edges tells."""
    with contract.clause("backward edges"):
        graph = state_graph(contract.env)
        into = torch.zeros(graph.n, dtype=torch.float64, device=graph.target.device)
        into = into.index_add(0, graph.target, edge_log_pb(graph, backward).exp())
        into[graph.initial] = 1.0
        wrong = (into - 1).abs() > contract.tolerance
        came = f"{float(into[wrong][0])}" if bool(wrong.any()) else ""
        hint = "the edges that the backward policy knows and those that edges gives must be the same"
        contract.require(~wrong, "P_B to add up to 1 over the edges into a state", came, hint, graph.states)


def check_modes(contract: Contract[S], final: S) -> None:
    """If the environment names its modes: one label for each terminal state and definition, no more than it says."""
    modal: Any = as_multimodal(contract.env)
    if modal is None:
        return
    hint = "modes and mode_counts must use the same definitions; -1 stands for no mode"
    with contract.clause("modes"):
        labels, counts = modal.modes(final), modal.mode_counts
        contract.require(
            set(labels) == set(counts), f"modes by the definitions {sorted(counts)}", str(sorted(labels)), hint
        )
        for name, count in counts.items():

            def label(states: S, name: str = name) -> Tensor:
                return modal.modes(states)[name]

            given = contract.require_tensor(f"modes[{name}]", label, final, (len(final),), torch.long)
            contract.require(given >= -1, f"labels of {name} from -1 on", str(int(given.min())), hint, final)
            found = len(given[given >= 0].unique())
            few = count is None or found <= count
            contract.require(few, f"{count} modes by {name} at most", str(found), hint)
