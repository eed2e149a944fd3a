"""The hypergrid as a graph: steps, masks, features, lists of states and what it refuses."""

from __future__ import annotations

import pytest
import torch

from envs.hypergrid import Classic, GridStates, Hypergrid, Sparse
from gfn.environment import TooManyStatesError, as_discrete, as_enumerable, as_multimodal
from gfn.states import TensorStates, cat


def grid_states(*coords: tuple[int, ...], stopped: bool = False) -> GridStates:
    return GridStates(torch.tensor(coords), torch.full((len(coords),), stopped))


def test_trajectories_start_at_the_origin() -> None:
    env = Hypergrid(5, 3)
    start = env.reset(2)
    assert start.coords.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert start.stopped.tolist() == [False, False]
    assert env.is_initial(start).all()
    assert not env.is_initial(grid_states((0, 0, 0), stopped=True)).any()
    assert not env.is_initial(grid_states((0, 0, 1))).any()


def test_actions_add_to_one_coordinate_or_stop_and_undo_takes_them_back() -> None:
    env = Hypergrid(5, 3)
    before = grid_states((1, 2, 3), (1, 2, 3), (4, 4, 4))
    actions = torch.tensor([0, 2, 3])
    after = env.step(before, actions)
    assert after.coords.tolist() == [[2, 2, 3], [1, 2, 4], [4, 4, 4]]
    assert after.stopped.tolist() == [False, False, True]
    back = env.undo(after, actions)
    assert back.coords.tolist() == before.coords.tolist()
    assert back.stopped.tolist() == [False, False, False]


def test_masks_name_the_edges() -> None:
    env = Hypergrid(3, 2)
    states = cat([grid_states((0, 0), (2, 1)), grid_states((0, 2), stopped=True)])
    assert env.forward_mask(states).tolist() == [[True, True, True], [False, True, True], [False, False, False]]
    assert env.backward_mask(states).tolist() == [[False, False, False], [True, True, False], [False, False, True]]


@pytest.mark.parametrize(
    ("action", "state", "message"),
    [
        (0, (4, 1), r"Hypergrid.step: action 0 is not allowed in state 4 1; allowed are \[1, 2\]"),
        (3, (0, 1), r"Hypergrid.step: action 3 is not allowed in state 0 1; allowed are \[0, 1, 2\]"),
        (-1, (0, 1), r"Hypergrid.step: action -1 is not allowed in state 0 1"),
    ],
)
def test_a_step_that_is_not_allowed_raises(action: int, state: tuple[int, int], message: str) -> None:
    env = Hypergrid(5, 2)
    with pytest.raises(ValueError, match=message):
        env.step(grid_states((1, 1), state), torch.tensor([0, action]))


def test_nothing_leads_out_of_a_stopped_state_or_into_the_origin() -> None:
    env = Hypergrid(5, 2)
    for action in range(3):
        with pytest.raises(ValueError, match=r"action . is not allowed in state 1 1 stop; allowed are \[\]"):
            env.step(grid_states((1, 1), stopped=True), torch.tensor([action]))
        with pytest.raises(ValueError, match=r"Hypergrid.undo: action . is not allowed in state 0 0; allowed are \[\]"):
            env.undo(env.reset(1), torch.tensor([action]))


def test_features_are_one_hot_coordinates_in_the_default_dtype() -> None:
    env = Hypergrid(3, 2)
    features = env.encode(grid_states((0, 2), (1, 0)))
    assert features.tolist() == [[1, 0, 0, 0, 0, 1], [0, 1, 0, 1, 0, 0]]
    assert features.shape == (2, env.n_features)
    assert features.dtype == torch.float32


@pytest.mark.usefixtures("float64")
def test_features_follow_the_default_dtype() -> None:
    env = Hypergrid(3, 2)
    assert env.encode(env.reset(1)).dtype == torch.float64


def test_states_are_described_by_their_coordinates() -> None:
    env = Hypergrid(12, 2)
    states = cat([grid_states((0, 11)), grid_states((3, 4), stopped=True)])
    assert env.describe(states) == ["0 11", "3 4 stop"]


@pytest.mark.parametrize(("side", "ndim"), [(2, 1), (7, 1), (4, 2), (3, 4)])
def test_every_state_is_listed_once_parents_first(side: int, ndim: int) -> None:
    env = Hypergrid(side, ndim)
    states = env.enumerate()
    points = {tuple(point) for point in states.coords.tolist()}
    assert len(states) == 2 * side**ndim
    assert points == {
        tuple(point) for point in torch.cartesian_prod(*[torch.arange(side)] * ndim).reshape(-1, ndim).tolist()
    }
    assert int(states.stopped.sum()) == side**ndim
    assert env.index(states).tolist() == list(range(len(states)))
    row, action = env.edges(states)
    assert len(row) == side**ndim + ndim * (side - 1) * side ** (ndim - 1)
    assert (env.index(env.step(states[row], action)) > row).all()


