"""A prior that becomes the trained policy now and then: when, what the target becomes, and where that ends."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from envs.tokens.environment import Tokens
from envs.tokens.tasks import Sums
from gfn import exact
from gfn.evaluation import Evaluator
from gfn.metrics import total_variation
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import Prior, Tabular
from gfn.samplers import OnPolicy
from gfn.schedules import Cosine
from gfn.training import Trainer
from tests.trainers import Recorder, differences, snapshot

ENV = Tokens(Sums(2), max_tokens=2, temperature=0.5, listed=True)
GRAPH = exact.state_graph(ENV)


def table(seed: int) -> Tabular[Any]:
    generator = torch.Generator().manual_seed(seed)
    return Tabular(ENV, ENV.forward_mask, torch.randn(GRAPH.n, ENV.n_actions, generator=generator))


def trainer(steps: int, reset_every: int, lr: Any = 0.1, seed: int = 0) -> tuple[Trainer[Any], Prior[Any]]:
    policy = table(1)
    prior = Prior(policy, remember=1000, reset_every=reset_every)
    objective = Objective(policy, prior, Alpha(1.0), DevGrad())
    sampler = OnPolicy(ENV, policy, 64, 32, seed=seed)
    evaluator = Evaluator(ENV, objective, every=5)
    return Trainer(objective, sampler, steps=steps, lr=lr, evaluator=evaluator, callbacks=[Recorder()]), prior


def log_posterior(log_prior: Any, power: int) -> Any:
    """log π R^power / Z of each terminal state, a distribution for each prompt, all equally likely."""
    t = GRAPH.terminal
    log_p = log_prior + power * GRAPH.log_reward
    prompt = GRAPH.states[t].prompt
    for x in prompt.unique():
        log_p[prompt == x] -= log_p[prompt == x].logsumexp(0)
    return log_p


def test_the_prior_becomes_the_policy_at_its_time_and_forgets_what_it_said() -> None:
    running, prior = trainer(11, 10)
    objective = running.objective
    before = prior.policy.state_dict()["logits"].clone()
    running.steps = 10
    running.run()
    assert torch.equal(prior.policy.state_dict()["logits"], before), "not before the eleventh update"
    reached = objective.policy.state_dict()["logits"].clone()
    running.steps = 11
    running.run()
    assert torch.equal(prior.policy.state_dict()["logits"], reached)
    t = running.sampler(11)
    assert torch.equal(prior.log_prob_backward(t), prior.policy.log_prob(t)), "nothing older is remembered"
    assert not any(p.requires_grad for p in prior.parameters())


def test_it_is_evaluated_against_the_target_there_is_then() -> None:
    running, prior = trainer(11, 10)
    evaluator = running.evaluator
    assert evaluator is not None
    first = evaluator(0)["log_z_exact"]
    running.run()
    assert evaluator.graph is not None
    log_prior = exact.log_terminal(GRAPH, prior.policy)
    wanted = (log_prior + GRAPH.log_reward).exp().sum() / len(GRAPH.initial)
    assert evaluator(11)["log_z_exact"] != pytest.approx(first, abs=1e-3)
    assert float(evaluator.graph.log_z.exp().mean()) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.parametrize("stop", [9, 10, 11, 20])
def test_resume_is_exact_across_resets(stop: int) -> None:
    whole, _ = trainer(25, 10)
    whole.run()
    first, _ = trainer(stop, 10)
    first.run()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second, _ = trainer(25, 10, seed=1)
    second.load_state_dict(torch.load(file, weights_only=True))
    second.run()
    assert not differences(snapshot(second), snapshot(whole))


@pytest.mark.slow
@pytest.mark.parametrize("resets", [0, 1, 2])
def test_each_reset_adds_a_power_of_the_reward(resets: int) -> None:
    """π_0 R^(k+1)/Z after k resets that were trained to the end."""
    every = 400
    lr = Cosine(0.05, 0.05, every)
    running, prior = trainer((resets + 1) * every, every if resets else 0, lr)
    start = exact.log_terminal(GRAPH, prior.policy).double()
    running.run()
    log_p = exact.log_terminal(GRAPH, running.objective.policy).double()
    distance = total_variation(log_p, log_posterior(start, resets + 1))
    print(resets, distance, total_variation(log_p, log_posterior(start, resets)))
    assert distance / len(GRAPH.initial) <= 0.03
    assert total_variation(log_p, log_posterior(start, resets)) / len(GRAPH.initial) > 0.1


def test_a_prior_that_was_not_copied_is_not_reset() -> None:
    with pytest.raises(ValueError, match=r"reset_every must not be negative, and needs a copy"):
        Prior(table(0), copied=False, reset_every=5)
    with pytest.raises(ValueError, match=r"got reset_every=-1"):
        Prior(table(0), reset_every=-1)
