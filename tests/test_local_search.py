"""Back-and-forth: detailed balance by enumeration and by frequencies, rounds that build on one another."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid
from gfn.exact import all_trajectories, state_graph
from gfn.exploration import EpsilonUniform
from gfn.policies import Policy, Tabular, UniformBackward
from gfn.samplers import BackwardFromData, LocalSearch, OnPolicy, every_terminal
from gfn.trajectories import Trajectories
from tests.stored import biased, grid, listed, uniform

WAYS: dict[str, dict[str, Any]] = {
    "half": {},
    "two": {"steps": 2},
    "all": {"fraction": 1.0},
    "exactly two": {"steps": 2, "vary": False},
    "exactly half": {"vary": False},
    "explored": {"exploration": EpsilonUniform(0.4)},
}


def biased_backward(env: Hypergrid) -> Tabular[GridStates]:
    logits = torch.randn(2 * env.side**env.ndim, env.n_actions, generator=torch.Generator().manual_seed(7))
    return Tabular(env, env.backward_mask, logits)


def search(env: Hypergrid, **settings: Any) -> LocalSearch[GridStates]:
    backward: Policy[GridStates] = settings.pop("backward", None) or biased_backward(env)
    sampler = settings.pop("sampler", None) or uniform(env, batch_size=16)
    policy = settings.pop("policy", None) or biased(env)
    return LocalSearch(env, policy, backward, sampler, **({"accept": "metropolis"} | settings))


def edge_probabilities(distribution: Any, actions: Tensor) -> list[float]:
    return distribution.log_prob(actions).exp().tolist()


class Table:
    """All trajectories of a tiny grid as lists, with everything the kernel is made of, by enumeration."""

    def __init__(self, env: Hypergrid, sampler: LocalSearch[GridStates]):
        self.t = all_trajectories(state_graph(env))
        shape = self.t.lengths.tolist()
        forward = sampler.exploration(sampler.policy.distribution(self.t.sources), 0)
        self.actions = self._split(self.t.actions.tolist(), shape)
        self.pf = self._split(edge_probabilities(forward, self.t.actions), shape)
        self.pb = self._split(edge_probabilities(sampler.backward.distribution(self.t.targets), self.t.actions), shape)
        self.target = [
            math.exp(float(r)) * math.prod(pb) for r, pb in zip(self.t.log_reward.tolist(), self.pb, strict=True)
        ]

    @staticmethod
    def _split(values: list[Any], lengths: list[int]) -> list[list[Any]]:
        ends = list(itertools.accumulate(lengths))
        return [values[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def undone_probability(sampler: LocalSearch[GridStates], length: int, undone: int) -> float:
    most = min(sampler.steps, length) if sampler.steps is not None else max(math.ceil(length * sampler.fraction), 1)
    if sampler.vary:
        return 1 / most if 1 <= undone <= most else 0.0
    return 1.0 if undone == most else 0.0


def kernel(table: Table, sampler: LocalSearch[GridStates]) -> dict[tuple[int, int], float]:
    """Σ over cuts of q(τ'|τ) A(τ, τ') for all τ ≠ τ', with A from the sampler's own ratio."""
    pairs: list[tuple[int, int, int]] = []
    chances: list[float] = []
    for i, j in itertools.permutations(range(len(table.actions)), 2):
        old, new = table.actions[i], table.actions[j]
        for kept in range(min(len(old), len(new))):
            chance = undone_probability(sampler, len(old), len(old) - kept) * math.prod(table.pf[j][kept:])
            if old[:kept] == new[:kept] and chance > 0:
                pairs.append((i, j, kept))
                chances.append(chance)
    i, j, kept = torch.tensor(pairs).unbind(1)
    ratio = sampler.log_ratio(table.t[i], table.t[j], kept, 0)
    moves: dict[tuple[int, int], float] = {}
    for (a, b, _), chance, x in zip(pairs, chances, ratio.tolist(), strict=True):
        moves[a, b] = moves.get((a, b), 0.0) + chance * min(1.0, math.exp(min(x, 0.0)))
    return moves


@pytest.mark.parametrize("way", WAYS)
def test_proposals_keep_detailed_balance_by_enumeration(way: str, float64: object) -> None:
    env = grid(3)
    sampler = search(env, **WAYS[way])
    table = Table(env, sampler)
    moves = kernel(table, sampler)
    assert len(moves) > 20
    worst = max(abs(table.target[i] * p - table.target[j] * moves.get((j, i), 0.0)) for (i, j), p in moves.items())
    largest = max(table.target[i] * p for (i, j), p in moves.items())
    assert worst < 1e-12 < 1e-4 < largest
    assert len({len(table.actions[i]) - len(table.actions[j]) for (i, j), p in moves.items() if p > 0}) > (
        1 if sampler.vary else 0
    )


def test_accepting_everything_does_not_keep_it(float64: object, monkeypatch: pytest.MonkeyPatch) -> None:
    env = grid(3)
    sampler = search(env)
    monkeypatch.setattr(sampler, "log_ratio", lambda old, new, kept, step: torch.zeros(len(kept)))
    table = Table(env, sampler)
    moves = kernel(table, sampler)
    worst = max(abs(table.target[i] * p - table.target[j] * moves.get((j, i), 0.0)) for (i, j), p in moves.items())
    assert worst > 1e-2


def distance(env: Hypergrid, t: Trajectories[GridStates]) -> float:
    """Total variation between the ends of trajectories and R/Z."""
    target = env.log_reward(every_terminal(env)).softmax(0)
    found = torch.bincount(env.index(t.final) - len(target), minlength=len(target)) / len(t)
    return float((found - target).abs().sum()) / 2


@pytest.mark.parametrize("way", WAYS)
def test_exact_samples_stay_exact(way: str) -> None:
    env = grid(3)
    backward = biased_backward(env)
    exact = BackwardFromData(env, backward, every_terminal, 20000, inverse_temperature=1.0)
    sampler = search(env, backward=backward, sampler=exact, rounds=3, **WAYS[way])
    t = sampler(0)
    assert 0.02 < sampler.settings(0)["acceptance"] < 0.99
    assert distance(env, t) < 0.015
    # So do paths, given their ends: the first step is as often each way as P_B makes it.
    untouched = exact(0)
    first = [float((x.actions[x.column == 0] == 0).double().mean()) for x in (t, untouched)]
    assert first[0] == pytest.approx(first[1], abs=0.02)


def test_other_samples_become_exact() -> None:
    env = grid(3)
    start = OnPolicy(env, biased(env, scale=0.5), 8000)
    assert distance(env, start(0)) > 0.2
    settings: dict[str, Any] = {"sampler": start, "rounds": 25, "fraction": 1.0}
    assert distance(env, search(env, **settings, policy=biased(env, scale=0.5))(0)) < 0.03
    assert distance(env, search(env, **settings, policy=biased(env, scale=0.5), accept="greedy")(0)) > 0.2


def test_a_greedy_search_never_loses_and_each_round_begins_where_the_last_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = grid(8)
    sampler = search(env, accept="greedy", rounds=5, batch_size=64)
    rounds: list[tuple[Trajectories[GridStates], Trajectories[GridStates]]] = []
    proposals: list[Trajectories[GridStates]] = []
    one_round, accepts = sampler.round, sampler.accepts

    def spy(t: Trajectories[GridStates], step: int) -> Trajectories[GridStates]:
        rounds.append((t, one_round(t, step)))
        return rounds[-1][1]

    def watch(old: Any, new: Any, kept: Tensor, step: int) -> Tensor:
        proposals.append(new)
        return accepts(old, new, kept, step)

    monkeypatch.setattr(sampler, "round", spy)
    monkeypatch.setattr(sampler, "accepts", watch)
    t = sampler(0)
    assert len(rounds) == 5
    assert all(rounds[i][1] is rounds[i + 1][0] for i in range(4))
    assert rounds[-1][1] is t
    best = rounds[0][0].log_reward
    taken = 0
    for (_, after), proposal in zip(rounds, proposals, strict=True):
        better = proposal.log_reward > best
        taken += int(better.sum())
        best = best.maximum(proposal.log_reward)
        assert after.log_reward.equal(best), "the mask belongs to this round's proposals"
        wanted = [str(x) for x in proposal[better].final.coords.tolist()]
        assert [str(x) for x in after[better].final.coords.tolist()] == wanted
    assert taken > 10
    assert sampler.settings(0)["acceptance"] == taken / (5 * 64)
    assert (sampler.proposed, sampler.accepted) == (5 * 64, taken)


@pytest.mark.parametrize("accept", ["greedy", "metropolis"])
def test_results_are_whole_trajectories_of_the_same_groups(accept: Any) -> None:
    env = grid(5)
    inner = uniform(env, batch_size=24, group_size=8)
    t = search(env, accept=accept, sampler=inner)(3)
    assert t.group.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    assert bool(env.is_initial(t.initial).all())
    assert bool(env.is_terminal(t.final).all())
    moved = env.step(t.sources, t.actions)
    assert moved.coords.equal(t.targets.coords)
    assert moved.stopped.equal(t.targets.stopped)
    assert t.log_reward.equal(env.log_reward(t.final))
    assert t.policy_version.tolist() == [3] * 24


def test_only_the_last_steps_are_redone(monkeypatch: pytest.MonkeyPatch) -> None:
    env = grid(6)
    sampler = search(env, steps=2, vary=False, rounds=1)
    seen: list[tuple[Trajectories[GridStates], Trajectories[GridStates], Tensor]] = []
    monkeypatch.setattr(
        sampler,
        "accepts",
        lambda old, new, kept, step: seen.append((old, new, kept)) or torch.ones(16, dtype=torch.bool),
    )
    t = sampler(0)
    ((old, new, kept),) = seen
    assert listed(t) == listed(new)
    assert kept.equal((old.lengths - 2).clamp(min=0))
    for b in range(16):
        k = int(kept[b])
        assert new[b : b + 1].actions[:k].tolist() == old[b : b + 1].actions[:k].tolist()
    # What each step was drawn by: P_B for what was kept, P_F for what was redone.
    redone = new.column >= kept[new.row]
    wanted = sampler.policy.log_prob(new).where(redone, sampler.backward.log_prob_backward(new))
    assert torch.allclose(new.behaviour_log_prob, wanted, atol=1e-6)


def test_no_round_leaves_the_inner_sampler_as_it_is() -> None:
    env = grid()
    sampler = search(env, rounds=0)
    assert listed(sampler(0)) == listed(uniform(env, batch_size=16)(0))
    assert sampler.settings(0) == {"acceptance": 0.0}


def test_an_end_without_reward_is_left_at_once_and_never_entered() -> None:
    env = grid()
    sampler = search(env)
    t = uniform(env, batch_size=4)(0)
    kept = t.lengths - 1
    empty = replace(t, log_reward=torch.full((4,), -math.inf, dtype=torch.float64))
    assert sampler.log_ratio(empty, t, kept, 0).tolist() == [math.inf] * 4
    assert sampler.log_ratio(t, empty, kept, 0).tolist() == [-math.inf] * 4
    assert sampler.log_ratio(empty, empty, kept, 0).tolist() == [math.inf] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": -1}, "rounds >= 0"),
        ({"fraction": 0.0}, r"fraction in \(0, 1\]"),
        ({"fraction": 1.5}, r"fraction in \(0, 1\]"),
        ({"steps": 0}, "steps >= 1"),
        ({"accept": "always"}, "accept must be greedy or metropolis, got 'always'"),
        ({"batch_size": 6, "group": 4}, "multiple of group_size=4, got 6"),
    ],
)
def test_bad_input_is_refused(settings: dict[str, Any], message: str) -> None:
    env = grid()
    inner = uniform(env, batch_size=8, group_size=settings.pop("group", None))
    with pytest.raises(ValueError, match=message):
        LocalSearch(env, biased(env), UniformBackward(env), inner, **settings)
