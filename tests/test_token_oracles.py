"""Sequences of up to five tokens, all listed: where the loss is zero, what its gradient is, and what the limit does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.tasks import Sums
from gfn import exact, metrics
from gfn.objectives import Alpha, DevGrad, Divergence, JensenShannon, Objective, Scores
from gfn.objectives.parts import backward_in_parts
from gfn.policies import Policy, Prior, Tabular, Uniform
from gfn.sampling import rollout
from gfn.trajectories import Trajectories
from tests.test_tokens import table

DIVERGENCES: dict[str, Divergence] = {
    **{f"alpha={alpha:g}": Alpha(alpha) for alpha in (0.0, 0.5, 1.0, 2.0)},
    "js": JensenShannon(0.5),
}


@dataclass(frozen=True)
class Toy:
    """Every sequence of four prompts, a prior, and the target π(y|x) e^{r/β}/Z(x), in float64."""

    env: Tokens
    graph: Any  # with R
    prior: Tabular[Any]
    every: Trajectories[Sequences]  # each sequence of each prompt once
    log_z: Tensor  # of each prompt, [4]
    log_target: Tensor  # of each trajectory, [5460]

    @property
    def prompt(self) -> Tensor:
        return self.every.initial.prompt

    def solution(self) -> Tabular[Any]:
        """The policy that is the target."""
        log_prior = exact.edge_log_pf(self.graph, self.prior)
        value = exact.log_flows(self.graph, log_prior)
        log_pf = value[self.graph.target] + log_prior - value[self.graph.source]
        logits = torch.zeros(self.graph.n, self.env.n_actions, dtype=torch.float64)
        at = (self.graph.source, self.graph.action)
        return Tabular(self.env, self.env.forward_mask, logits.index_put(at, log_pf))

    def objective(self, policy: Policy[Any], divergence: Divergence) -> Objective[Any]:
        return Objective(policy, Prior(self.prior), divergence, DevGrad())

    def log_p(self, policy: Policy[Any]) -> Tensor:
        """Of each trajectory, differentiable, ``[5460]``."""
        return self.every.pad(policy.log_prob(self.every)).sum(1)


@lru_cache
def toy() -> Toy:
    env = Tokens(Sums(), max_tokens=5, temperature=0.5, listed=True)
    graph, prior = exact.state_graph(env), table(env, 0.5, seed=1)
    every = exact.all_trajectories(graph)
    with torch.no_grad():
        log_prior = every.pad(prior.log_prob(every)).sum(1)
    log_unnormalised, prompt = log_prior + every.log_reward, every.initial.prompt
    log_z = torch.stack([log_unnormalised[prompt == x].logsumexp(0) for x in range(4)])
    every = replace(every, group=prompt)
    return Toy(env, graph, prior, every, log_z, log_unnormalised - log_z[prompt])


def off_policy(n: int = 48, seed: int = 0) -> Trajectories[Sequences]:
    """Sequences of the uniform policy in groups of prompts of which one comes twice, mixed."""
    env, generator = toy().env, torch.Generator().manual_seed(seed)
    group = torch.randperm(n, generator=generator) % 6
    prompt = torch.tensor([0, 1, 2, 3, 3, 1])[group]
    start = Sequences(prompt, torch.full((n, env.max_steps), EMPTY))
    return rollout(env, Uniform(env.forward_mask), start, group=group, generator=generator)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_at_the_target_loss_and_gradient_are_zero(name: str) -> None:
    """For data of any policy; log Ẑ is then log Z in every group."""
    t, problem = off_policy(), toy()
    objective = problem.objective(problem.solution(), DIVERGENCES[name])
    loss, report = objective(t)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-20
    assert float(report["residual"]) < 1e-10
    assert float(objective.policy.logits.grad.abs().max()) < 1e-10
    log_z = objective.log_z(objective.scores(t), 0)
    torch.testing.assert_close(log_z, problem.log_z[t.initial.prompt], atol=1e-10, rtol=0)
    elsewhere = problem.objective(table(problem.env, 0.5, seed=2), DIVERGENCES[name])
    assert float(elsewhere(t)[0].detach()) > 1e-3


@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_gradient_is_that_of_the_divergence(name: str) -> None:
    """Σ_y p(y|x) ∇L(Δ) = ∇D_f(p‖p*), over sequences that end and sequences that are cut."""
    problem, divergence = toy(), DIVERGENCES[name]
    policy = table(problem.env, 0.7, seed=2)
    objective = problem.objective(policy, divergence)
    residual = objective.scores(problem.every).excess + problem.log_z[problem.prompt]
    log_p = problem.log_p(policy)
    torch.testing.assert_close(residual, log_p - problem.log_target, atol=1e-10, rtol=0)
    surrogate = exact.expected_loss(divergence.loss, residual, log_p)
    (found,) = torch.autograd.grad(surrogate, policy.logits)
    ratio = (problem.log_p(policy) - problem.log_target).exp()
    (expected,) = torch.autograd.grad((problem.log_target.exp() * divergence.generator(ratio)).sum(), policy.logits)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    stops = problem.env.stop
    assert float(expected[:, stops].abs().max()) > 1e-3
    assert float(expected[:, :stops].abs().max()) > 1e-3


def whole_population(problem: Toy, policy: Policy[Any], divergence: Divergence) -> Tensor:
    """log Ẑ of each prompt where every sequence is in the batch with its probability as weight, ``[4]``."""
    objective = problem.objective(policy, divergence)
    with torch.no_grad():
        scores = objective.scores(problem.every)
        size = torch.bincount(problem.prompt)[problem.prompt]
        scores = replace(scores, weight=problem.log_p(policy).exp() * size)
        log_z = objective.log_z(scores, 0)
    return torch.stack([log_z[problem.prompt == x][0] for x in range(4)])


def test_what_log_z_is_estimated_as_on_average() -> None:
    """log Z − KL(p‖p*) at α = 1 and log Z at α = 0; in between and beyond, log Z less Rényi's divergence."""
    problem = toy()
    policy = table(problem.env, 0.7, seed=2)
    with torch.no_grad():
        log_p = problem.log_p(policy)
    here = [problem.prompt == x for x in range(4)]
    kl = torch.tensor([metrics.kl(log_p[x], problem.log_target[x]) for x in here], dtype=torch.float64)
    assert bool((kl > 0.1).all())
    torch.testing.assert_close(whole_population(problem, policy, Alpha(1.0)), problem.log_z - kl, atol=1e-10, rtol=0)
    torch.testing.assert_close(whole_population(problem, policy, Alpha(0.0)), problem.log_z, atol=1e-10, rtol=0)
    for alpha in (0.5, 2.0):
        log_ratio = (alpha - 1) * (log_p - problem.log_target)
        renyi = torch.stack([(log_p[x] + log_ratio[x]).logsumexp(0) / (alpha - 1) for x in here])
        found = whole_population(problem, policy, Alpha(alpha))
        torch.testing.assert_close(found, problem.log_z - renyi, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_before_training_only_rewards_count(name: str) -> None:
    """Where policy and prior are one, Δ is log Ẑ − r/β, which sequences of equal reward in a group share."""
    problem, t = toy(), off_policy()
    objective = problem.objective(table(problem.env, 0.5, seed=1), DIVERGENCES[name])
    scores = objective.scores(t)
    torch.testing.assert_close(scores.excess, -t.log_reward, atol=0, rtol=0)
    residual = scores.excess.detach() + objective.log_z(scores, 0)
    for g in range(6):
        for value in t.log_reward[t.group == g].unique():
            alike = residual[(t.group == g) & (t.log_reward == value)]
            assert float(alike.max() - alike.min()) < 1e-12
    other = replace(t, log_reward=torch.full_like(t.log_reward, 3.0))
    assert abs(float(objective(other)[0].detach())) < 1e-20


def outcome(objective: Objective[Any], t: Trajectories[Any], size: int | None = None) -> list[Tensor]:
    objective.zero_grad()
    if size is None:
        loss = objective(t)[0]
        loss.backward()
    else:
        loss, _ = backward_in_parts(objective, t, 0, size)
    return [loss.detach(), objective.policy.logits.grad.clone()]


@pytest.mark.parametrize("name", DIVERGENCES)
def test_groups_may_come_in_any_order_and_be_cut_anywhere(name: str) -> None:
    problem, t = toy(), off_policy()
    objective = problem.objective(table(problem.env, 0.5, seed=2), DIVERGENCES[name])
    expected = outcome(objective, t)
    assert float(expected[0]) > 1e-3
    order = torch.randperm(len(t), generator=torch.Generator().manual_seed(1))
    renamed = replace(t, group=torch.tensor([17, 3, 0, -2, 5, 4])[t.group])
    for found in (
        outcome(objective, t[order]),
        outcome(objective, t[t.group.argsort()]),
        outcome(objective, renamed),
        *(outcome(objective, some, size) for some in (t, t[order]) for size in (1, 5, 16)),
    ):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)


