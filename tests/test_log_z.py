"""Tests of log Z that is learned, conditional or enumerated, and of what every partition reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from envs.hypergrid import Hypergrid
from gfn import exact
from gfn.flows import MLPFlow
from gfn.objectives import (
    Alpha,
    Clipped,
    ConditionalLogZ,
    DevGrad,
    ExactLogZ,
    Huber,
    JensenShannon,
    LearnedLogZ,
    Objective,
    Partition,
    ReverseKL,
)
from gfn.objectives.balance import LOG_OF_ZERO
from gfn.objectives.objective import diagnose
from gfn.policies import MLPBackward, MLPPolicy, Uniform, UniformBackward
from gfn.sampling import rollout
from tests.oracles import MEMBERS, f64, scores

EXCESS = f64(-3.0, -0.5, 0.2, 1.7, 4.0)


def objective(partition: Partition, learned_backward: bool = False) -> Objective[Any]:
    """Reverse KL on a 3×3 grid."""
    env = Hypergrid(3)
    policy = MLPPolicy(env, width=8, depth=1)
    backward = MLPBackward(env, policy, tied=False) if learned_backward else UniformBackward(env)
    return Objective(policy, backward, ReverseKL(), partition)


def uniform_batch(n: int = 16) -> Any:
    """Trajectories of the uniform policy on the same grid."""
    env = Hypergrid(3)
    return rollout(env, Uniform(env.forward_mask), env.reset(n))


@pytest.mark.parametrize("name", MEMBERS)
def test_first_batch_sets_the_learned_value_to_the_batch_estimate(name: str) -> None:
    divergence, partition = MEMBERS[name].divergence, LearnedLogZ()
    found = partition(scores(EXCESS), divergence)
    torch.testing.assert_close(found, DevGrad()(scores(EXCESS), divergence), atol=0, rtol=0)
    later = partition(scores(EXCESS + 9), divergence)
    torch.testing.assert_close(later, found, atol=0, rtol=0)
    assert found.requires_grad


def test_given_value_stays() -> None:
    assert LearnedLogZ(init=3.5)(scores(EXCESS), Alpha(0.0)).tolist() == [3.5] * 5


def test_evaluation_does_not_initialise() -> None:
    partition = LearnedLogZ().eval()
    assert partition(scores(EXCESS), ReverseKL()).tolist() == [0.0] * 5
    partition.train()
    assert partition(scores(EXCESS), ReverseKL()).tolist() == pytest.approx([-0.48] * 5)


def test_zero_rewards_do_not_initialise() -> None:
    partition, divergence = LearnedLogZ(), Clipped(ReverseKL(), 10.0)
    zero = torch.full_like(EXCESS, LOG_OF_ZERO)
    assert partition(scores(EXCESS - zero, log_reward=zero), divergence).tolist() == [0.0] * 5
    most = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64) * LOG_OF_ZERO
    found = partition(scores(EXCESS - most, log_reward=most), divergence)
    assert found.tolist() == pytest.approx([-0.5] * 5)


def test_initialised_value_survives_a_checkpoint() -> None:
    first, second = LearnedLogZ(), LearnedLogZ()
    value = first(scores(EXCESS), ReverseKL())
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(scores(EXCESS + 5), ReverseKL()), value)


def test_learned_value_has_its_own_rate_and_gradient() -> None:
    model = objective(LearnedLogZ(init=1.0, lr=0.25))
    policy, log_z = model.parameter_groups()
    assert (policy.name, policy.lr, log_z.name, log_z.lr) == ("policy", None, "log_z", 0.25)
    assert len(log_z.parameters) == 1
    assert log_z.parameters[0] is model.partition.value
    batch = uniform_batch()
    loss, _ = model(batch)
    loss.backward()
    mean_residual = float((model.scores(batch).excess.detach() + 1.0).mean())  # d/d log Z of the mean of ½Δ²
    assert float(model.partition.value.grad) == pytest.approx(mean_residual, rel=1e-9)
    assert abs(mean_residual) > 1e-3


def test_learned_value_without_a_rate_joins_the_policy() -> None:
    (group,) = objective(LearnedLogZ(lr=None)).parameter_groups()
    assert any(p.shape == () for p in group.parameters)


@pytest.mark.parametrize("lr", [None, 0.05])
@pytest.mark.parametrize("tied", [False, True])
def test_conditional_network_is_trained(tied: bool, lr: float | None) -> None:
    env = Hypergrid(3)
    policy = MLPPolicy(env, width=8, depth=1)
    flow = MLPFlow(env, policy, tied=tied)
    model = Objective(policy, UniformBackward(env), JensenShannon(0.5), ConditionalLogZ(flow, lr=lr))
    groups = {group.name: group for group in model.parameter_groups()}
    listed = [id(p) for group in groups.values() for p in group.parameters]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    own = {id(p) for p in flow.head.parameters()} | (set() if tied else {id(p) for p in flow.trunk.parameters()})
    assert {id(p) for p in groups["log_z"].parameters} == own if lr is not None else list(groups) == ["policy"]
    loss, report = model(uniform_batch())
    loss.backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in flow.parameters())
    initial = flow(env.reset(1)).detach().double()
    assert float(report["log_z"]) == pytest.approx(float(initial), rel=1e-6)


def test_conditional_network_sees_each_initial_state() -> None:
    class Reader(nn.Module):
        def forward(self, states: Tensor) -> Tensor:
            return 10 * states

    batch = replace(scores(EXCESS), initial=torch.arange(5, dtype=torch.float32))
    assert ConditionalLogZ(Reader())(batch, ReverseKL()).tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_devgrad_is_not_trained() -> None:
    model = objective(DevGrad(), learned_backward=True)
    (group,) = model.parameter_groups()
    assert len(group.parameters) == len(list(model.parameters())) == 8
    assert not DevGrad()(scores(EXCESS.clone().requires_grad_()), ReverseKL()).requires_grad


def test_exact_value_is_that_of_the_enumeration() -> None:
    env = Hypergrid(4, 3)
    coords = torch.cartesian_prod(*[torch.arange(4)] * 3)
    partition = ExactLogZ(env)
    assert partition(scores(EXCESS), ReverseKL()).tolist() == pytest.approx(
        [float(env.reward(coords, 4).sum().log())] * 5, abs=1e-12
    )
    assert float(exact.state_graph(env).log_z) == pytest.approx(float(partition.value), abs=1e-12)
    assert list(partition.parameters()) == []


def test_exact_value_needs_enumeration() -> None:
    class Endless:
        """Has no enumerate."""

    with pytest.raises(ValueError, match=r"ExactLogZ needs.*Endless has none.*partition=devgrad"):
        ExactLogZ(Endless())


def report(divergence: Any, residual: Tensor, weight: Tensor | None = None) -> dict[str, float]:
    """Diagnostics of residuals as plain numbers."""
    weight = torch.ones_like(residual) if weight is None else weight
    return {k: float(v) for k, v in diagnose(divergence, residual, weight, f64(1.0, 2.0)).items()}


def test_diagnostics_of_alpha() -> None:
    weight = (-EXCESS).exp()  # e^{(α−1)Δ} at α = 0
    found = report(Alpha(0.0), EXCESS)
    assert found["log_z"] == 1.5
    assert found["ess"] == pytest.approx(float(weight.sum().square() / weight.square().sum()) / 5)
    assert found["max_coefficient"] == pytest.approx(float((1 - (-EXCESS).exp()).abs().max()))
    assert found["residual"] == pytest.approx(float(EXCESS.abs().mean()))
    assert found["clipped"] == 0
    assert report(ReverseKL(), EXCESS)["ess"] == 1


def test_diagnostics_count_what_is_clipped() -> None:
    found = report(Clipped(ReverseKL(), 1.5), EXCESS)
    assert found["clipped"] == pytest.approx(3 / 5)
    assert found["ess"] == pytest.approx(2 / 5)
    assert found["max_coefficient"] == 1.5
    assert report(Huber(0.1), EXCESS)["ess"] == 1  # nothing left to weigh


def test_diagnostics_leave_out_padding_and_zero_rewards() -> None:
    residual = torch.cat([EXCESS, f64(50.0, -LOG_OF_ZERO)])
    weight = torch.cat([torch.ones(5), torch.tensor([0.0, 1.0])]).double()
    assert report(Alpha(0.5), residual, weight) == pytest.approx(report(Alpha(0.5), EXCESS))
    assert report(Alpha(0.5), f64(-LOG_OF_ZERO)) == {"log_z": 1.5}
