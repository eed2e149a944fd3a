"""Exact answers where right ones can be listed: against direct sums, and against lists of everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from envs.tokens.environment import Tokens
from envs.tokens.language_model import LanguageModel, reference
from envs.tokens.tasks import Answered, Expressions
from gfn import exact, metrics
from gfn.evaluation import Evaluator
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPPolicy, Policy, Prior
from gfn.sparse import SparseTarget, as_sparse, sparse_target
from tests.tiny_models import llama, said

BETA = 0.2


@dataclass(frozen=True)
class Remainders:
    """One to three letters of three, worth 0, 1 and 2, whose sum leaves the remainder that the prompt names.

    The second prompt accepts nothing written at all as well, so that prompts differ in how many answers they have.
    """

    longest: int = 2
    n_tokens: int = 4
    stop_ids: tuple[int, ...] = (3,)
    prompts: Sequence[Sequence[int]] = ((0,), (1, 1), (2,))

    def answers(self, prompt: int) -> list[list[int]]:
        some = [list(y) for n in range(1, self.longest + 1) for y in product(range(3), repeat=n)]
        return [y for y in some if sum(y) % 3 == prompt] + ([[]] if prompt == 1 else [])

    def reward(self, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> Any:
        right = [list(y) in self.answers(x) for x, y in zip(prompts, completions, strict=True)]
        return np.array(right, dtype=np.float64)

    def text(self, tokens: Sequence[int]) -> str:
        return "".join("012."[token] for token in tokens)


def toy(**settings: Any) -> Tokens:
    return Tokens(Remainders(), **{"max_tokens": 4, "temperature": BETA, **settings})


def random_policy(env: Tokens, seed: int) -> MLPPolicy[Any]:
    torch.manual_seed(seed)
    policy = MLPPolicy(env, 8).double()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.normal_(0.0, 0.4)
    return policy


def lumped(env: Tokens, log_p: Tensor, final: Any) -> list[Tensor]:
    """For each prompt the log-probability of every right completion, and of all others together."""
    right = env.log_reward(final) > 0
    rows = [log_p[(final.prompt == x) & right] for x in range(3)]
    rest = [log_p[(final.prompt == x) & ~right].logsumexp(0, keepdim=True) for x in range(3)]
    return [torch.cat(pair) for pair in zip(rows, rest, strict=True)]


@dataclass(frozen=True)
class Listed:
    """Exact distributions over every completion: of a policy and of the target under a prior."""

    env: Tokens
    final: Any
    log_z: Tensor  # [3]
    log_p: Tensor
    log_target: Tensor

    @staticmethod
    def of(policy: Policy[Any], prior: Policy[Any], **settings: Any) -> Listed:
        env = toy(listed=True, **settings)
        graph = exact.state_graph(env)
        graph = replace(graph, log_reward=graph.log_reward + exact.log_terminal(graph, prior))
        final = graph.states[graph.terminal]
        return Listed(env, final, graph.log_z, exact.log_terminal(graph, policy), graph.log_target)


@pytest.mark.parametrize("settings", [{}, {"min_tokens": 2}, {"max_tokens": 2}])
def test_everything_agrees_with_a_full_list(settings: dict[str, Any]) -> None:
    """Also where some answers are too short or too long to be written."""
    env = toy(**settings)
    policy, prior = random_policy(env, 1), random_policy(env, 2)
    listed = Listed.of(policy, prior, **settings)
    target = SparseTarget(env, env, prior)
    order = [target.initial.prompt.tolist().index(x) for x in range(3)]
    torch.testing.assert_close(target.log_z[order], listed.log_z, atol=1e-10, rtol=0)
    p, q = (lumped(env, x, listed.final) for x in (listed.log_p, listed.log_target))
    expected = {
        "log_z_exact": float(listed.log_z.mean()),
        "exceptions_mass": sum(float(x[:-1].exp().sum()) for x in p) / 3,
        "exceptions_mass_target": sum(float(x[:-1].exp().sum()) for x in q) / 3,
        "tv_coarse": sum(map(metrics.total_variation, p, q)) / 3,
        "kl_target_model_coarse": sum(map(metrics.kl, q, p)) / 3,
        "kl_model_target_coarse": sum(map(metrics.kl, p, q)) / 3,
    }
    assert target.distances(policy) == pytest.approx(expected, abs=1e-10)
    assert expected["tv_coarse"] > 0.2
    same = target.distances(prior)
    assert same["kl_model_target_coarse"] > 0.05
    assert target.log_target.exp().sum(1).tolist() == pytest.approx([1.0] * 3, abs=1e-12)


def test_coarse_divergences_bound_the_full_ones() -> None:
    env = toy()
    policy, prior = random_policy(env, 1), random_policy(env, 2)
    listed = Listed.of(policy, prior)
    found = SparseTarget(env, env, prior).distances(policy)
    here = [listed.final.prompt == x for x in range(3)]
    for name, distance in (("tv", metrics.total_variation), ("kl_model_target", metrics.kl)):
        full = sum(distance(listed.log_p[x], listed.log_target[x]) for x in here) / 3
        assert 0 < found[f"{name}_coarse"] < full


def test_the_kl_of_an_evaluation_is_unbiased() -> None:
    """Its mean over many evaluations is the exact one, within four standard errors."""
    env = toy()
    policy, prior = random_policy(env, 1), random_policy(env, 2)
    listed = Listed.of(policy, prior)
    full = sum(
        metrics.kl(listed.log_p[listed.final.prompt == x], listed.log_target[listed.final.prompt == x])
        for x in range(3)
    )
    evaluator = Evaluator(env, Objective(policy, Prior(prior), Alpha(1.0), DevGrad()), n_samples=300)
    values = torch.tensor([evaluator(step)["kl_model_target"] for step in range(60)], dtype=torch.float64)
    assert float(values.std()) > 0
    assert abs(float(values.mean()) - full / 3) < 4 * float(values.std()) / math.sqrt(len(values))
    assert abs(full / 3) > 10 * float(values.std()) / math.sqrt(len(values))


def test_an_evaluation_reports_log_z_and_its_error() -> None:
    env = toy()
    policy, prior = random_policy(env, 1), random_policy(env, 2)
    listed = Listed.of(policy, prior)
    found = Evaluator(env, Objective(policy, Prior(prior), Alpha(1.0), DevGrad()), n_samples=30)(0)
    assert found["log_z_exact"] == pytest.approx(float(listed.log_z.mean()), abs=1e-10)
    assert found["log_z_error"] == pytest.approx(found["log_z"] - found["log_z_exact"], abs=1e-10)
    assert found["kl_model_target"] == pytest.approx(found["log_z_exact"] - found["elbo"], abs=1e-10)
    assert found["log_z"] == pytest.approx(found["elbo"], abs=1e-10)  # what DevGrad takes for log Z at α = 1
    assert {"tv", "l1_sum"}.isdisjoint(found)


def test_at_the_target_nothing_is_wrong() -> None:
    """The posterior itself as the policy: every distance is zero, and log Z right from any sample."""
    env = toy(listed=True)
    prior = random_policy(env, 2)
    graph = exact.state_graph(env)
    log_prior = exact.edge_log_pf(graph, prior)
    value = exact.log_flows(graph, log_prior)

    class Posterior(MLPPolicy[Any]):
        def distribution(self, states: Any) -> Any:
            start = prior.distribution(states)
            after = torch.full_like(start.logits, -torch.inf)
            rows, actions = env.edges(states)
            after[rows, actions] = value[env.index(env.step(states[rows], actions))]
            return replace(start, logits=start.log_probs.detach() + after.masked_fill(~start.mask, 0.0))

    policy = Posterior(env, 8).double()
    plain = toy()
    found = Evaluator(plain, Objective(policy, Prior(prior), Alpha(0.0), DevGrad()), n_samples=30)(0)
    names = ("log_z_error", "kl_model_target", "tv_coarse", "kl_target_model_coarse", "kl_model_target_coarse")
    assert {name: found[name] for name in names} == pytest.approx(dict.fromkeys(names, 0.0), abs=1e-9)
    assert found["exceptions_mass"] == pytest.approx(found["exceptions_mass_target"], abs=1e-10)


def test_exceptions_are_only_known_where_a_cut_is_worth_what_a_wrong_one_is() -> None:
    env, cut = toy(), toy(cut_reward=-1.0)
    assert isinstance(env.task, Answered)
    assert as_sparse(env) is env
    assert as_sparse(cut) is None
    names = {"log_z_exact", "log_z_error", "kl_model_target", "exceptions_mass", "tv_coarse"}
    for some, known in ((env, True), (cut, False)):
        objective = Objective(random_policy(some, 1), Prior(random_policy(some, 2)), Alpha(1.0), DevGrad())
        found = Evaluator(some, objective, n_samples=12)(0)
        assert names & found.keys() == (names if known else set())
        off = Evaluator(some, objective, n_samples=12, exact=False)(0)
        assert not names & off.keys()
    assert sparse_target(env, None) is None


def test_an_environment_that_is_moved_lists_what_lies_there() -> None:
    env = toy(listed=True)
    moved = env.to("meta")  # a device of every machine, which holds no numbers
    assert moved.exceptions().tokens.device.type == "meta"
    assert moved.reset(2).tokens.device.type == "meta"
    assert {moved.enumerate.__self__, moved.index.__self__, moved.log_reward_elsewhere.__self__} == {moved}
    assert env.exceptions().tokens.device.type == "cpu"
    for bare in (toy(cut_reward=-1.0), toy(cut_reward=-1.0).to("meta")):
        assert not any(hasattr(bare, name) for name in ("enumerate", "index", "exceptions", "log_reward_elsewhere"))


@pytest.mark.parametrize("beta", [0.1, 0.25])
def test_log_z_of_expressions_under_a_language_model(beta: float) -> None:
    """log Z(x) = log(1 − p + p e^(1/β)) with the p of right answers summed text by text."""
    env = Tokens(Expressions(31, 33), max_tokens=6, temperature=beta)
    special = {"vocab_size": 14, "bos_token_id": 13, "eos_token_id": 13, "pad_token_id": 13}
    policy = LanguageModel(env, llama(**special))
    objective = Objective(policy, reference(policy), Alpha(0.5), DevGrad())
    target = sparse_target(env, objective.backward_policy.prior)
    assert target is not None
    with torch.no_grad():
        p = [
            math.fsum(
                math.exp(float(said(env, policy.model, list(prompt), [*answer, env.stop]).double().sum()))
                for answer in env.task.answers(x)
            )
            for x, prompt in enumerate(env.task.prompts)
        ]
    log_z = [math.log(1 - a + a * math.exp(1 / beta)) for a in p]
    assert log_z[0] > 1e-4
    place = target.initial.prompt.tolist()
    assert target.log_z.tolist() == pytest.approx([log_z[x] for x in place], rel=1e-4)
    found = Evaluator(env, objective, n_samples=12)(0)
    mass = [a * math.exp(1 / beta) / math.exp(z) for a, z in zip(p, log_z, strict=True)]
    assert found["exceptions_mass"] == pytest.approx(sum(p) / 3, rel=1e-4)
    assert found["exceptions_mass_target"] == pytest.approx(sum(mass) / 3, rel=1e-4)
    assert found["log_z_exact"] == pytest.approx(sum(log_z) / 3, rel=1e-4)
    assert found["kl_prior"] == 0.0
