"""Language models as policies: scores are those of each text read alone, whatever the batch; no work is done twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.tasks import Sums
from gfn import exact
from gfn.exploration import EpsilonUniform, Tempered
from gfn.policies import Policy
from gfn.sampling import rollout
from gfn.trajectories import Trajectories
from tests.tiny_models import FAMILIES, VOCABULARY, completing, gpt2, llama, read_alone


class Uncached(LanguageModel):
    """Reads everything anew at every step."""

    stepper = Policy.stepper


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def starts(env: Tokens, each: int = 4) -> Sequences:
    """Every prompt so many times, mixed."""
    n = len(env.task.prompts)
    return Sequences(torch.arange(n).repeat(each), torch.full((n * each, env.max_steps), EMPTY))


def sampled(env: Tokens, policy: Policy[Any], seed: int = 0, each: int = 4, **settings: Any) -> Trajectories[Any]:
    return rollout(env, policy, starts(env, each), generator=seeded(seed), **settings)


def probabilities(policy: LanguageModel, states: Sequences) -> Tensor:
    """Of every token in each state, ``[N, V]``."""
    p = policy.distribution(states)
    each = [p.log_prob(torch.full((len(states),), token)) for token in range(VOCABULARY)]
    return torch.stack(each, 1).exp()


def assert_scored(env: Tokens, policy: LanguageModel, t: Trajectories[Sequences]) -> None:
    """Scores in one pass, in the cached rollout, state by state and of each text alone are the same."""
    with torch.no_grad():
        expected = read_alone(env, policy.model, t, policy.temperature)
        close = {"atol": 1e-5, "rtol": 1e-5}
        torch.testing.assert_close(policy.log_prob(t), expected, **close)
        torch.testing.assert_close(t.behaviour_log_prob, expected, **close)
        torch.testing.assert_close(policy.distribution(t.sources).log_prob(t.actions), expected, **close)


@contextmanager
def counted(policy: LanguageModel) -> Iterator[tuple[list[tuple[int, int]], list[int]]]:
    """Rows and columns that the model reads at each call, and how many places its output head is applied to."""
    read, predicted = list[tuple[int, int]](), list[int]()
    model: Any = policy.model
    hooks = [
        model.register_forward_pre_hook(
            lambda _, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        ),
        model.get_output_embeddings().register_forward_hook(
            lambda head, args, output: predicted.append(output.numel() // output.shape[-1])
        ),
    ]
    yield read, predicted
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_scored_as_each_text_alone(name: str) -> None:
    env = completing()
    policy = LanguageModel(env, FAMILIES[name]())
    t = sampled(env, policy, each=12)
    assert len(set(t.lengths.tolist())) >= 4  # unequal, so that there is padding on both sides
    assert not bool(env.is_stopped(t.final).all())
    assert_scored(env, policy, t)
    other = policy.log_prob(replace(t, states=Sequences((t.states.prompt + 1) % 4, t.states.tokens)))
    assert (other - policy.log_prob(t)).abs().max() > 0.3  # prompts are read at all


@pytest.mark.parametrize("name", FAMILIES)
def test_with_and_without_a_cache_the_same_is_drawn(name: str) -> None:
    env, model = completing(max_tokens=8), FAMILIES[name]()
    for seed in range(3):
        cached, plain = (sampled(env, kind(env, model), seed) for kind in (LanguageModel, Uncached))
        assert cached.actions.equal(plain.actions)
        assert cached.lengths.equal(plain.lengths)
        torch.testing.assert_close(cached.behaviour_log_prob, plain.behaviour_log_prob, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_are_those_of_each_text_alone(name: str) -> None:
    env = completing()
    policy = LanguageModel(env, FAMILIES[name]())
    t = sampled(env, policy)
    weight = torch.randn(len(t.actions), generator=seeded(1)) / len(t.actions)

    def gradients(log_p: Tensor) -> dict[str, Tensor]:
        policy.zero_grad()
        (weight * log_p).sum().backward()
        return {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in policy.named_parameters()}

    found, expected = gradients(policy.log_prob(t)), gradients(read_alone(env, policy.model, t))
    assert all(float(g.abs().max()) > 1e-4 for k, g in expected.items() if "k_proj.bias" not in k)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pad", [2, 0, None])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_token_for_padding_plays_no_part(name: str, pad: int | None) -> None:
    """Also where it is that of the end and the stop token; a completion of nothing but the end is scored by it."""
    env = completing()
    policy = LanguageModel(env, FAMILIES[name](pad_token_id=pad))
    prompt = torch.arange(4).repeat_interleave(2)
    tokens = torch.tensor([[2, EMPTY, EMPTY, EMPTY, EMPTY], [0, 3, 0, 2, EMPTY]]).repeat(4, 1)
    lengths = torch.tensor([1, 4]).repeat(4)
    t = written(env, prompt, tokens, lengths)
    with torch.no_grad():
        torch.testing.assert_close(policy.log_prob(t), read_alone(env, policy.model, t), atol=1e-5, rtol=1e-5)
        end = policy.log_prob(t[lengths == 1])
        for x, value in zip(env.task.prompts, end, strict=True):
            at_last = policy.model(input_ids=torch.tensor([x])).logits[0, -1].log_softmax(0)
            assert float(value) == pytest.approx(float(at_last[2]), abs=1e-5)


def written(env: Tokens, prompt: Tensor, tokens: Tensor, lengths: Tensor) -> Trajectories[Sequences]:
    """The trajectories that write these sequences."""
    n, width = tokens.shape
    upto = torch.arange(width) < torch.arange(width + 1).unsqueeze(1)
    states = [Sequences(prompt[i].expand(k + 1), tokens[i].where(upto[: k + 1], EMPTY)) for i, k in enumerate(lengths)]
    final = Sequences(prompt, tokens)
    return Trajectories(
        states=Sequences.cat(states),
        actions=tokens[tokens != EMPTY],
        lengths=lengths,
        log_reward=env.log_reward(final),
        group=prompt,
        behaviour_log_prob=torch.zeros(int(lengths.sum())),
        policy_version=torch.zeros(n, dtype=torch.long),
    )


@pytest.mark.parametrize("stop_ids", [(2, 7), (11, 0, 5)])
@pytest.mark.parametrize(("min_tokens", "temperature"), [(0, 1.0), (2, 1.0), (0, 0.7), (3, 0.7)])
def test_stops_the_shortest_and_the_temperature(stop_ids: tuple[int, ...], min_tokens: int, temperature: float) -> None:
    """Stop tokens are merged into the first, and left out with all others raised where it is too early for them."""
    env = completing(max_tokens=6, min_tokens=min_tokens, stop_ids=stop_ids)
    policy = LanguageModel(env, llama(), temperature)
    t = sampled(env, policy, each=10)
    stopped = env.is_stopped(t.final)
    assert int(t.lengths.min()) == min_tokens + 1
    assert 0 < int(stopped.sum()) < len(t)
    assert t.lengths[~stopped].eq(6).all()
    assert not torch.isin(t.actions, torch.tensor(stop_ids[1:])).any()
    assert_scored(env, policy, t)
    every = probabilities(policy, t.sources)
    torch.testing.assert_close(every.sum(1), torch.ones(len(every)))
    assert every.gt(0).equal(env.forward_mask(t.sources))


def test_completions_of_one_token_and_of_the_longest() -> None:
    """With one token for all there is nothing to read but prompts; at the limit no end is counted."""
    one = completing(max_tokens=1)
    policy = LanguageModel(one, llama())
    t = sampled(one, policy)
    assert_scored(one, policy, t)
    with counted(policy) as (read, predicted):
        policy.log_prob(t)
    assert (read, predicted) == ([(4, 6)], [4])
    longest = completing(max_tokens=3, stop_ids=(0,))
    policy = LanguageModel(longest, llama())
    t = written(longest, torch.arange(4), torch.tensor([[3, 3, 3]]).expand(4, 3), torch.full((4,), 3))
    assert policy.log_prob(t).shape == (12,)
    torch.testing.assert_close(policy.log_prob(t), read_alone(longest, policy.model, t), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_no_work_is_done_twice(name: str) -> None:
    """Prompts are read once each, ended rows leave the batch, and the head sees places where a token is predicted."""
    env = completing(max_tokens=6)
    policy = LanguageModel(env, FAMILIES[name]())
    with counted(policy) as (read, predicted):
        t = sampled(env, policy, each=6)
    alive = [int((t.lengths > k).sum()) for k in range(1, int(t.lengths.max()))]
    assert len(set(alive)) > 2
    assert read == [(4, 6), *((rows, 1) for rows in alive)]
    assert sum(rows for rows, _ in read) == 4 + int(t.lengths.sum()) - len(t)
    assert predicted == [4, *alive]
    with counted(policy) as (read, predicted):
        policy.log_prob(t)
    assert read == [(4, 6), (24, int(t.lengths.max()) - 1)]
    assert sum(predicted) == 4 + int(t.lengths.sum()) - len(t)
    only = t[t.initial.prompt == 2]
    with counted(policy) as (read, predicted):
        policy.log_prob(only)
    assert read[0][0] == predicted[0] == 1


def test_dropout_stays_off() -> None:
    env = completing()
    policy = LanguageModel(env, gpt2(attn_pdrop=0.1, resid_pdrop=0.1, embd_pdrop=0.1))
    t = sampled(env, policy)
    first = policy.log_prob(t)
    assert policy.train() is policy
    torch.nn.ModuleList([policy]).train()
    assert policy.log_prob(t).equal(first)
    assert not any(module.training for module in policy.modules())


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_order_of_a_batch_does_not_matter(name: str) -> None:
    env = completing()
    policy = LanguageModel(env, FAMILIES[name]())
    t = sampled(env, policy)
    order = torch.randperm(len(t), generator=seeded(3))
    rows = t.pad(policy.log_prob(t).detach())[order]
    torch.testing.assert_close(t[order].pad(policy.log_prob(t[order]).detach()), rows, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("explore", [Tempered(3.0), EpsilonUniform(0.5), EpsilonUniform(1.0)])
def test_exploration_changes_what_is_drawn_and_not_the_score(explore: Any) -> None:
    """Tokens that are not allowed stay so; stop tokens are one action in being drawn uniformly or tempered."""
    env = completing(max_tokens=6, min_tokens=1, stop_ids=(2, 7))
    policy = LanguageModel(env, llama(), temperature=0.7)
    t = sampled(env, policy, each=20, explore=lambda distribution: explore(distribution, 0))
    with torch.no_grad():
        torch.testing.assert_close(policy.log_prob(t), read_alone(env, policy.model, t, 0.7), atol=1e-5, rtol=1e-5)
        p, allowed = probabilities(policy, t.sources), env.forward_mask(t.sources)
    if isinstance(explore, Tempered):
        drawn = p.pow(1 / 3) / p.pow(1 / 3).sum(1, keepdim=True)
    else:
        drawn = (1 - explore.epsilon) * p + explore.epsilon * allowed / allowed.sum(1, keepdim=True)
    expected = drawn.gather(1, t.actions.unsqueeze(1)).squeeze(1).log()
    torch.testing.assert_close(t.behaviour_log_prob, expected, atol=1e-5, rtol=1e-5)
    assert (expected - policy.log_prob(t).detach()).abs().max() > 0.3


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("name", "tolerance"), [("llama", 1e-6), ("gemma3", 1e-6), ("gpt2", 1e-9)])
def test_all_that_can_be_written_has_probability_one(name: str, tolerance: float) -> None:
    """What ends and what the limit cuts, over every sequence, by the states and by the sequences."""
    env = Tokens(Sums(3), max_tokens=3, listed=True)
    special = {"vocab_size": 4, "bos_token_id": 0, "eos_token_id": 3, "pad_token_id": 3}
    policy = LanguageModel(env, FAMILIES[name](**special)).double()
    graph = exact.state_graph(env)
    t = exact.all_trajectories(graph)
    assert len(t) == len(graph.terminal) == 3 * (1 + 3 + 9 + 27)
    by_state = exact.log_terminal(graph, policy)
    with torch.no_grad():
        by_sequence = t.pad(policy.log_prob(t)).sum(1)
    ended = env.is_stopped(graph.states[graph.terminal])
    for x in range(3):
        here = graph.states[graph.terminal].prompt == x
        assert float(by_state[here].exp().sum()) == pytest.approx(1.0, abs=1e-9)  # one softmax a state
        assert float(by_sequence[t.initial.prompt == x].exp().sum()) == pytest.approx(1.0, abs=tolerance)
        assert 0.05 < float(by_state[here & ended].exp().sum()) < 0.95
    order = torch.searchsorted(graph.terminal, env.index(t.final))
    torch.testing.assert_close(by_sequence, by_state[order], atol=10 * tolerance, rtol=0)


def test_weights_of_less_precision_are_normalised_in_float32() -> None:
    env = completing(stop_ids=(2, 7), min_tokens=1)
    policy = LanguageModel(env, llama().to(torch.bfloat16))
    t = sampled(env, policy)
    assert policy.log_prob(t).dtype == t.behaviour_log_prob.dtype == torch.float32
    torch.testing.assert_close(probabilities(policy, t.sources).sum(1), torch.ones(len(t.actions)), atol=1e-6, rtol=0)


def test_models_that_do_not_fit_are_refused() -> None:
    env = completing()
    assert LanguageModel(env, llama(max_position_embeddings=11)).temperature == 1.0
    for settings, message in (
        ({"vocab_size": 13}, "the model predicts 13 tokens and the task has 12"),
        ({"max_position_embeddings": 10}, "longest prompt has 6 tokens and with env.max_tokens=5 .* context of 10"),
    ):
        with pytest.raises(ValueError, match=message):
            LanguageModel(env, llama(**settings))
    with pytest.raises(ValueError, match=r"prompt 1 has no tokens, .* begin it with the tokenizer's first token"):
        LanguageModel(completing(prompts=((3,), (), (4, 5))), llama())
    with pytest.raises(ValueError, match="a prompt has token 12, and the model knows those below 12"):
        LanguageModel(completing(prompts=((3,), (12, 4))), llama())
    for temperature in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"temperature must be positive, got {temperature}"):
            LanguageModel(env, llama(), temperature)
