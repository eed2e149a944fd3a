"""Averaged policies and replayed trajectories, against plain expectations."""

from __future__ import annotations

import copy
from typing import Any

import torch

from envs.hypergrid import GridStates
from gfn.buffers import Buffer
from gfn.exploration import EpsilonUniform
from gfn.objectives import Alpha, LearnedLogZ, Objective
from gfn.policies import MLPPolicy, UniformBackward
from gfn.samplers import OnPolicy, Replay
from gfn.schedules import Piecewise
from gfn.training import Trainer
from tests.stored import Conditioned, grid, in_batches, listed, moved, network, replay, uniform
from tests.trainers import same

# On policy


def test_the_average_follows_the_policy_as_its_formula_says() -> None:
    env, kept = grid(), 0.75
    policy = network(env)
    sampler = OnPolicy(env, policy, 4, averaging=kept)
    mean = [p.detach().clone() for p in policy.parameters()]
    sampler(0)
    for step in (1, 2, 3):
        moved(policy)
        sampler(step)
        sampler(step)  # no update since: nothing moves
        mean = [kept * m + (1 - kept) * p.detach() for m, p in zip(mean, policy.parameters(), strict=True)]
        for wanted, given in zip(mean, sampler.average.parameters(), strict=True):
            assert torch.allclose(wanted, given, atol=1e-6)
    assert not any(p.requires_grad for p in sampler.average.parameters())
    assert all(p.requires_grad for p in policy.parameters())


def test_it_is_the_average_that_is_sampled_from() -> None:
    env = grid()
    policy = network(env)
    first = copy.deepcopy(policy)
    sampler = OnPolicy(env, policy, 64, averaging=0.999999)
    moved(policy)
    t = sampler(1)
    assert torch.allclose(t.behaviour_log_prob, first.log_prob(t), atol=1e-3)
    assert not torch.allclose(t.behaviour_log_prob, policy.log_prob(t), atol=1e-1)
    plain = OnPolicy(env, policy, 64)(1)
    assert torch.allclose(plain.behaviour_log_prob, policy.log_prob(plain), atol=1e-6)


def test_a_saved_average_does_not_move_twice_for_one_update() -> None:
    env = grid()
    policy = network(env)
    sampler, other = (OnPolicy(env, policy, 4, averaging=0.5) for _ in range(2))
    moved(policy)
    sampler(1)
    other.load_state_dict(copy.deepcopy(sampler.state_dict()))
    other(1)
    assert same(other.average.state_dict(), sampler.average.state_dict())
    other(2)
    assert not same(other.average.state_dict(), sampler.average.state_dict())


def test_another_size_may_be_asked_for() -> None:
    assert uniform(grid(), batch_size=6)(0, 10).group.tolist() == [0] * 10
    assert uniform(grid(), group_size=3)(0, 6).group.tolist() == [0, 0, 0, 1, 1, 1]
    assert uniform(grid(), group_size=3).batch_size == 3


# Replay


def test_a_batch_is_fresh_trajectories_and_copies_of_stored_ones() -> None:
    env = grid()
    twin = uniform(env, batch_size=8)
    sampler = replay(env, ratio=1.5)
    seen: list[Any] = []
    for step in range(5):
        fresh = listed(twin(step))
        seen += fresh
        t = sampler(step)
        assert len(t) == 20 == sampler.batch_size
        assert listed(t[:8]) == fresh
        assert set(listed(t[8:])) <= set(seen)
        assert t.group.tolist() == [0] * 20, "one group, which DevGrad sees together"
        assert sampler.settings(step) == {"replay_ratio": 1.5, "stored": 8.0 * (step + 1)}
    assert len(set(t.policy_version[8:].tolist())) > 1
    assert t.policy_version[:8].tolist() == [4] * 8


def test_ratio_zero_is_the_inner_sampler() -> None:
    env = grid()
    assert [listed(t) for t in in_batches(replay(env, ratio=0.0), 3)] == [
        listed(t) for t in in_batches(uniform(env, batch_size=8), 3)
    ]


