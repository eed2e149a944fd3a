"""Sequences of tokens, small enough to list: the tree, what the limit cuts, and what is learned."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from envs.tokens.environment import Tokens
from envs.tokens.tasks import Expressions, Sums, value_of
from gfn import exact, metrics
from gfn.check import check_environment
from gfn.evaluation import Evaluator
from gfn.objectives import (
    Alpha,
    DevGrad,
    Divergence,
    Huber,
    Jeffreys,
    JensenShannon,
    LogCosh,
    Objective,
    ShiftedCosh,
    Tempered,
    TotalVariation,
)
from gfn.policies import Prior, Tabular
from gfn.samplers import OnPolicy, Stale
from gfn.schedules import Linear
from gfn.training import Trainer

MEMBERS: dict[str, Divergence] = {
    **{f"alpha {alpha:g}": Alpha(alpha) for alpha in (-1.0, 0.0, 0.5, 1.0, 2.0)},
    "tempered": Tempered(Alpha(0.0), 0.5),
    **{m.__name__: m() for m in (JensenShannon, Jeffreys, ShiftedCosh, LogCosh, TotalVariation)},
    "Huber": Huber(1.0),
}


def tokens(**settings: Any) -> Tokens:
    return Tokens(Sums(), **{"max_tokens": 5, "temperature": 0.5, "listed": True, **settings})


def table(env: Tokens, scale: float = 0.0, seed: int = 0) -> Tabular[Any]:
    n = len(env.enumerate())
    logits = scale * torch.randn(n, env.n_actions, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Tabular(env, env.forward_mask, logits)


@pytest.mark.parametrize(
    "settings", [{}, {"min_tokens": 2}, {"max_tokens": 1}, {"cut_reward": -1.0}, {"max_tokens": 3, "listed": False}]
)
def test_contract(settings: dict[str, Any]) -> None:
    check_environment(tokens(**settings))


def test_sequences_are_counted_and_none_is_lost() -> None:
    """341 that stop and 1 024 that the limit cuts for each prompt; their probabilities add up to one."""
    env = tokens()
    graph = exact.state_graph(env)
    final = graph.states[graph.terminal]
    stopped = env.is_stopped(final)
    assert [int((stopped & (final.prompt == x)).sum()) for x in range(4)] == [341] * 4
    assert [int((~stopped & (final.prompt == x)).sum()) for x in range(4)] == [1024] * 4
    log_p = exact.log_terminal(graph, table(env, 1.0))
    for x in range(4):
        assert float(log_p[final.prompt == x].exp().sum()) == pytest.approx(1.0, abs=1e-12)


def test_rewards_by_hand() -> None:
    env = tokens(temperature=0.25, cut_reward=-2.0)
    states = env.reset(4, torch.Generator().manual_seed(0))
    states = type(states)(
        torch.tensor([1, 3, 0, 2]),
        torch.tensor([[1, 4, -1, -1, -1], [2, 0, 1, 4, -1], [4, -1, -1, -1, -1], [2, 0, 0, 0, 0]]),
    )
    assert env.log_reward(states).tolist() == [4.0, 8.0, 0.0, -8.0]
    assert env.describe(states) == ["b → b ■", "d → cab ■", "a →  ■", "c → caaaa ✂"]


def test_what_is_not_allowed_is_refused() -> None:
    env = tokens(min_tokens=1)
    start = env.reset(1, torch.Generator().manual_seed(0))
    for token in (4, 5, -1):
        with pytest.raises(ValueError, match=f"action {token} is not allowed in state"):
            env.step(start, torch.tensor([token]))
    with pytest.raises(ValueError, match="undo: action 1"):
        env.undo(env.step(start, torch.tensor([2])), torch.tensor([1]))
    for settings, message in (
        ({"min_tokens": 5}, "0 <= min_tokens < max_tokens"),
        ({"temperature": 0.0}, "temperature > 0"),
    ):
        with pytest.raises(ValueError, match=message):
            tokens(**settings)
    with pytest.raises(ValueError, match=r"no right answer of the prompt '31=' has between min_tokens=0"):
        Tokens(Expressions(31, 33), max_tokens=3)
    with pytest.raises(ValueError, match="between 2 and 26, got 1"):
        Sums(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lag"), [*((name, 50) for name in MEMBERS), ("alpha 0.5", 0), ("alpha 1", 0), ("Jeffreys", 0)]
)
def test_every_member_learns_the_posterior_of_a_prior(name: str, lag: int) -> None:
    """π(y|x) e^(r/β)/Z with K = 16 sequences a prompt, on policy and fifty updates late."""
    env = tokens(max_tokens=4, temperature=0.5)
    prior = table(env, 0.5, seed=1)
    policy = Tabular(env, env.forward_mask, prior.logits.detach().clone())
    objective = Objective(policy, Prior(prior), MEMBERS[name], DevGrad())
    sampler: Any = OnPolicy(env, policy, batch_size=64, group_size=16, seed=0)
    if lag:
        sampler = Stale(env, sampler, lag=lag)
    evaluator = Evaluator(env, objective, every=1000)
    before = evaluator(0)
    report = Trainer(objective, sampler, steps=1000, lr=Linear(0.05, 0.005, 1000), evaluator=evaluator).run()
    assert report is not None
    assert report.evaluation is not None
    print(name, lag, before["tv"], report.evaluation["tv"], report.evaluation["log_z_error"])
    assert before["tv"] > 0.2
    assert report.evaluation["tv"] <= 0.05
    assert abs(report.evaluation["log_z_error"]) < 0.1


def test_a_cut_sequence_is_an_object_of_its_own_kind() -> None:
    """What the limit cuts keeps exactly the share that the target gives it."""
    env = tokens(max_tokens=3, temperature=0.3)
    graph = exact.state_graph(env)
    prior = table(env, 0.5, seed=1)
    evaluator = Evaluator(env, Objective(table(env), Prior(prior), Alpha(1.0), DevGrad()))
    assert evaluator.graph is not None
    cut = ~env.is_stopped(graph.states[graph.terminal])
    share = float(evaluator.graph.log_target.exp()[cut].sum()) / 4
    value = exact.log_flows(evaluator.graph, exact.edge_log_pf(graph, prior))
    assert float(exact.log_terminal(graph, prior).exp()[cut].sum()) / 4 > 1.3 * share > 0.01
    assert value.shape == (graph.n,)


def test_expressions_have_the_answers_they_accept() -> None:
    task = Expressions()
    assert [task.text(p) for p in task.prompts[:2]] == ["10=", "11="]
    for prompt, value in ((0, 10), (23, 33), (89, 99)):
        answers = task.answers(prompt)
        texts = {task.text(y) for y in answers}
        brute = {
            f"{a}{sign}{b}"
            for a, b, sign in itertools.product(range(100), range(100), "+-")
            if (a + b if sign == "+" else a - b) == value
        }
        assert texts == brute
        assert len(answers) == len(texts)
        assert task.reward([prompt] * len(answers), answers).all()
    known = {"1+1": 2, "01+1": None, "5-7": -2, "1+": None, "+": None, "12-3+1": None, "100+1": None}
    assert {text: value_of(text) for text in known} == known
    assert not task.reward([0, 0], [[1], []]).any()


def test_log_z_of_expressions_is_known_from_the_share_of_right_answers() -> None:
    """log Z(x) = log(1 − p + p e^(1/β)): by the formula and by the average of weights under any prior."""
    beta, p = 0.25, 0.336
    formula = math.log(1 - p + p * math.exp(1 / beta))
    weights = torch.tensor([0.0] * 664 + [1 / beta] * 336, dtype=torch.float64)
    assert metrics.log_z_estimate(weights) == pytest.approx(formula, abs=1e-12)
    assert np.isfinite(formula)