def test_two_prompts_are_never_mixed() -> None:
    """[1, 1, 1] and [5, 5, 5] have the means 1 and 5, however their rows lie, and one has no say in the other."""
    problem, t = toy(), off_policy(n=6)
    for group in ([0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1], [7, 7, 2, 2, 2, 7]):
        rows = torch.tensor(group)
        first = rows == rows[0]
        mixed = replace(t, group=rows, log_reward=torch.where(first, 1.0, 5.0).double())
        objective = problem.objective(problem.prior, Alpha(1.0))
        scores: Scores = objective.scores(mixed)
        assert objective.log_z(scores, 0).tolist() == pytest.approx(torch.where(first, 1.0, 5.0).tolist(), abs=1e-12)
        assert outcome(problem.objective(table(problem.env, 0.5, 1), Alpha(1.0)), mixed)[1].abs().max() < 1e-12
    policy = table(problem.env, 0.5, seed=2)
    t = off_policy()
    alone = [outcome(problem.objective(policy, Alpha(0.5)), t[t.group == g]) for g in range(6)]
    together = outcome(problem.objective(policy, Alpha(0.5)), t)
    sizes = torch.bincount(t.group).tolist()
    for k in range(2):
        expected = sum(n * part[k] for n, part in zip(sizes, alone, strict=True)) / len(t)
        torch.testing.assert_close(together[k], expected, atol=1e-12, rtol=0)