def test_the_ratio_may_be_scheduled_and_the_size_given() -> None:
    sampler = replay(grid(), ratio=Piecewise([1, 2], [0.0, 1.0, 3.0]))
    assert [len(t) for t in in_batches(sampler, 3)] == [8, 16, 32]
    fresh = [
        int((t.policy_version == step).sum()) for step, t in enumerate(in_batches(replay(grid(), ratio=3.0), 3, 16))
    ]
    assert fresh[0] == 16
    assert [len(t) for t in in_batches(replay(grid(), ratio=3.0, batch_size=16), 3)] == [16] * 3
    whole = replay(grid(), ratio=3.0, batch_size=16)
    in_batches(whole, 20)
    assert whole.settings(0)["stored"] == 80.0, "4 of 16 are fresh at each of 20 steps"


def test_groups_of_different_origins_stay_apart() -> None:
    env = Conditioned(4, 2)
    sampler = replay(env, group_size=4, ratio=2.0)
    for t in in_batches(sampler, 3):
        assert t.group.tolist() == [g for g in range(6) for _ in range(4)]
        temperature = t.initial.temperature.reshape(6, 4)
        assert (temperature == temperature[:, :1]).all()


def test_one_group_holds_one_initial_state_where_there_are_several() -> None:
    env = Conditioned(4, 2)
    several = 0
    for t in in_batches(replay(env, ratio=1.0), 12):
        by_group = {(g, x) for g, x in zip(t.group.tolist(), t.initial.temperature.tolist(), strict=True)}
        assert len(by_group) == len({g for g, _ in by_group}) == len({x for _, x in by_group})
        several += len(by_group) > 1
    assert several > 0


def test_terminal_states_are_given_new_paths() -> None:
    env = grid(6)
    backward = UniformBackward(env)
    settings: Any = {"ratio": 3.0, "reexpand": True, "backward": backward}
    t = replay(env, **settings)(5)
    ends = {str(x) for x in t[:8].final.coords.tolist()}
    assert {str(x) for x in t[8:].final.coords.tolist()} <= ends
    assert t[8:].behaviour_log_prob.equal(backward.log_prob_backward(t[8:]))
    assert not set(listed(t[8:])) & set(listed(t[:8]))
    assert not same(replay(env, **settings)(5).tensors(), replay(env, **settings, seed=1)(5).tensors())


def test_what_the_behaviour_policy_knew_is_kept_apart_from_what_the_policy_is_now() -> None:
    env = grid()
    policy = network(env)
    versions: dict[int, MLPPolicy[GridStates]] = {}
    inner = OnPolicy(env, policy, 8, exploration=EpsilonUniform(0.5))
    sampler = Replay(env, inner, Buffer(env, 100), 3.0)
    objective = Objective(policy, UniformBackward(env), Alpha(1.0), LearnedLogZ())
    for step in range(4):
        versions[step] = copy.deepcopy(policy)
        t = sampler(step)
        moved(policy)
    assert len(t.policy_version.unique()) > 2
    for version, then in versions.items():
        part = t[t.policy_version == version]
        wanted = EpsilonUniform(0.5)(then.distribution(part.sources), 0).log_prob(part.actions)
        assert torch.allclose(part.behaviour_log_prob, wanted, atol=1e-6)
    scores = objective.scores(t)
    assert torch.allclose(scores.log_pf, t.pad(policy.log_prob(t)))
    assert scores.log_behaviour.equal(t.pad(t.behaviour_log_prob))
    assert not torch.allclose(scores.log_pf, scores.log_behaviour, atol=0.1)


def test_training_with_stored_trajectories_leaves_them_as_they_are() -> None:
    env = grid()
    policy = network(env)
    buffer = Buffer(env, 200)
    sampler = Replay(env, OnPolicy(env, policy, 8), buffer, 2.0)
    Trainer(Objective(policy, UniformBackward(env), Alpha(1.0), LearnedLogZ()), sampler, steps=3).run()
    contents = buffer.contents()
    assert contents is not None
    before = listed(contents)
    Trainer(Objective(policy, UniformBackward(env), Alpha(1.0), LearnedLogZ()), sampler, steps=4, lr=0.1).run()
    contents = buffer.contents()
    assert contents is not None
    assert listed(contents)[: len(before)] == before
