"""Three treatments of sequences that the length limit cuts, of which one learns the target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.tasks import Sums
from gfn import exact, metrics
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import Prior, Tabular
from gfn.samplers import OnPolicy
from gfn.schedules import Linear
from gfn.training import Trainer
from gfn.trajectories import Trajectories
from tests.test_tokens import table

SETTINGS: dict[str, Any] = {"max_tokens": 4, "temperature": 0.5, "listed": True}


class Dropped(OnPolicy[Sequences]):
    """Leaves what was cut out of the loss, and groups of which less than two sequences are left."""

    def __call__(self, step: int, size: int | None = None) -> Trajectories[Sequences]:
        batch = super().__call__(step, size)
        batch = batch[self.env.is_stopped(batch.final)]
        return batch[torch.bincount(batch.group)[batch.group] > 1]


class Rewarded(Tokens):
    """Rewards what was cut as if it had ended there."""

    def log_reward(self, states: Sequences) -> Tensor:
        completions = [row[(row != EMPTY) & (row != self.stop)].tolist() for row in states.tokens]
        return torch.as_tensor(self.task.reward(states.prompt.tolist(), completions)) / self.temperature


def rarely_ending(env: Tokens) -> Tabular[Any]:
    """A prior of which the limit cuts three in four."""
    prior = table(env, 0.5, seed=1)
    with torch.no_grad():
        prior.logits[:, env.stop] -= 1.2
    return prior


def learned(env: Tokens, kind: type[OnPolicy[Any]], steps: int = 1000) -> Tabular[Any]:
    """A policy that starts as the prior and is trained at α = 1, K = 32."""
    prior = rarely_ending(env)
    policy = Tabular(env, env.forward_mask, prior.logits.detach().clone())
    objective = Objective(policy, Prior(prior), Alpha(1.0), DevGrad())
    sampler = kind(env, policy, batch_size=128, group_size=32, seed=0)
    Trainer(objective, sampler, steps=steps, lr=Linear(0.05, 0.005, steps)).run()
    return policy


def distance_and_cut(policy: Tabular[Any]) -> tuple[float, float, float, float]:
    """TV to the target, and the share that is cut: of the policy, of the target and of the prior, mean over prompts."""
    env = Tokens(Sums(), **SETTINGS)
    graph, prior = exact.state_graph(env), rarely_ending(env)
    log_prior = exact.log_terminal(graph, prior)
    graph = replace(graph, log_reward=graph.log_reward + log_prior)
    log_p, final = exact.log_terminal(graph, policy), graph.states[graph.terminal]
    here = [final.prompt == x for x in range(4)]
    tv = sum(metrics.total_variation(log_p[x], graph.log_target[x]) for x in here) / 4
    cut = ~env.is_stopped(final)
    return tv, *(float(x.exp()[cut].sum()) / 4 for x in (log_p, graph.log_target, log_prior))


@pytest.mark.parametrize("more", [-2.0, 2.0])
def test_a_loss_without_what_was_cut_says_nothing_of_its_share(more: float) -> None:
    """It is zero at policies that cut too often or too seldom, where the loss of all sequences is not."""
    env = Tokens(Sums(), **SETTINGS)
    prior, graph = rarely_ending(env), exact.state_graph(env)
    cut = ~env.is_stopped(graph.states[graph.terminal])
    log_prior = exact.edge_log_pf(graph, prior)
    value = exact.log_flows(replace(graph, log_reward=graph.log_reward + more * cut), log_prior)
    logits = torch.zeros(graph.n, env.n_actions, dtype=torch.float64).index_put(
        (graph.source, graph.action), value[graph.target] + log_prior - value[graph.source]
    )
    policy = Tabular(env, env.forward_mask, logits)
    share = distance_and_cut(policy)
    assert (share[1] - share[2]) * more > 0.2
    objective = Objective(policy, Prior(prior), Alpha(1.0), DevGrad())
    t = OnPolicy(env, prior, batch_size=128, group_size=32)(0)
    kept = t[env.is_stopped(t.final)]
    assert 16 < len(kept) < 112
    assert abs(float(objective(kept)[0].detach())) < 1e-20
    assert float(objective(t)[0].detach()) > 0.1


@pytest.mark.slow
def test_only_as_an_object_of_its_own_does_a_cut_keep_its_share() -> None:
    """What is left out of the loss is free to keep the share that it had, and what counts as ended gains."""
    ours = distance_and_cut(learned(Tokens(Sums(), **SETTINGS), OnPolicy))
    dropped = distance_and_cut(learned(Tokens(Sums(), **SETTINGS), Dropped))
    rewarded = distance_and_cut(learned(Rewarded(Sums(), **SETTINGS), OnPolicy))
    print(ours, dropped, rewarded)
    tv, cut, target, prior = ours
    assert tv < 0.06
    assert abs(cut - target) < 0.02
    assert prior - target > 0.3
    assert dropped[0] > 0.3
    assert dropped[1] - target > 0.3
    assert rewarded[0] > 0.7
    assert rewarded[1] > prior + 0.1
