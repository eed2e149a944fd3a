"""Discovery: which modes training has found."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from envs.hypergrid import GridStates, Hypergrid
from gfn.discovery import Discovery
from tests.trainers import Unlisted


class Named(Unlisted):
    """Says of each state that it is the mode of that number."""

    mode_counts: ClassVar[dict[str, None]] = {"labels": None}

    def __init__(self) -> None:
        super().__init__(8, 2)

    def modes(self, states: Any) -> dict[str, torch.Tensor]:
        return {"labels": states}


def final(*points: tuple[int, int]) -> GridStates:
    return GridStates(torch.tensor(points).reshape(-1, 2), torch.ones(len(points), dtype=torch.bool))


def test_discoveries_are_counted_once() -> None:
    discovery = Discovery(Hypergrid(20, 2))  # modes at {2, 3, 16, 17}²
    assert discovery.counts() == {"regions": 0, "mode_states": 0}
    discovery.observe(final((0, 0), (2, 4)))
    assert discovery.counts() == {"regions": 0, "mode_states": 0}
    discovery.observe(final((2, 3), (2, 2), (2, 3), (9, 9)))
    assert discovery.counts() == {"regions": 1, "mode_states": 2}
    discovery.observe(final((2, 2), (16, 3)))
    assert discovery.counts() == {"regions": 2, "mode_states": 3}


def test_discoveries_survive_a_round_trip() -> None:
    env = Hypergrid(20, 2)
    first, second = Discovery(env), Discovery(env)
    first.observe(final((2, 3), (16, 3)))
    state = first.state_dict()
    second.load_state_dict(state)
    assert second.counts() == first.counts() == {"regions": 2, "mode_states": 2}
    second.observe(final((2, 3), (17, 17)))
    assert second.counts() == {"regions": 3, "mode_states": 3}
    assert first.counts() == {"regions": 2, "mode_states": 2}, "the two share nothing"
    first.observe(final((17, 17)))
    assert sum(map(len, state.values())) == 4, "a state that was taken stays as it was"
    second.load_state_dict({})
    assert second.counts() == {"regions": 0, "mode_states": 0}


def test_labels_may_be_any_number_of_63_bits() -> None:
    discovery = Discovery(Named())
    labels = torch.tensor([2**63 - 1, -1, 2**63 - 2, 0, 2**63 - 1])
    discovery.observe(labels)
    again = Discovery(Named())
    again.load_state_dict(discovery.state_dict())
    again.observe(labels)
    assert discovery.counts() == again.counts() == {"labels": 3}
    assert discovery.state_dict()["labels"].tolist() == [0, 2**63 - 2, 2**63 - 1]


def test_environments_without_modes_have_no_discoveries() -> None:
    discovery = Discovery(Unlisted(8, 2))
    discovery.observe(final((1, 1)))
    assert (discovery.counts(), discovery.state_dict()) == ({}, {})