def test_the_longest_trajectory_has_max_steps() -> None:
    assert Hypergrid(8, 4).max_steps == 29  # 7 steps along each axis, and the stop


def test_too_large_a_grid_is_not_listed() -> None:
    with pytest.raises(TooManyStatesError, match=r"20\^6 = 64000000 points are too many to list \(at most 4194304\); "):
        Hypergrid(20, 6).enumerate()


@pytest.mark.parametrize(("side", "ndim"), [(1, 2), (0, 2), (8, 0)])
def test_a_grid_needs_two_points_along_one_axis(side: int, ndim: int) -> None:
    with pytest.raises(ValueError, match=f"needs side >= 2 and ndim >= 1, got side={side} ndim={ndim}"):
        Hypergrid(side, ndim)


def test_a_grid_has_every_capability() -> None:
    env = Hypergrid()
    assert as_discrete(env) is env
    assert as_enumerable(env) is env
    assert as_multimodal(env) is env


def test_modes_are_labelled_by_corner_and_by_point() -> None:
    env = Hypergrid(8, 2)
    labels = env.modes(grid_states((1, 1), (6, 1), (1, 6), (6, 6), (0, 0), (3, 6), stopped=True))
    assert labels["regions"].tolist() == [0, 1, 2, 3, -1, -1]
    assert labels["mode_states"].tolist() == [9, 49, 14, 54, -1, -1]
    assert env.mode_counts == {"regions": 4, "mode_states": 4}
    assert Hypergrid(20, 2).mode_counts == {"regions": 4, "mode_states": 16}
    assert Hypergrid(8, 2, Sparse()).mode_counts == {"regions": 3, "mode_states": 3}


def test_modes_of_a_grid_too_large_to_list_are_its_corners() -> None:
    env = Hypergrid(8, 8)
    corner = grid_states((6,) * 8, (1,) * 8, (0,) * 8, stopped=True)
    assert env.mode_counts == {"regions": 256}
    assert {name: label.tolist() for name, label in env.modes(corner).items()} == {"regions": [255, 0, -1]}


def test_the_picture_of_a_distribution_sums_over_all_but_two_axes() -> None:
    env = Hypergrid(3, 3)
    states = grid_states((0, 1, 0), (0, 1, 2), (2, 0, 1), stopped=True)
    picture = env.image(states, torch.tensor([0.25, 0.5, 1.0]))
    assert picture.tolist() == [[0, 0, 1], [0.75, 0, 0], [0, 0, 0]]
    line = Hypergrid(3, 1)
    assert line.image(grid_states((2,), (0,)), torch.tensor([0.5, 1.0])).tolist() == [[1, 0, 0.5]]


def test_an_environment_moves_to_a_device_with_its_tensors() -> None:
    env = Hypergrid(4, 2, Classic(r0=1e-3))
    there = env.to("meta")
    assert there.reset(2).coords.device.type == "meta"
    assert env.reset(2).coords.device.type == "cpu"
    assert there.reward == env.reward


def test_the_default_description_is_one_line_however_long_the_state() -> None:
    class Plain(Hypergrid):
        describe = Hypergrid.__mro__[2].describe  # that of Environment

    line = Plain(200, 100).describe(Plain(200, 100).reset(1))
    assert len(line) == 1
    assert line[0].startswith("GridStates(coords=tensor([[0, 0")
    assert "\n" not in line[0]


def test_the_fields_of_states_share_their_first_dimension() -> None:
    with pytest.raises(ValueError, match=r"GridStates: the fields must share .* got {'coords': 3, 'stopped': 2}"):
        GridStates(torch.zeros(3, 2), torch.zeros(2))


def test_states_are_selected_joined_and_moved_row_by_row() -> None:
    states = cat([grid_states((0, 1), (2, 3)), grid_states((4, 5), stopped=True)])
    assert isinstance(states, TensorStates)
    assert states[torch.tensor([2, 0])].coords.tolist() == [[4, 5], [0, 1]]
    assert states[torch.tensor([2, 0])].stopped.tolist() == [True, False]
    assert states[states.stopped].coords.tolist() == [[4, 5]]
    assert states[1:].coords.tolist() == [[2, 3], [4, 5]]
    assert len(states) == 3
    assert states.to("meta").stopped.device.type == "meta"
    assert cat([torch.tensor([1]), torch.tensor([2, 3])]).tolist() == [1, 2, 3]
