"""What a frozen policy has said is remembered: the values are its own, and it is asked about each trajectory once."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.tokens.environment import Sequences, Tokens
from envs.tokens.tasks import Sums
from gfn.memory import Memory
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.objectives.parts import backward_in_parts
from gfn.policies import MLPPolicy, Policy, Prior
from gfn.sampling import rollout
from gfn.trajectories import Trajectories

ENV = Tokens(Sums(3), max_tokens=4, temperature=0.5)


class Asked:
    """Log-probabilities of a policy, and the trajectories it was asked about, in order."""

    def __init__(self, policy: Policy[Any]):
        self.log_prob, self.about = policy.log_prob, list[str]()

    def __call__(self, t: Trajectories[Any]) -> Tensor:
        self.about += ENV.describe(t.final)
        return self.log_prob(t)


def policy(seed: int = 0) -> MLPPolicy[Sequences]:
    torch.manual_seed(seed)
    return MLPPolicy(ENV, 8).double()


def sampled(n: int, seed: int = 0) -> Trajectories[Sequences]:
    generator = torch.Generator().manual_seed(seed)
    start = ENV.reset(n, generator)
    return rollout(ENV, policy(9), start, group=start.prompt, generator=generator)


def distinct(n: int) -> Trajectories[Sequences]:
    """Trajectories of which no two are alike."""
    t = sampled(20 * n)
    lines = ENV.describe(t.final)
    return t[torch.tensor([lines.index(line) for line in sorted(set(lines), key=lines.index)][:n])]


def test_values_are_those_of_the_policy_and_each_is_asked_for_once() -> None:
    """Twice in one batch, in another batch, in another order, or in parts."""
    memory, asked = Memory(1000), Asked(policy())
    first, second = sampled(40, seed=1), sampled(40, seed=2)
    lines = {*ENV.describe(first.final), *ENV.describe(second.final)}
    assert len(set(ENV.describe(first.final))) < 40
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for t in (first, second, first[order], second[:7], second[7:], first[torch.tensor([3, 3, 3])]):
        found = memory.recalled(t, asked)
        assert not found.requires_grad
        torch.testing.assert_close(found, asked.log_prob(t).detach(), atol=1e-12, rtol=0)
    assert sorted(asked.about) == sorted(lines)


def test_the_same_steps_after_another_prompt_are_another_trajectory() -> None:
    memory, asked = Memory(10), Asked(policy())
    t = distinct(1)
    other = Trajectories(**{**vars_of(t), "states": Sequences((t.states.prompt + 1) % 3, t.states.tokens)})
    values = [memory.recalled(some, asked) for some in (t, other)]
    assert len(asked.about) == 2
    assert not torch.allclose(*values)


def vars_of(t: Trajectories[Any]) -> dict[str, Any]:
    return {name: getattr(t, name) for name in t.__dataclass_fields__}


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    memory, asked = Memory(3), Asked(policy())
    t = distinct(6)
    names = ENV.describe(t.final)
    for i in (0, 1, 2, 0, 3):  # 1 is forgotten, 0 has been asked for since
        memory.recalled(t[i : i + 1], asked)
    assert asked.about == [names[i] for i in (0, 1, 2, 3)]
    asked.about.clear()
    memory.recalled(t[torch.tensor([0, 2, 3])], asked)
    assert asked.about == []
    memory.recalled(t[1:2], asked)  # and 0 is forgotten for it
    memory.recalled(t[torch.tensor([2, 3])], asked)
    memory.recalled(t[0:1], asked)
    assert asked.about == [names[1], names[0]]


def test_a_batch_may_be_larger_than_the_memory() -> None:
    memory, asked = Memory(2), Asked(policy())
    t = distinct(6)
    for _ in range(2):
        torch.testing.assert_close(memory.recalled(t, asked), asked.log_prob(t).detach(), atol=1e-12, rtol=0)
    assert len(memory.get_extra_state()["lengths"]) == 2
    known = Memory(4)
    known.recalled(t[:3], asked)  # of a batch that throws out what it recalls, nothing is lost
    torch.testing.assert_close(known.recalled(t, asked), asked.log_prob(t).detach(), atol=1e-12, rtol=0)


def test_without_capacity_nothing_is_kept() -> None:
    memory, asked = Memory(0), Asked(policy())
    t = distinct(3)
    for _ in range(2):
        memory.recalled(t, asked)
    assert len(asked.about) == 6
    assert memory.get_extra_state()["keys"].tolist() == []
    with pytest.raises(ValueError, match="capacity must not be negative, got -1"):
        Memory(-1)


def test_it_is_part_of_a_checkpoint() -> None:
    """Values to the bit, and the order in which they will be forgotten."""
    t = distinct(5)
    prior = Prior(policy(), remember=3)
    values = [prior.log_prob_backward(t[i : i + 1]) for i in (0, 1, 2, 0)]
    file = io.BytesIO()
    torch.save(prior.state_dict(), file)
    file.seek(0)
    resumed = Prior(policy(1), remember=3)
    resumed.log_prob_backward(t[4:5])  # is thrown away
    resumed.load_state_dict(torch.load(file, weights_only=True))
    asked = Asked(resumed.policy)
    for i, value in ((0, values[3]), (1, values[1]), (2, values[2])):
        assert resumed.memory.recalled(t[i : i + 1], asked).equal(value)
    assert asked.about == []
    resumed.load_state_dict(prior.state_dict())
    resumed.memory.recalled(t[3:4], asked)  # in the place of 1
    resumed.memory.recalled(t[torch.tensor([0, 2])], asked)
    resumed.memory.recalled(t[1:2], asked)
    assert asked.about == [ENV.describe(t.final)[i] for i in (3, 1)]
    empty = Prior(policy(), remember=3)
    empty.load_state_dict(Prior(policy(), remember=3).state_dict())
    assert empty.memory.get_extra_state()["lengths"].tolist() == []


@pytest.mark.parametrize("size", [3, 5, 100])
def test_gradients_in_parts_are_the_same_with_and_without_it(size: int) -> None:
    """Parts are scored twice, and the prior is asked once about each trajectory; so it is with groups permuted."""
    learned, t = policy(1), sampled(36)
    order = torch.randperm(len(t), generator=torch.Generator().manual_seed(1))
    gradients = list[list[Tensor]]()
    for remember, batch in ((0, t), (100, t), (100, t[order]), (4, t)):
        prior = Prior(policy(), remember=remember)
        prior.policy.log_prob = asked = Asked(prior.policy)
        objective = Objective(learned, prior, Alpha(0.5), DevGrad())
        objective.zero_grad()
        backward_in_parts(objective, batch, 0, size)
        gradients.append([p.grad.clone() for p in learned.parameters()])
        if remember == 100:
            assert sorted(asked.about) == sorted(set(ENV.describe(t.final)))
        if remember == 0:
            assert len(asked.about) == 2 * len(t)
    assert sum(float(g.abs().sum()) for g in gradients[0]) > 1e-3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-12, rtol=1e-10)
