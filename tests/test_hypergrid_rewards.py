"""Rewards and modes of the hypergrid, against exact rational arithmetic and published constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Classic, Cosine, Deceptive, GridReward, Hypergrid, Sparse, UserReward
from gfn.environment import RewardError, checked_log_reward

SIZES = [(8, 1), (2, 2), (3, 2), (9, 2), (11, 2), (16, 2), (20, 2), (21, 2), (31, 2), (8, 3), (5, 3)]
LARGE = {"marks": pytest.mark.slow}

# side, ndim, r0, r1, r2, points, mode states, regions, log Z, mass of the modes: by enumeration in float64
CONSTANTS = [
    (8, 2, 0.1, 0.5, 2, 64, 4, 4, 3.1091, 0.4643),
    (8, 2, 1e-3, 0.5, 2, 64, 4, 4, 2.7766, 0.6228),
    (16, 2, 0.1, 0.5, 2, 256, 4, 4, 4.1836, 0.1585),
    (20, 2, 0.1, 0.5, 2, 400, 16, 4, 4.8040, 0.3410),
    (64, 2, 0.1, 0.5, 2, 4096, 144, 4, 7.0980, 0.3095),
    (64, 2, 0.01, 0.5, 2, 4096, 144, 4, 6.7345, 0.4298),
    (64, 2, 1e-3, 0.5, 2, 4096, 144, 4, 6.6897, 0.4479),
    (10, 3, 0.1, 0.5, 2, 1000, 8, 8, 5.4116, 0.0929),
    (8, 4, 0.1, 0.5, 2, 4096, 16, 16, 6.3449, 0.0730),
    (8, 4, 0.01, 0.5, 2, 4096, 16, 16, 5.3031, 0.1998),
    (8, 4, 1e-3, 0.5, 2, 4096, 16, 16, 5.1005, 0.2439),
    (8, 4, 1e-4, 0.5, 2, 4096, 16, 16, 5.0777, 0.2494),
    (12, 4, 0.1, 0.5, 2, 20736, 16, 16, 7.9207, 0.0151),
    (12, 4, 1e-3, 0.5, 2, 20736, 16, 16, 6.5521, 0.0571),
    (16, 4, 0.1, 0.5, 2, 65536, 16, 16, 9.0634, 0.0048),
    (16, 4, 1e-3, 0.5, 2, 65536, 16, 16, 7.6711, 0.0187),
    (20, 4, 0.1, 0.5, 2, 160000, 256, 16, 9.9764, 0.0309),
    (20, 4, 1e-3, 0.5, 2, 160000, 256, 16, 8.6433, 0.1129),
    (20, 4, 1e-4, 1, 3, 160000, 256, 16, 9.2858, 0.0950),
    (20, 4, 1e-4, 0.5, 2, 160000, 256, 16, 8.6176, 0.1158),
    pytest.param(8, 6, 1e-3, 0.5, 2, 262144, 64, 64, 7.7990, 0.0656, **LARGE),
    pytest.param(32, 4, 0.1, 0.5, 2, 1048576, 1296, 16, 11.8510, 0.0240, **LARGE),
    pytest.param(32, 4, 1e-3, 0.5, 2, 1048576, 1296, 16, 10.5026, 0.0890, **LARGE),
]


@pytest.mark.parametrize(("side", "ndim", "r0", "r1", "r2", "points", "states", "regions", "log_z", "mass"), CONSTANTS)
def test_published_constants(side, ndim, r0, r1, r2, points, states, regions, log_z, mass) -> None:
    env = Hypergrid(side, ndim, Classic(r0, r1, r2))
    final = env.enumerate()[side**ndim :]
    log_reward = env.log_reward(final)
    inside = env.modes(final)["mode_states"] >= 0
    assert len(final) == points
    assert log_reward.dtype == torch.float64
    assert env.mode_counts == {"regions": regions, "mode_states": states}
    assert int(inside.sum()) == states
    assert inside.equal(log_reward.exp() > r0 + r1 + r2 - 1e-9)
    assert round(float(log_reward.logsumexp(0)), 4) == log_z
    assert round(float((log_reward[inside].logsumexp(0) - log_reward.logsumexp(0)).exp()), 4) == mass


@pytest.mark.parametrize(
    ("side", "coordinates"),
    [
        (8, [1, 6]),
        (11, []),
        (12, [2, 9]),
        (16, [2, 13]),
        (20, [2, 3, 16, 17]),
        (21, [3, 17]),
        (31, [4, 5, 25, 26]),
        (32, [4, 5, 6, 25, 26, 27]),
        (64, [*range(7, 13), *range(51, 57)]),
    ],
)
@pytest.mark.parametrize("reward", [Classic(), Deceptive()])
def test_modes_are_decided_by_integers(side: int, coordinates: list[int], reward: GridReward) -> None:
    line = torch.arange(side).unsqueeze(1)
    assert reward.is_mode(line, side).nonzero().flatten().tolist() == coordinates


def distance(x: int, side: int) -> Fraction:
    """|x/(H−1) − ½|, exactly."""
    return abs(Fraction(x, side - 1) - Fraction(1, 2))


def in_ring(point: tuple[int, ...], side: int) -> bool:
    return all(Fraction(3, 10) < distance(x, side) < Fraction(4, 10) for x in point)


def classic(point: tuple[int, ...], side: int) -> float:
    return 0.1 + 0.5 * all(distance(x, side) > Fraction(1, 4) for x in point) + 2.0 * in_ring(point, side)


def deceptive(point: tuple[int, ...], side: int) -> float:
    lure = not all(distance(x, side) > Fraction(1, 10) for x in point)
    return 1e-5 + 0.1 * lure + 2.0 * in_ring(point, side)


def sparse(point: tuple[int, ...], side: int) -> float:
    return 1.0 if set(point) <= {1, side - 2} and set(point) != {1} else 1e-4


def cosine(point: tuple[int, ...], side: int) -> float:
    u = [float(distance(x, side)) for x in point]
    factors = [(math.cos(50 * v) + 1) * math.exp(-0.5 * (5 * v) ** 2) / math.sqrt(2 * math.pi) for v in u]
    return 0.1 + 0.5 * math.prod(factors)


def user(point: tuple[int, ...], side: int) -> float:
    return 1.0 + sum(point)


REWARDS = [
    (Classic(), classic),
    (Deceptive(), deceptive),
    (Sparse(), sparse),
    (Cosine(), cosine),
    (UserReward(lambda coords: 1 + coords.sum(1)), user),
]


@pytest.mark.parametrize(("reward", "exact"), REWARDS, ids=[exact.__name__ for _, exact in REWARDS])
@pytest.mark.parametrize(("side", "ndim"), SIZES)
def test_rewards_are_exact(reward: GridReward, exact: Callable[..., float], side: int, ndim: int) -> None:
    points = list(product(range(side), repeat=ndim))
    wanted = torch.tensor([exact(point, side) for point in points], dtype=torch.float64)
    given = reward(torch.tensor(points), side)
    assert given.dtype == torch.float64
    assert torch.allclose(given, wanted, rtol=1e-12, atol=0)
    env = Hypergrid(side, ndim, reward)
    assert torch.allclose(env.log_reward(env.enumerate()[len(points) :]), wanted.log(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("side", "ndim"), SIZES)
def test_modes_are_exact(side: int, ndim: int) -> None:
    points = list(product(range(side), repeat=ndim))
    coords = torch.tensor(points)
    assert Classic().is_mode(coords, side).tolist() == [in_ring(point, side) for point in points]
    assert Sparse().is_mode(coords, side).tolist() == [sparse(point, side) == 1 for point in points]
    best = max(cosine(point, side) for point in points) - 0.1
    near = [cosine(point, side) - 0.1 >= 0.8 * best for point in points]
    assert Cosine().is_mode(coords, side).tolist() == near
    assert any(near)


def test_modes_of_a_user_reward_lie_above_its_threshold() -> None:
    coords = torch.tensor([[0, 0], [1, 2], [2, 2]])
    total: Callable[[Tensor], Tensor] = lambda coords: coords.sum(1)  # noqa: E731
    assert UserReward(total, mode_threshold=3).is_mode(coords, 3).tolist() == [False, True, True]
    assert UserReward(total).is_mode(coords, 3).tolist() == [False, False, False]
    assert Hypergrid(3, 2, UserReward(total, 3.5)).mode_counts == {"regions": 1, "mode_states": 1}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (-1.0, r"reward of state 2 1 stop is -1\.0; rewards must not be negative"),
        (torch.nan, r"log-reward of state 2 1 stop is nan \(1 of 16 states are bad\)"),
        (torch.inf, r"log-reward of state 2 1 stop is inf"),
    ],
)
def test_a_bad_reward_names_the_state(bad: float, message: str) -> None:
    def reward(coords: Tensor) -> Tensor:
        return torch.ones(len(coords)).where((coords != torch.tensor([2, 1])).any(1), bad)

    env = Hypergrid(4, 2, UserReward(reward))
    with pytest.raises(RewardError, match=message):
        checked_log_reward(env, env.enumerate()[16:])


def test_a_reward_of_zero_is_legal() -> None:
    env = Hypergrid(4, 2, Classic(r0=0.0))
    log_reward = checked_log_reward(env, env.enumerate()[16:])
    assert int((log_reward == -torch.inf).sum()) == 12  # all but the corners, for H = 4 lies all of them outside ¼


def test_a_reward_of_the_wrong_shape_is_refused() -> None:
    env = Hypergrid(4, 2, UserReward(lambda coords: coords.double()))
    with pytest.raises(RewardError, match=r"log_reward returned shape \(3, 2\) for 3 states; expected \(3,\)"):
        checked_log_reward(env, env.enumerate()[:3])


@pytest.mark.parametrize(
    "make",
    [
        lambda: Classic(r0=-0.1),
        lambda: Classic(r2=math.inf),
        lambda: Cosine(r1=math.nan),
        lambda: Sparse(floor=-1),
        lambda: Deceptive(r0=-1e-5),
    ],
)
def test_rewards_of_named_kinds_must_be_finite_and_not_negative(make: Callable[[], GridReward]) -> None:
    with pytest.raises(ValueError, match="rewards must be finite and not negative"):
        make()
