"""Expected gradients of the policy-gradient baselines, over every batch there can be, against closed statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gfn import exact
from gfn.flows import Flow
from gfn.objectives import Alpha, DevGrad, ExactLogZ, Learner, Objective, PolicyGradient, Scores
from gfn.objectives.parts import backward_in_parts
from gfn.policies import Policy, Prior, Tabular, UniformBackward
from gfn.trajectories import Trajectories
from tests.two_paths import TwoPaths, table_backward, table_forward

ENV = TwoPaths()
VALUES = torch.tensor([0.7, -0.4, 1.3, 0.2, 9.0, 9.0, 9.0], dtype=torch.float64)


class Table(Flow[Tensor]):
    """One number for each state."""

    def __init__(self, values: Tensor):
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, states: Tensor) -> Tensor:
        return self.values[ENV.index(states)]


def every(policy: Policy[Tensor]) -> Trajectories[Tensor]:
    """Every trajectory once, as if the policy had sampled it."""
    t = exact.all_trajectories(exact.state_graph(ENV))
    return replace(t, behaviour_log_prob=policy.log_prob(t).detach(), group=torch.zeros_like(t.group))


def chosen(scores: Scores, rows: Sequence[int]) -> Scores:
    at = torch.tensor(rows)
    tables = ("log_pf", "log_pb", "mask", "log_reward", "group", "log_behaviour", "weight", "log_flow")
    named = {name: value[at] for name in tables if (value := getattr(scores, name)) is not None}
    return replace(scores, **named)


def gradients(loss: Tensor, learner: nn.Module) -> dict[str, Tensor]:
    named = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(named.items(), found, strict=True)}


def expected_gradient(learner: Learner[Tensor], size: int) -> dict[str, Tensor]:
    """Σ over batches of their probability times the gradient of their loss."""
    scores = learner.scores(every(learner.policy))
    probability = scores.log_pf.detach().sum(1).exp()
    assert float(probability.sum()) == pytest.approx(1)
    total = torch.zeros((), dtype=torch.float64)
    for rows in product(range(len(probability)), repeat=size):
        total = total + probability[list(rows)].prod() * learner.loss(chosen(scores, rows), 0)[0]
    return gradients(total, learner)


def kl_gradient(learner: Learner[Tensor]) -> dict[str, Tensor]:
    """∇ KL(P_F ‖ R P_B / Z), by its definition."""
    scores = learner.scores(every(learner.policy))
    return gradients((scores.log_pf.sum(1).exp() * scores.excess).sum(), learner)


def agree(found: dict[str, Tensor], expected: dict[str, Tensor], scale: float = 1.0, only: str = "") -> None:
    assert found.keys() == expected.keys()
    names = [name for name in expected if name.startswith(only)]
    assert names
    for name in names:
        torch.testing.assert_close(found[name], scale * expected[name], atol=1e-12, rtol=1e-10)
    assert any(float(expected[name].abs().max()) > 0.01 for name in names)


# choices, trajectories in a batch, and how much shorter the gradient is where a return is part of its own baseline
CASES = {
    "reinforce": ({"baseline": "none"}, 1, 1.0),
    "reinforce, mean of the batch": ({"baseline": "batch"}, 2, 1 / 2),
    "rloo of 2": ({"baseline": "leave_one_out"}, 2, 1.0),
    "rloo of 3": ({"baseline": "leave_one_out"}, 3, 1.0),
    "dr_grpo": ({"baseline": "group", "surrogate": "clipped"}, 3, 2 / 3),
    "ppo, leave one out": ({"baseline": "leave_one_out", "surrogate": "clipped"}, 2, 1.0),
    "ppo, steps": ({"baseline": "leave_one_out", "surrogate": "clipped", "average": "steps"}, 2, 1 / 2),
    "grpo without scale": ({"baseline": "leave_one_out", "average": "trajectory_means"}, 2, 1 / 2),
}  # the last two divide by the two steps that every trajectory has here


@pytest.mark.parametrize("name", CASES)
def test_expected_gradient_is_that_of_reverse_kl(name: str) -> None:
    choices, size, scale = CASES[name]
    learner = PolicyGradient(table_forward(ENV), table_backward(ENV), **choices)
    agree(expected_gradient(learner, size), kl_gradient(learner), scale, "policy")


@pytest.mark.parametrize("baseline", ["none", "leave_one_out"])
def test_learned_backward_policy_follows_the_same_divergence(baseline: Any) -> None:
    learner = PolicyGradient(table_forward(ENV), table_backward(ENV), baseline=baseline)
    agree(expected_gradient(learner, 2), kl_gradient(learner), only="backward")
    without = PolicyGradient(table_forward(ENV), table_backward(ENV), baseline=baseline, kl_coefficient=0.0)
    assert not expected_gradient(without, 2)["backward_policy.logits"].any()


def test_expected_gradient_is_that_of_trajectory_balance() -> None:
    balance = Objective(table_forward(ENV), table_backward(ENV), Alpha(1.0), ExactLogZ(ENV))
    learner = PolicyGradient(table_forward(ENV), table_backward(ENV), baseline="leave_one_out")
    agree(expected_gradient(learner, 2), expected_gradient(balance, 2), only="policy")


def test_rloo_is_devgrad_of_reverse_kl_batch_by_batch() -> None:
    """At α = 1 the coefficients are those of the leave-one-out baseline times (K − 1)/K, on policy or not."""
    policy = table_forward(ENV)
    devgrad = Objective(policy, UniformBackward(ENV), Alpha(1.0), DevGrad())
    rloo = PolicyGradient(policy, UniformBackward(ENV), baseline="leave_one_out")
    scores = rloo.scores(every(policy))
    for rows in ([0, 1, 2], [0, 0, 3, 5], [4, 2]):
        batch = chosen(scores, rows)
        found, expected = gradients(devgrad.loss(batch, 0)[0], devgrad), gradients(rloo.loss(batch, 0)[0], rloo)
        agree(found, expected, (len(rows) - 1) / len(rows))


def test_prior_makes_it_the_divergence_from_the_tilted_prior() -> None:
    reference = Tabular(ENV, ENV.forward_mask, table_forward(ENV).logits.detach().flip(1) * 1.5)
    learner = PolicyGradient(table_forward(ENV), Prior(reference), baseline="leave_one_out", surrogate="clipped")
    t = every(learner.policy)
    log_pf, log_prior = (t.pad(p.log_prob(t)).sum(1) for p in (learner.policy, reference))
    divergence = (log_pf.exp() * (log_pf - log_prior.detach() - t.log_reward)).sum()
    agree(expected_gradient(learner, 2), gradients(divergence, learner))


def test_without_kl_it_ascends_the_reward_and_the_entropy() -> None:
    for reward, entropy in (("log", 0.0), ("value", 0.0), ("value", 0.7)):
        learner = PolicyGradient(
            table_forward(ENV), table_backward(ENV), reward=reward, baseline="leave_one_out", kl_coefficient=0.0,
            entropy_coefficient=entropy,
        )  # fmt: skip
        scores = learner.scores(every(learner.policy))
        log_p = scores.log_pf.sum(1)
        gained = scores.log_reward if reward == "log" else scores.log_reward.exp()
        agree(expected_gradient(learner, 2), gradients(-(log_p.exp() * (gained - entropy * log_p)).sum(), learner))


def test_kl_penalty_is_forward_kl_at_the_visited_states() -> None:
    reference = Tabular(ENV, ENV.forward_mask, table_forward(ENV).logits.detach().flip(1))
    policy = table_forward(ENV)
    found = [
        expected_gradient(PolicyGradient(policy, Prior(reference), baseline="none", kl_penalty=penalty), 1)
        for penalty in (0.0, 0.3)
    ]
    t = every(policy)
    live = ENV.forward_mask(t.sources)
    log_now, log_prior = (
        p.logits[ENV.index(t.sources)].masked_fill(~live, -1e9).log_softmax(1) for p in (policy, reference)
    )
    divergence = t.pad((log_prior.exp() * (log_prior - log_now)).sum(1)).sum(1)
    probability = t.pad(policy.log_prob(t)).sum(1).exp().detach()
    learner = PolicyGradient(policy, Prior(reference))
    expected = gradients((probability * divergence).sum(), learner)
    agree({name: (found[1][name] - found[0][name]) / 0.3 for name in expected}, expected)


def true_values(learner: PolicyGradient[Tensor]) -> Tensor:
    """Expected return from each non-terminal state, by enumeration."""
    t = every(learner.policy)
    scores = learner.scores(t)
    reward = scores.log_pb - scores.log_pf
    reward[:, -1] += scores.log_reward
    ahead = reward.flip(1).cumsum(1).flip(1).detach()
    probability = scores.log_pf.detach().sum(1).exp().unsqueeze(1).expand_as(ahead)
    at = ENV.index(t.sources).reshape(ahead.shape)
    total, mass = (
        torch.zeros(7, dtype=torch.float64).index_add(0, at.flatten(), x.flatten())
        for x in (probability * ahead, probability)
    )
    return total / mass.clamp(min=1e-300)


@pytest.mark.parametrize("surrogate", ["score", "clipped"])
@pytest.mark.parametrize(("decay", "known"), [(1.0, False), (0.4, True), (0.0, True)])
def test_generalised_advantages_leave_the_expected_gradient(decay: float, known: bool, surrogate: Any) -> None:
    """For λ = 1 with any values, for any λ with true ones; and true values stay in expectation."""

    def learner(values: Tensor, **choices: Any) -> PolicyGradient[Tensor]:
        return PolicyGradient(
            table_forward(ENV), table_backward(ENV), baseline="value", value=Table(values), gae_lambda=decay,
            surrogate=surrogate, **choices,
        )  # fmt: skip

    model = learner(true_values(learner(VALUES)) if known else VALUES)
    found = expected_gradient(model, 1)
    agree(found, kl_gradient(model), only="policy")
    assert (float(found["value.values"].abs().max()) < 1e-12) == known
    if not known:
        wrong = expected_gradient(learner(VALUES, value_coefficient=0.0), 1)
        assert not wrong["value.values"].any()


def test_wrong_values_with_short_sight_do_not() -> None:
    """The test above could fail: λ < 1 with values that are not true is biased."""
    model = PolicyGradient(
        table_forward(ENV), table_backward(ENV), baseline="value", value=Table(VALUES), gae_lambda=0.4
    )
    with pytest.raises(AssertionError):
        agree(expected_gradient(model, 1), kl_gradient(model), only="policy")


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("baseline", ["group", "leave_one_out", "value"])
def test_gradient_in_parts_is_that_of_the_whole(baseline: Any, size: int) -> None:
    policy = table_forward(ENV)
    learner = PolicyGradient(
        policy, table_backward(ENV), baseline=baseline, scale="std", surrogate="clipped", average="steps",
        kl_penalty=0.1, value=Table(VALUES) if baseline == "value" else None,
    )  # fmt: skip
    t = every(policy)
    t = replace(t, behaviour_log_prob=t.behaviour_log_prob + torch.linspace(-0.4, 0.4, len(t.actions)).double())
    loss, _ = learner(t)
    whole = gradients(loss, learner)
    assert all(bool(g.any()) for g in whole.values())
    learner.zero_grad()
    backward_in_parts(learner, t, 0, size)
    for name, parameter in learner.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name], atol=1e-12, rtol=1e-10)
