"""Losses of the policy-gradient baselines against numbers worked out by hand, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid, Sparse
from experiments.schema import ConfigError
from gfn.environment import RewardError
from gfn.flows import MLPFlow
from gfn.objectives import PolicyGradient, Scores
from gfn.policies import MLPPolicy, UniformBackward
from gfn.samplers import OnPolicy
from tests.composing import SMALL, built
from tests.oracles import f64, gradient


def model(**choices: Any) -> PolicyGradient[GridStates]:
    """A learner whose loss is looked at; its networks are not."""
    env = Hypergrid(3)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, 4, 1)
    return PolicyGradient(policy, UniformBackward(env), **choices)


def valued(**choices: Any) -> PolicyGradient[GridStates]:
    env = Hypergrid(3)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, 4, 1)
    return PolicyGradient(policy, UniformBackward(env), baseline="value", value=MLPFlow(env, policy), **choices)


def two(log_pf: Tensor, log_behaviour: Tensor | None = None, log_flow: Tensor | None = None) -> Scores:
    """Two trajectories of one group, of 1 and 3 steps, with log-rewards 1 and 3, and P_B not one."""
    return Scores(
        log_pf=log_pf,
        log_pb=torch.tensor([[-0.1, 0, 0], [0.0, -0.4, 0.0]], dtype=torch.float64),
        mask=torch.tensor([[True, False, False], [True, True, True]]),
        log_reward=f64(1, 3),
        group=torch.tensor([0, 0]),
        initial=None,
        log_behaviour=log_pf.detach() if log_behaviour is None else log_behaviour,
        weight=f64(1, 1),
        log_flow=log_flow,
    )


LOG_PF = torch.tensor([[-0.5, 0, 0], [-1.0, -0.2, -0.7]], dtype=torch.float64)
FLOW = torch.tensor([[0.5, 0, 0, 0], [1.0, 2.0, 4.0, 0]], dtype=torch.float64)


def slopes(learner: PolicyGradient[Any], scores: Scores) -> Tensor:
    """Derivative of the loss with respect to log P_F of each step."""
    return gradient(lambda x: learner.loss(replace(scores, log_pf=x), 0)[0], scores.log_pf)


# Returns with KL coefficient 1 are 1 + 0.5 − 0.1 = 1.4 and 3 + 1.9 − 0.4 = 4.5.
def test_reinforce_loss_by_hand() -> None:
    loss, report = model(baseline="batch").loss(two(LOG_PF), 0)
    assert float(loss) == pytest.approx(-(-1.55 * -0.5 + 1.55 * -1.9) / 2)
    assert float(report["return"]) == pytest.approx(2.95)
    assert (float(report["length"]), float(report["log_reward"]), float(report["loss"])) == (2, 2, float(loss))
    assert float(report["advantage_std"]) == pytest.approx(math.sqrt((1.55**2 * 4) / 4 - (1.55 * 2 / 4) ** 2))
    assert float(report["entropy"]) == pytest.approx(1.2)
    assert float(report["kl"]) == pytest.approx((-0.4 - 1.5) / 2)
    assert (float(report["ratio"]), float(report["clipped"]), float(report["value_loss"])) == (1, 0, 0)
    expected = torch.tensor([[1.55, 0, 0], [-1.55, -1.55, -1.55]], dtype=torch.float64) / 2
    torch.testing.assert_close(slopes(model(baseline="batch"), two(LOG_PF)), expected)


@pytest.mark.parametrize(
    ("choices", "per_step"),
    [
        ({"baseline": "none"}, [[1.4 / 2], [4.5 / 2] * 3]),
        ({"baseline": "none", "average": "trajectory_means"}, [[1.4 / 2], [4.5 / 6] * 3]),
        ({"baseline": "none", "average": "steps"}, [[1.4 / 4], [4.5 / 4] * 3]),
        ({"baseline": "leave_one_out"}, [[-3.1 / 2], [3.1 / 2] * 3]),
        ({"baseline": "none", "kl_coefficient": 0.0}, [[1 / 2], [3 / 2] * 3]),
        ({"baseline": "none", "kl_coefficient": 0.0, "reward": "value"}, [[math.e / 2], [math.e**3 / 2] * 3]),
        ({"baseline": "none", "kl_coefficient": 0.0, "entropy_coefficient": 2.0}, [[2 / 2], [6.8 / 2] * 3]),
        ({"baseline": "group", "scale": "std"}, [[-(0.5**0.5) / 2], [0.5**0.5 / 2] * 3]),
    ],
)
@pytest.mark.parametrize("surrogate", ["score", "clipped"])
def test_gradient_by_hand(choices: dict[str, Any], per_step: list[list[float]], surrogate: str) -> None:
    """On policy both surrogates have the same gradient, advantage times weight at every step."""
    expected = -torch.tensor([[*row, 0.0, 0.0][:3] for row in per_step], dtype=torch.float64)
    found = slopes(model(surrogate=surrogate, **choices), two(LOG_PF))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_grpo_loss_by_hand() -> None:
    """A stale batch: ratios 2 | 1, ½, 4; advantages −1 and 1 with standard deviation √2."""
    behaviour = LOG_PF - torch.tensor([[2.0, 1, 1], [1, 0.5, 4]], dtype=torch.float64).log()
    grpo = model(
        baseline="group", scale="std", surrogate="clipped", average="trajectory_means", kl_coefficient=0.0,
        kl_penalty=0.1,
    )  # fmt: skip
    unit = 0.5**0.5
    k3 = [[math.exp(0.4) - 1.4, 0, 0], [math.e - 2, math.exp(-0.2) - 0.8, math.exp(0.7) - 1.7]]
    surrogate = (-2 * unit + (1 + 0.5 + 1.2) * unit / 3) / 2
    loss, report = grpo.loss(two(LOG_PF, behaviour), 0)
    assert float(loss) == pytest.approx(-surrogate + 0.1 * (k3[0][0] + sum(k3[1]) / 3) / 2, rel=1e-5)
    assert float(report["clipped"]) == pytest.approx(0.25)
    assert float(report["ratio"]) == pytest.approx(7.5 / 4)
    # e^x − x − 1 has slope −(e^x − 1) in log P_F.
    later = [unit + 0.1 * (math.e - 1), 0.5 * unit + 0.1 * (math.exp(-0.2) - 1), 0.1 * (math.exp(0.7) - 1)]
    moving = [[-2 * unit + 0.1 * (math.exp(0.4) - 1), 0, 0], later]
    expected = -torch.tensor(moving, dtype=torch.float64) / torch.tensor([[2.0], [6.0]], dtype=torch.float64)
    torch.testing.assert_close(slopes(grpo, two(LOG_PF, behaviour)), expected, atol=1e-6, rtol=1e-5)


def test_dr_grpo_neither_scales_nor_averages_over_length() -> None:
    dr_grpo = model(baseline="group", surrogate="clipped", kl_coefficient=0.0)
    expected = torch.tensor([[0.5, 0, 0], [-0.5, -0.5, -0.5]], dtype=torch.float64)
    torch.testing.assert_close(slopes(dr_grpo, two(LOG_PF)), expected)
    behaviour = LOG_PF - torch.tensor([[2.0, 1, 1], [1, 0.5, 4]], dtype=torch.float64).log()
    assert float(dr_grpo.loss(two(LOG_PF, behaviour), 0)[0]) == pytest.approx(-(-2 + 1 + 0.5 + 1.2) / 2)


def test_ppo_loss_by_hand() -> None:
    """Step rewards 1.4 | 1, −0.2, 3.7; λ = ½; values ½ | 1, 2, 4."""
    ppo = valued(surrogate="clipped", average="steps", gae_lambda=0.5, value_coefficient=0.3)
    advantage = [[0.9], [2 + 0.5 * (1.8 + 0.5 * -0.3), 1.8 + 0.5 * -0.3, -0.3]]
    flat = [a for row in advantage for a in row]
    scores = two(LOG_PF, log_flow=FLOW)
    loss, report = ppo.loss(scores, 0)
    value_loss = 0.5 * sum(a**2 for a in flat) / 4
    assert float(report["value_loss"]) == pytest.approx(value_loss)
    assert float(loss) == pytest.approx(-sum(flat) / 4 + 0.3 * value_loss)
    expected = -torch.tensor([[0.9, 0, 0], advantage[1]], dtype=torch.float64) / 4
    torch.testing.assert_close(slopes(ppo, scores), expected)
    # Targets are held constant, so values move by their errors alone: minus the advantage.
    by_value = gradient(lambda v: ppo.loss(replace(scores, log_flow=v), 0)[0], FLOW)
    torch.testing.assert_close(by_value, 0.3 * torch.nn.functional.pad(expected, (0, 1)))


def test_ppo_standardises_over_steps() -> None:
    plain, scaled = (valued(average="steps", scale=scale, gae_lambda=0.5) for scale in ("none", "std"))
    scores = two(LOG_PF, log_flow=FLOW)
    flat = -slopes(plain, scores)[scores.mask] * 4
    torch.testing.assert_close(
        -slopes(scaled, scores)[scores.mask] * 4, (flat - flat.mean()) / flat.std(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("average", ["trajectory_sums", "trajectory_means", "steps"])
def test_loss_against_autograd_of_the_definition(average: Any) -> None:
    """A random stale batch: values and gradients of min(ρA, clip(ρ)A) as it is written."""
    torch.manual_seed(0)
    lengths = torch.tensor([5, 1, 3, 4])
    mask = torch.arange(5) < lengths.unsqueeze(1)
    log_pf, log_pb, log_behaviour = (-torch.rand(4, 5, dtype=torch.float64) * mask for _ in range(3))
    group = torch.tensor([0, 1, 0, 1])
    scores = Scores(log_pf, log_pb, mask, torch.randn(4).double(), group, None, log_behaviour, torch.ones(4))
    learner = model(baseline="group", surrogate="clipped", average=average, kl_penalty=0.3, clip_low=0.1)
    returns = scores.log_reward + (log_pb - log_pf).sum(1)
    advantage = torch.stack([r - returns[group == g].mean() for r, g in zip(returns, group, strict=True)]).unsqueeze(1)
    weight = {
        "trajectory_sums": mask / 4.0,
        "trajectory_means": mask / (4.0 * lengths.unsqueeze(1)),
        "steps": mask / 13.0,
    }[average]

    def defined(x: Tensor) -> Tensor:
        ratio = (x - log_behaviour).exp()
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.2) * advantage)
        return -(weight * (clipped - 0.3 * ((log_pb - x).exp() - (log_pb - x) - 1))).sum()

    loss, report = learner.loss(scores, 0)
    assert 0 < float(report["clipped"]) < 1
    torch.testing.assert_close(loss, defined(log_pf))
    torch.testing.assert_close(slopes(learner, scores), gradient(defined, log_pf) * mask)


def test_behaviour_and_current_log_probabilities_are_not_confused() -> None:
    """The ratio alone looks at the behaviour policy; returns, KL and entropy are of the current one."""
    fresh, stale = two(LOG_PF), two(LOG_PF, 2 * LOG_PF)
    for choices in ({}, {"baseline": "leave_one_out"}, {"baseline": "none", "entropy_coefficient": 1.0}):
        assert float(model(**choices).loss(fresh, 0)[0]) == float(model(**choices).loss(stale, 0)[0])
        torch.testing.assert_close(slopes(model(**choices), fresh), slopes(model(**choices), stale), atol=0, rtol=0)
    clipped = model(surrogate="clipped")
    reports = [clipped.loss(scores, 0)[1] for scores in (fresh, stale)]
    assert [float(r["ratio"]) for r in reports] == pytest.approx(
        [1, (math.exp(0.5) + math.exp(1) + math.exp(0.2) + math.exp(0.7)) / 4]
    )
    for name in ("return", "entropy", "kl"):
        assert float(reports[0][name]) == float(reports[1][name])


def test_ratio_of_rescored_trajectories() -> None:
    """Behaviour log-probabilities stay those of sampling, exploration included; the others follow the parameters."""
    env = Hypergrid(3)
    torch.manual_seed(0)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, 8, 1)
    learner = PolicyGradient(policy, UniformBackward(env), surrogate="clipped")
    batch = OnPolicy(env, policy, batch_size=16)(0)
    before = policy.log_prob(batch).detach()
    assert float(learner(batch)[1]["ratio"]) == pytest.approx(1, abs=1e-6)
    assert float(learner(batch)[1]["clipped"]) == 0
    with torch.no_grad():
        policy.head.bias += torch.tensor([1.0, 0.0, -1.0])
    after = policy.log_prob(batch).detach()
    _, report = learner(batch)
    assert float(report["ratio"]) == pytest.approx(float((after - before).exp().mean()), rel=1e-5)
    assert abs(float(report["ratio"]) - 1) > 0.05
    assert float(report["clipped"]) > 0


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"reward": "nat"}, "reward must be one of log, value, got 'nat'"),
        ({"baseline": "mean"}, "baseline must be one of none, batch, group, leave_one_out, value"),
        ({"scale": "max"}, "scale must be one of none, std"),
        ({"surrogate": "tight"}, "surrogate must be one of score, clipped"),
        ({"average": "mean"}, "average must be one of trajectory_sums, trajectory_means, steps"),
        ({"clip_low": 1.5}, r"clip_low in \[0, 1\]"),
        ({"clip_high": -0.1}, "clip_high >= 0"),
        ({"gae_lambda": 1.1}, r"gae_lambda must lie in \[0, 1\]"),
        ({"baseline": "value"}, "baseline=value needs a network.*use baseline=leave_one_out"),
    ],
)
def test_choices_that_are_none(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**choices)


def test_value_network_without_use() -> None:
    env = Hypergrid(3)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, 4, 1)
    with pytest.raises(ValueError, match=r"baseline=batch has no use for a value network.*objective\.value=null"):
        PolicyGradient(policy, UniformBackward(env), value=MLPFlow(env, policy))


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo", "rloo"])
def test_groups_of_one_are_refused(objective: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at least 2 in each, got 1.*or use objective\.baseline=batch"):
        built(tmp_path, *SMALL, f"objective={objective}", "sampler.group_size=1")
    built(tmp_path, *SMALL, f"objective={objective}", "sampler.group_size=2")


@pytest.mark.parametrize("objective", ["reinforce", "ppo"])
def test_groups_of_one_suffice(objective: str, tmp_path: Path) -> None:
    report = built(tmp_path, *SMALL, f"objective={objective}", "sampler.group_size=1").trainer.run()
    assert report is not None
    assert math.isfinite(report.metrics["loss"])


def test_partition_still_refuses_groups_of_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DevGrad estimates log Z within a group"):
        built(tmp_path, *SMALL, "partition=devgrad", "sampler.group_size=1")


@pytest.mark.parametrize(("baseline", "message"), [("leave_one_out", "got 1"), ("batch", r"objective\.baseline=none")])
def test_lone_trajectories_in_a_batch_are_refused(baseline: Any, message: str) -> None:
    env = Hypergrid(3)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, 4, 1)
    batch = OnPolicy(env, policy, batch_size=1)(0)
    with pytest.raises(ValueError, match=message):
        PolicyGradient(policy, UniformBackward(env), baseline=baseline)(batch)


def test_reward_zero() -> None:
    env = Hypergrid(4, 2, Sparse(0.0))
    torch.manual_seed(0)
    policy: MLPPolicy[GridStates] = MLPPolicy(env, 8, 1)
    batch = OnPolicy(env, policy, batch_size=64)(0)
    assert 0 < int(batch.log_reward.isneginf().sum()) < 64
    with pytest.raises(RewardError, match=r"reward zero.*objective\.reward=value"):
        PolicyGradient(policy, UniformBackward(env))(batch)
    loss, report = PolicyGradient(policy, UniformBackward(env), reward="value", kl_coefficient=0.0)(batch)
    assert loss.isfinite()
    assert float(report["return"]) == pytest.approx(float(batch.log_reward.exp().mean()))
