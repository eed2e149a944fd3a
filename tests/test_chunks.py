"""Scoring some steps at a time: the same numbers and gradients, in memory that does not grow with their number."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from envs.diffusion.environment import Diffusion
from envs.diffusion.policies import Drift, Reversed
from envs.diffusion.processes import Noising
from envs.diffusion.targets import ConditionalGaussian
from envs.hypergrid import Hypergrid
from gfn.chunks import in_chunks
from gfn.flows import MLPFlow
from gfn.objectives import Alpha, DevGrad, LearnedLogZ, Learner, Objective
from gfn.objectives.balance import detailed_balance
from gfn.policies import MLPBackward, MLPPolicy, Prior
from gfn.sampling import rollout
from gfn.trajectories import Trajectories


def diffusion(steps: int = 6, width: int = 8) -> tuple[Learner[Any], Trajectories[Any]]:
    env = Diffusion(ConditionalGaussian(2), steps)
    policy = Drift(env, Noising(2.0), width=width, learned_variance=True, langevin=True)
    torch.nn.init.normal_(policy.network[-1].weight, std=0.1)
    objective = Objective(policy, Reversed(env, Noising(2.0)), Alpha(0.5), DevGrad())
    return objective, rollout(env, policy, env.reset(16), generator=torch.Generator().manual_seed(0))


def grid() -> tuple[Learner[Any], Trajectories[Any]]:
    env = Hypergrid(5)
    policy = MLPPolicy(env, 8)
    parts = MLPBackward(env, policy), Alpha(0.0), LearnedLogZ(init=1.0), detailed_balance, MLPFlow(env, policy)
    return Objective(policy, *parts), rollout(env, policy, env.reset(16), generator=torch.Generator().manual_seed(0))


def gradients(objective: Learner[Any], t: Trajectories[Any]) -> tuple[float, list[torch.Tensor | None]]:
    objective.zero_grad()
    loss, _ = objective(t)
    loss.backward()
    return loss.item(), [None if p.grad is None else p.grad.clone() for p in objective.parameters()]


@pytest.mark.parametrize("made", [diffusion, grid])
@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.usefixtures("float64")
def test_gradient_is_that_of_all_steps_together(made, size: int) -> None:
    objective, t = made()
    loss, wanted = gradients(objective, t)
    objective.checkpoint_transitions(size)
    again, came = gradients(objective, t)
    assert again == pytest.approx(loss, abs=1e-12)
    for one, other in zip(came, wanted, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.allclose(one, other, rtol=0, atol=1e-10)


def test_a_prior_is_asked_in_chunks_too() -> None:
    objective, t = diffusion()
    prior = Prior(objective.policy)
    relative = Objective(objective.policy, prior, Alpha(1.0), DevGrad())
    relative.checkpoint_transitions(5)
    asked: list[int] = []
    plain = prior.policy.distribution

    def distribution(states):
        asked.append(len(states))
        return plain(states)

    prior.policy.distribution = distribution
    relative.scores(t)
    assert max(asked) == 5
    assert sum(asked) == 96


def kept(steps: int, size: int | None) -> int:
    """Bytes that the graph of a loss keeps for its gradient."""
    objective, t = diffusion(steps, width=64)
    if size is not None:
        objective.checkpoint_transitions(size)
    held: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss, _ = objective(t)
    assert loss.requires_grad
    return sum(held.values())


def test_memory_does_not_grow_with_the_number_of_steps() -> None:
    """What is left that grows are the scores themselves, a few numbers for each step."""
    few, many = kept(8, None), kept(64, None)
    assert many > 6 * few
    few, many = kept(8, 64), kept(64, 64)
    per_step = (many - few) / (16 * 56)
    assert per_step < 100  # bytes, where the network's are
    assert (kept(64, None) - kept(8, None)) / (16 * 56) > 1000


def test_chunks_need_a_size() -> None:
    objective, _ = diffusion()
    with pytest.raises(ValueError, match="checkpoint_transitions must be at least 1 step, got 0"):
        objective.checkpoint_transitions(0)


def test_few_rows_are_asked_about_together() -> None:
    asked: list[int] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        asked.append(len(x))
        return 2 * x

    assert in_chunks(double, 3, torch.arange(7.0)).tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert asked == [3, 3, 1]
    assert in_chunks(double, None, torch.arange(7.0)).tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert asked == [3, 3, 1, 7]
