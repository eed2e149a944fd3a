"""The contract of states taken one at a time: each way to break it is caught by the clause that names the fault."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid
from tests.breaking import Cases, at, caught, right

cases = Cases()


@cases.add("reset", "a batch of states; came a list")
def gives_a_list(self, n, generator=None):
    return [0] * n


@cases.add("reset", "reset(64) to give 64 states; came 65")
def gives_one_too_many(self, n, generator=None):
    return right.reset(self, n + 1)


@cases.add("reset", "states on cpu; came coords on meta")
def sits_elsewhere(self, n, generator=None):
    return replace(right.reset(self, n), coords=right.reset(self, n).coords.to("meta"))


@cases.add("reset", "is_initial of every state of reset; came False in state [1 1]")
def starts_in_the_middle(self, n, generator=None):
    return replace(right.reset(self, n), coords=torch.ones(n, 2, dtype=torch.long))


@cases.add("reset", "is_terminal of no state of reset; came True in state [0 0]", "is_terminal")
def ends_at_the_start(self, states):
    return states.stopped | at(states, 0, 0)


@cases.add("reset", "expected an answer, came KeyError: 'oops'")
def does_not_start(self, n, generator=None):
    raise KeyError("oops")


@cases.add("describe", "a list of 64 lines; came a str of 4")
def describes_all_as_one(self, states):
    return "grid"


@cases.add("describe", "a list of 64 lines; came a list of 1")
def describes_the_first(self, states):
    return right.describe(self, states[:1])


@cases.add("describe", "one line of text for each state; came '0\\n0'")
def describes_on_several_lines(self, states):
    return [line.replace(" ", "\n") for line in right.describe(self, states)]


@cases.add("is_initial", "is_initial of shape (64,); came (64, 1)")
def answers_in_a_column(self, states):
    return right.is_initial(self, states).unsqueeze(1)


@cases.add("is_terminal", "is_terminal of dtype torch.bool; came torch.int64")
def counts_ends(self, states):
    return states.stopped.long()


@cases.add("is_terminal", "is_terminal to answer for each state alone")
def ends_all_together(self, states):
    return states.stopped & states.stopped.any().logical_not().logical_or(states.stopped.all())


@cases.add("masks", "forward_mask of shape (64, 3); came (64, 2)", "forward_mask")
def forgets_the_stop(self, states):
    return right.forward_mask(self, states)[:, :2]


@cases.add("masks", "backward_mask of dtype torch.bool; came torch.uint8", "backward_mask")
def masks_with_numbers(self, states):
    return right.backward_mask(self, states).byte()


@cases.add("masks", "forward_mask to allow an action while not terminal; came none in state [3 3]", "forward_mask")
def is_stuck_in_the_corner(self, states):
    return right.forward_mask(self, states) & ~at(states, 3, 3).unsqueeze(1)


@cases.add("masks", "backward_mask to allow nothing at the start; came an action in state [0 0]", "backward_mask")
def comes_from_before_the_start(self, states):
    return right.backward_mask(self, states) | self.is_initial(states).unsqueeze(1)


@cases.add("masks", "backward_mask to allow an action elsewhere; came none in state [0 1]", "backward_mask")
def comes_from_nowhere(self, states):
    return right.backward_mask(self, states) & ~at(states, 0, 1).unsqueeze(1)


@cases.add("masks", "forward_mask to answer for each state alone", "forward_mask")
def lets_all_rows_decide(self, states):
    mask = right.forward_mask(self, states)
    return mask & (states.stopped.unsqueeze(1) | mask[~states.stopped].all(0) | (torch.arange(3) == 2))


@cases.add("masks", "forward_mask to answer for each state alone", "forward_mask")
def remembers_the_last_mask(self, states):
    now = right.forward_mask(self, states)
    stale = getattr(self, "stale", now)
    self.stale = now
    return stale if stale.shape == now.shape else now


@cases.add("masks", "backward_mask to leave the states it is given as they were; came them changed", "backward_mask")
def rounds_states_in_place(self, states):
    mask = right.backward_mask(self, states)
    states.coords.clamp_(max=2)
    return mask


@cases.add("terminal", "no forward action in a terminal state; came one in state [", "forward_mask")
def goes_on_after_the_stop(self, states):
    return right.forward_mask(self, replace(states, stopped=states.stopped & (states.coords[:, 0] > 0)))


@cases.add("encode", "encode of shape (64, 8); came (64, 9)")
def adds_a_feature(self, states):
    return torch.cat([right.encode(self, states), states.stopped.unsqueeze(1).float()], 1)


@cases.add("encode", "encode of dtype a float; came torch.int64")
def encodes_in_integers(self, states):
    return right.encode(self, states).long()


@cases.add("encode", "finite features; came NaN or infinity in state [0 0")
def takes_logarithms(self, states):
    return states.coords.double().log().repeat(1, 4)


@cases.add("encode", "encode to answer for each state alone")
def normalises_the_batch(self, states):
    features = right.encode(self, states)
    return features - features.mean(0)


@pytest.mark.parametrize("name", cases)
def test_a_broken_grid_is_caught_by_the_clause_it_breaks(name: str) -> None:
    cases.check(name)


@dataclass(frozen=True)
class Reversing(GridStates):
    """Joins batches in the wrong order."""

    @classmethod
    def cat(cls, batches):
        return super().cat(batches[::-1])


class Dropping(Reversing):
    """Joins no more than the first batch."""

    @classmethod
    def cat(cls, batches):
        return batches[0]


class Numbering(GridStates):
    """Takes True for row 1."""

    def __getitem__(self, index):
        return super().__getitem__(index.long() if isinstance(index, Tensor) else index)


class FromTheTop(GridStates):
    """Starts every slice at row 0."""

    def __getitem__(self, index):
        return super().__getitem__(slice(0, index.stop) if isinstance(index, slice) else index)


class Sorting(GridStates):
    """Selects the rows of one field in order of their number."""

    def __getitem__(self, index):
        ascending = index.sort().values if isinstance(index, Tensor) and index.dtype == torch.long else index
        return type(self)(self.coords[index], self.stopped[ascending])


class NeverEmpty(GridStates):
    """Gives the first row if asked for none."""

    def __getitem__(self, index):
        none = isinstance(index, Tensor) and index.dtype == torch.long and len(index) == 0
        return super().__getitem__(slice(0, 1) if none else index)


class Moving(GridStates):
    """Changes on the way to a device."""

    def to(self, device):
        return replace(self, coords=self.coords.flip(1))


@pytest.mark.parametrize(
    ("kind", "phrase"),
    [
        (Reversing, "cat([s[:1], s[1:]]) to be s; came other states"),
        (Dropping, "cat to give 128 states; came 64"),
        (Numbering, "s[bool] to select rows; came other states (Numbering of 128 rows for Numbering of 64)"),
        (FromTheTop, "s[a:b] to select rows; came other states (FromTheTop of 128 rows for FromTheTop of 64)"),
        (Sorting, "s[order] to select rows; came other states"),
        (NeverEmpty, "an empty index to give no states; came some"),
        (Moving, "s.to(device) to keep states; came other states"),
    ],
)
def test_broken_states_are_caught(kind: type[GridStates], phrase: str) -> None:
    class Grid(Hypergrid):
        def reset(self, n, generator=None):
            return kind(**vars(super().reset(n, generator)))

        def step(self, states, actions):
            return kind(**vars(super().step(states, actions)))

        def undo(self, states, actions):
            return kind(**vars(super().undo(states, actions)))

    caught("states", phrase, Grid(4, 2))
