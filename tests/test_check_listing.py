"""The contract of listed states and of modes: each way to break it is caught by the clause that names the fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from envs.hypergrid import Hypergrid
from gfn.check import check_environment
from gfn.distributions import RaggedCategorical
from gfn.policies import Tabular
from tests.breaking import Cases, at, caught, right
from tests.toy_environments import Cook, Recipes, Uncook

cases = Cases()


def one_less(self, states):
    return right.index(self, states) - 1


def one_less_but_not_below_zero(self, states):
    return one_less(self, states).clamp_min(0)


def from_the_end(self, states):
    return 31 - right.index(self, states)


@cases.add("enumerate", "expected an answer, came MemoryError: too much")
def fills_the_memory(self):
    raise MemoryError("too much")


@cases.add("enumerate", "every state to be listed; came one with an index outside in state [0 0]", index=one_less)
def leaves_out_the_origin(self):
    return right.enumerate(self)[1:]


@cases.add(
    "enumerate",
    "every state to be listed; came another in its place [0 1] in state [0 0]",
    index=one_less_but_not_below_zero,
)
def takes_another_for_the_origin(self):
    return right.enumerate(self)[1:]


@cases.add("enumerate", "every state to be listed; came one with an index outside in state [3 3 stop]")
def leaves_out_the_corner(self):
    return right.enumerate(self)[:-1]


@cases.add("enumerate", "parents before children; came a child before [", index=from_the_end)
def lists_backward(self):
    return right.enumerate(self)[torch.arange(31, -1, -1)]


@cases.add("index", "index of dtype torch.int64; came torch.float32")
def numbers_with_floats(self, states):
    return right.index(self, states).float()


@cases.add("index", "index(enumerate()) to be 0 … n−1; came another number in state [0 0]", "enumerate")
def lists_the_origin_twice(self):
    states = right.enumerate(self)
    return states[torch.cat([torch.zeros(1, dtype=torch.long), torch.arange(len(states))])]


@cases.add("index", "index to answer for each state alone")
def numbers_by_position(self, states):
    whole = len(states) == 32
    return torch.arange(32) if whole else torch.zeros(len(states), dtype=torch.long)


@cases.add("edges", "edges: rows of dtype torch.int64; came torch.int32")
def names_rows_in_small_integers(self, states):
    row, action = right.edges(self, states)
    return row.int(), action


@cases.add("edges", "an edge out of every live state; came none in state [0 3]")
def forgets_an_edge(self, states):
    row, action = right.edges(self, states)
    kept = ~at(states, 0, 3)[row]
    return row[kept], action[kept]


@cases.add("edges", "80 distinct edges; came 40")
def names_edges_twice(self, states):
    row, action = right.edges(self, states)
    return row.repeat(2), action.repeat(2)


@cases.add("edges", "expected an answer, came IndexError")
def names_rows_outside(self, states):
    row, action = right.edges(self, states)
    return torch.cat([row, row[-1:] + 1]), torch.cat([action, action[-1:]])


@cases.add("modes", "modes by the definitions ['mode_states', 'regions']; came ['regions']")
def forgets_a_definition(self, states):
    return {"regions": right.modes(self, states)["regions"]}


@cases.add("modes", "modes[regions] of shape (64,); came (64, 1)")
def labels_in_a_column(self, states):
    return {name: label.unsqueeze(1) for name, label in right.modes(self, states).items()}


@cases.add("modes", "labels of regions from -1 on; came -2")
def labels_with_minus_two(self, states):
    return {name: label - 1 for name, label in right.modes(self, states).items()}


@cases.add("modes", "0 modes by regions at most; came 1")
def takes_states_for_regions(self, states):
    return dict.fromkeys(self.mode_counts, right.index(self, states) % 16)


@cases.add("modes", "modes[regions] to answer for each state alone")
def numbers_modes_in_the_batch(self, states):
    return dict.fromkeys(self.mode_counts, torch.arange(len(states)))


def test_modes_need_not_be_counted() -> None:
    class Uncounted(Hypergrid):
        @property
        def mode_counts(self):
            return {"regions": None, "mode_states": None}

    assert "modes" in check_environment(Uncounted(4, 2))


@pytest.mark.parametrize("name", cases)
def test_a_broken_grid_is_caught_by_the_clause_it_breaks(name: str) -> None:
    cases.check(name)


# Faults in a far corner, which the two trajectories of these tests pass by: the list of states finds them.

rare = Cases()


@rare.add("masks", "forward_mask to allow an action while not terminal; came none in state [7 0]", "forward_mask")
def is_stuck(self, states):
    return right.forward_mask(self, states) & ~at(states, 7, 0).unsqueeze(1)


@rare.add("is_terminal", "is_terminal of dtype torch.bool; came torch.int64")
def counts(self, states):
    return states.stopped.long() if at(states, 7, 0).any() else states.stopped


@rare.add("step", "expected an answer, came ValueError: not here")
def refuses(self, states, actions):
    if (at(states, 7, 0) & (actions == 1)).any():
        raise ValueError("not here")
    return right.step(self, states, actions)


@rare.add("undo", "undo(step(s, a), a) to be s; came another [5 0] in state [6 0]")
def goes_too_far_back(self, states, actions):
    back = right.undo(self, states, actions)
    return replace(back, coords=back.coords - (at(states, 7, 0).unsqueeze(1) & (torch.arange(2) == 0)).long())


@rare.add("backward edges", "each backward action to be a forward action of the parent; came one f", "forward_mask")
def goes_no_further(self, states):
    return right.forward_mask(self, states) & ~(at(states, 6, 0).unsqueeze(1) & (torch.arange(3) == 0))


def anything(self, states, actions, mask, verb):
    """No action is refused when undone."""
    if verb == "step":
        right.require_allowed(self, states, actions, mask, verb)


@rare.add("backward edges", "as many backward actions as steps into the state; came another number in state [7 1]", (
    "backward_mask"
), require_allowed=anything)  # fmt: skip
def forgets_a_parent(self, states):
    return right.backward_mask(self, states) & ~(at(states, 7, 1).unsqueeze(1) & (torch.arange(3) == 0))


@pytest.mark.parametrize("name", rare)
def test_a_rare_fault_is_caught_at_every_state(name: str) -> None:
    rare.check(name, side=8, n=2)


def test_the_longest_path_is_found_where_the_policy_stops_at_once() -> None:
    env = Hypergrid(4, 2)
    env.max_steps = 6
    stops = Tabular(env, env.forward_mask, torch.tensor([-30.0, -30.0, 0.0]).repeat(32, 1))
    caught("max_steps", "paths of 6 steps; came one of 7. Hint: set max_steps to at least 7", env, stops)


def test_a_listed_state_that_nothing_leads_to_is_caught() -> None:
    class Even(Recipes):
        table = torch.tensor([[0, 0], [1, 2], [2, 1], [2, 2], [2, 3]])

    env = Even()
    phrase = "each state to be initial or to be stepped into; came one that is neither in state"
    caught("enumerate", phrase, env, Cook(env), Uncook(env))


def test_a_backward_policy_that_knows_another_edge_is_caught() -> None:
    class Confused(Uncook):
        def distribution(self, states):
            entering = super().distribution(states)
            rows = torch.cat([entering.rows, torch.arange(len(states))])
            actions = torch.cat([entering.actions, torch.tensor([[5, 5]]).expand(len(states), 2)])
            logits = torch.cat([entering.logits.double(), torch.full((len(states),), -12.0, dtype=torch.float64)])
            order = rows.argsort(stable=True)
            return RaggedCategorical(logits[order], actions[order], rows[order], len(states))

    env = Recipes()
    phrase = "P_B to add up to 1 over the edges into a state; came 0.9999"
    caught("backward edges", phrase, env, Cook(env), Confused(env), tolerance=1e-7)
