"""The contract of steps: each way to break it is caught by the clause that names the fault."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from envs.hypergrid import GridStates
from tests.breaking import Cases, right

cases = Cases()


@cases.add("step", "step to give GridStates(coords int64 [2], stopped bool []); came GridStates(coords int32 [2]")
def shrinks_its_integers(self, states, actions):
    return replace(right.step(self, states, actions), coords=right.step(self, states, actions).coords.int())


@cases.add("step", "step to give 64 states; came 63")
def loses_a_state(self, states, actions):
    return right.step(self, states, actions)[: max(1, len(states) - 1)]


@cases.add("step", "step to leave the states it is given as they were; came them changed in place, to [")
def moves_in_place(self, states, actions):
    after = right.step(self, states, actions)
    states.coords.copy_(after.coords)
    return GridStates(states.coords, after.stopped)


@cases.add("step", "step to answer for each state alone")
def stumbles_at_random(self, states, actions):
    after = right.step(self, states, actions)
    return replace(after, stopped=after.stopped | (torch.rand(len(states)) < 0.2))


@cases.add("step", "step to answer for each state alone")
def follows_the_crowd(self, states, actions):
    after = right.step(self, states, actions)
    return replace(after, stopped=after.stopped.sum().expand(len(states)) * 2 > len(states))


@cases.add("step", "step to give the same answer whenever it is asked")
def tires(self, states, actions):
    self.asked = getattr(self, "asked", 0) + (len(states) == 64)
    after = right.step(self, states, actions)
    return replace(after, stopped=after.stopped | torch.full_like(after.stopped, self.asked > 3))


@cases.add("step", "step to leave its earlier answers alone")
def writes_into_a_buffer(self, states, actions):
    after = right.step(self, states, actions)
    if not hasattr(self, "buffer"):
        self.buffer = torch.zeros(64, 2, dtype=torch.long)
    self.buffer[: len(states)] = after.coords
    return replace(after, coords=self.buffer[: len(states)])


@cases.add("step", "expected an answer, came ValueError: no")
def refuses_what_it_allows(self, states, actions):
    if bool(((states.coords[:, 0] == 2) & (actions == 0)).any()):
        raise ValueError("no")
    return right.step(self, states, actions)


@cases.add("undo", "undo(step(s, a), a) to be s; came another state")
def forgets_how_to_go_back(self, states, actions):
    back = right.undo(self, states, actions)
    return replace(back, coords=back.coords.clamp(max=1))


@cases.add("undo", "undo to leave the states it is given as they were")
def goes_back_in_place(self, states, actions):
    back = right.undo(self, states, actions)
    states.stopped.fill_(False)
    return back


def wrapped(self, states, actions):
    moved = states.coords - torch.nn.functional.one_hot(actions, 3)[:, :2]
    return GridStates(moved % 4, torch.zeros_like(states.stopped))


def no_rim(self, states):
    return ~states.stopped.unsqueeze(1).expand(-1, 3)


@cases.add("acyclic", "no step into an initial state; came one in state [", "step", forward_mask=no_rim, undo=wrapped)
def walks_round(self, states, actions):
    moved = states.coords + torch.nn.functional.one_hot(actions, 3)[:, :2]
    return GridStates(moved % 4, actions == 2)


@cases.add("max_steps", "a positive integer; came 2.5", "__init__")
def counts_in_halves(self, side, ndim):
    right.__init__(self, side, ndim)
    self.max_steps = 2.5


@cases.add("max_steps", "an end within 6 steps; came none in state [3 3]", "__init__")
def counts_one_step_too_few(self, side, ndim):
    right.__init__(self, side, ndim)
    self.max_steps -= 1


@cases.add("forbidden", "a ValueError from step for a forbidden action", "require_allowed")
def allows_everything(self, states, actions, mask, verb):
    pass


@cases.add("forbidden", "came IndexError: off the grid", "require_allowed")
def raises_another_error(self, states, actions, mask, verb):
    if not bool(mask.gather(1, actions.unsqueeze(1)).all()):
        raise IndexError("off the grid")


@cases.add("forbidden", "came the state [", "require_allowed")
def looks_at_the_first_row_only(self, states, actions, mask, verb):
    right.require_allowed(self, states[:1], actions[:1], mask[:1], verb)


@cases.add("forbidden", "stop] in state [", "step")
def makes_a_stop_of_it(self, states, actions):
    allowed = self.forward_mask(states).gather(1, actions.unsqueeze(1)).squeeze(1)
    return right.step(self, states, actions.where(allowed | states.stopped, 2))


@cases.add(
    "backward edges", "to allow every action that led here; came it to forbid the one just taken", "backward_mask"
)
def forgets_a_parent(self, states):
    forgotten = (states.coords > 0).all(1).unsqueeze(1) & (torch.arange(3) == 1)
    return right.backward_mask(self, states) & ~forgotten


def undo_while_stopped(self, states, actions):
    return replace(states, coords=states.coords - self._move(actions), stopped=states.stopped & (actions < 2))


@cases.add(
    "backward edges", "a parent that is not terminal; came a terminal one [", "backward_mask", undo=undo_while_stopped
)
def comes_from_the_end(self, states):
    return right.backward_mask(self, states) | torch.cat([states.coords > 0, states.stopped.unsqueeze(1)], 1)


@cases.add(
    "backward edges", "each backward action to be a forward action of the parent; came one forbidden", "forward_mask"
)
def goes_where_it_never_came_from(self, states):
    return right.forward_mask(self, states) & ~((states.coords[:, :1] == 1) & (torch.arange(3) == 1))


@cases.add("backward edges", "step(undo(s, a), a) to be s", "backward_mask", undo=lambda self, states, actions: replace(
    states, coords=states.coords - self._move(actions), stopped=torch.zeros_like(states.stopped)
))  # fmt: skip
def was_stopped_before_it_stopped(self, states):
    live = states.coords.any(1) & ~states.stopped
    return right.backward_mask(self, states) | (live.unsqueeze(1) & (torch.arange(3) == 2))


@pytest.mark.parametrize("name", cases)
def test_a_broken_grid_is_caught_by_the_clause_it_breaks(name: str) -> None:
    cases.check(name)
