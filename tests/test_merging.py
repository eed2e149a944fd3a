"""Networks that look at equal states once: the same values and gradients as one look at each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.bits import Insert
from envs.hypergrid import Hypergrid
from gfn import merging
from gfn.conditioning import RewardExponents
from gfn.distributions import MaskedCategorical, NoActionError
from gfn.merging import distinct, hashes, once, picked
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPBackward, MLPPolicy
from gfn.sampling import rollout


def environments() -> list[Any]:
    grid = Hypergrid(side=5, ndim=2)
    return [grid, RewardExponents(grid, [0.5, 1.0]), Insert(bits=6, word=2, modes=["000111"])]


@pytest.mark.parametrize("env", environments(), ids=lambda env: type(env).__name__)
@pytest.mark.parametrize("tied", [True, False])
def test_losses_and_gradients_are_those_of_one_evaluation_for_each_visit(
    env: Any, tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    policy = MLPPolicy(env, width=16).double()
    backward = MLPBackward(env, policy, tied=tied).double()
    objective = Objective(policy, backward, Alpha(0.5), DevGrad())
    generator = torch.Generator().manual_seed(1)
    t = rollout(env, policy, env.reset(200, generator), generator=generator)
    looked: list[int] = []
    policy.trunk.register_forward_hook(lambda module, args, output: looked.append(len(output)))
    loss, _ = objective(t)
    merged = torch.autograd.grad(loss, list(objective.parameters()))
    monkeypatch.setattr(merging, "SMALLEST", 10**9)
    plain_loss, _ = objective(t)
    plain = torch.autograd.grad(plain_loss, list(objective.parameters()))
    assert looked[0] < looked[-1] // 2
    assert float((loss - plain_loss).detach()) == pytest.approx(0, abs=1e-12)
    for ours, theirs in zip(merged, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_rollout_is_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    env = Hypergrid(side=4, ndim=3)
    torch.manual_seed(0)
    policy = MLPPolicy(env, width=16).double()
    first = rollout(env, policy, env.reset(300), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(merging, "SMALLEST", 10**9)
    second = rollout(env, policy, env.reset(300), generator=torch.Generator().manual_seed(1))
    assert first.actions.equal(second.actions)
    torch.testing.assert_close(first.behaviour_log_prob, second.behaviour_log_prob, rtol=1e-12, atol=1e-12)


def test_each_distinct_state_is_seen_once() -> None:
    seen: list[Tensor] = []

    def network(states: Tensor) -> Tensor:
        seen.append(states)
        return states.double() + 0.5

    states = torch.randint(20, (500,), generator=torch.Generator().manual_seed(0))
    assert once(network, states).equal(states.double() + 0.5)
    assert seen[0].sort().values.equal(states.unique())


def test_few_repeats_are_left_alone() -> None:
    assert distinct(torch.arange(500)) is None
    assert distinct(torch.zeros(merging.SMALLEST - 1, dtype=torch.long)) is None


def test_hashes_tell_all_states_of_a_grid_apart() -> None:
    states = Hypergrid(side=20, ndim=4).enumerate()
    found = hashes(states)
    assert found is not None
    assert len(found.unique()) == len(states) == 320_000


@pytest.mark.parametrize("states", [torch.rand(200, 2), torch.zeros(200, 257, dtype=torch.long)])
def test_real_numbers_and_wide_states_have_no_hash(states: Tensor) -> None:
    assert hashes(states) is None


def test_rows_that_nobody_asks_for_may_allow_nothing() -> None:
    logits, mask = torch.randn(2, 3, dtype=torch.float64), torch.tensor([[True, True, False], [False] * 3])
    logits.requires_grad_()
    rows, actions = torch.tensor([0, 0]), torch.tensor([1, 0])
    found = picked(logits, mask, rows, actions)
    assert found.equal(MaskedCategorical(logits[rows], mask[rows]).log_prob(actions))
    (gradient,) = torch.autograd.grad(found[0], logits)
    assert bool(gradient.isfinite().all())
    with pytest.raises(NoActionError, match=r"1 of 1 states allow no action \(rows \[0\]\)"):
        picked(logits, mask, torch.tensor([1]), torch.tensor([0]))
