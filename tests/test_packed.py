"""Quicker ways to sample and to score: copies of weights, parts of similar length, and log-probabilities in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.tokens import language_model, next_token, packed
from envs.tokens.language_model import LanguageModel, of_similar_length
from envs.tokens.next_token import NextToken
from envs.tokens.packed import Packed, worthwhile
from envs.tokens.pretrained import with_lora
from gfn.trajectories import Trajectories
from tests.test_language_model import assert_scored, counted, sampled
from tests.tiny_models import FAMILIES, completing, llama, read_alone

TOKENS = torch.arange(12).view(2, 6)
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def adapted(seed: int = 0, **settings: Any) -> Any:
    """A model with adapters that change what it says."""
    model = with_lora(llama(seed), **{"rank": 2, "alpha": 3.0, **settings})
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, 0.0, 0.3, generator=torch.Generator().manual_seed(1))
    return model


@torch.no_grad()
def said(model: Any, tokens: Tensor = TOKENS) -> Tensor:
    return model(input_ids=tokens).logits


def unlike(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) > 0.1


@pytest.mark.parametrize("name", FAMILIES)
def test_copies_say_the_same(name: str) -> None:
    model = FAMILIES[name]().eval()
    expected, before = said(model), {k: p.clone() for k, p in model.state_dict().items()}
    with torch.no_grad():
        copies = Packed(model)
    with copies.in_use():
        torch.testing.assert_close(said(model), expected, **CLOSE)
        replaced = sum("forward" in vars(module) for module in model.modules())
        assert replaced == sum(type(module) is torch.nn.Linear for module in model.modules()) > 0
    assert not any("forward" in vars(module) for module in model.modules())
    assert said(model).equal(expected)
    assert all(p.equal(before[k]) for k, p in model.state_dict().items())


def test_copies_stay_as_they_were_made() -> None:
    model = llama()
    expected = said(model)
    with torch.no_grad():
        copies = Packed(model)
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.weight.mul_(2.0)
    assert unlike(said(model), expected)
    with copies.in_use():
        torch.testing.assert_close(said(model), expected, **CLOSE)


def test_adapters_are_merged_in_the_copy_alone() -> None:
    model = adapted()
    before = {k: p.clone() for k, p in model.state_dict().items()}
    expected = said(model)
    with torch.no_grad():
        copies = Packed(model)
        with model.disable_adapter():
            plain, without = said(model), Packed(model)
    assert unlike(plain, expected)
    assert plain.equal(said(llama()))
    for made, said_then in ((copies, expected), (without, plain)):
        with made.in_use():
            torch.testing.assert_close(said(model), said_then, **CLOSE)
    assert not any(getattr(module, "merged", False) for module in model.modules())
    assert all(p.equal(before[k]) for k, p in model.state_dict().items())


def test_adapters_that_are_no_sum_of_products_are_left_to_themselves() -> None:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], use_dora=True, init_lora_weights=False)
    model = get_peft_model(llama(), settings).eval()
    expected = said(model)
    with torch.no_grad():
        copies = Packed(model)
    with copies.in_use():
        torch.testing.assert_close(said(model), expected, **CLOSE)
        assert not any("forward" in vars(m) for name, m in model.named_modules() if "q_proj" in name)
        assert any("forward" in vars(m) for name, m in model.named_modules() if name.endswith("k_proj"))


def test_an_error_leaves_the_model_as_it_was() -> None:
    model = llama()
    with torch.no_grad():
        copies = Packed(model)
    with pytest.raises(KeyError), copies.in_use():
        raise KeyError
    assert not any("forward" in vars(module) for module in model.modules())


def test_when_copies_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama()
    with torch.no_grad():
        assert not worthwhile(model)
        monkeypatch.setattr(packed, "LARGE", 1000)
        assert worthwhile(model)
        assert not worthwhile(llama().double())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not worthwhile(model)
    assert not worthwhile(model)


@pytest.mark.parametrize("lora", [False, True])
def test_long_rollouts_use_copies_and_draw_the_same(lora: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    env = completing(max_tokens=16, min_tokens=6)
    policy = LanguageModel(env, adapted() if lora else llama())
    made, plain = list[Packed](), sampled(env, policy)
    monkeypatch.setattr(packed, "LARGE", 1000)
    monkeypatch.setattr(language_model, "Packed", lambda model: made.append(Packed(model)) or made[-1])
    t = sampled(env, policy)
    assert len(made) == 1
    assert t.actions.equal(plain.actions)
    torch.testing.assert_close(t.behaviour_log_prob, plain.behaviour_log_prob, **CLOSE)
    assert not t.behaviour_log_prob.equal(plain.behaviour_log_prob)  # they were in use
    assert_scored(env, policy, t)
    short = completing(max_tokens=11)
    sampled(short, LanguageModel(short, llama()))
    assert len(made) == 1


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([3, 3, 3], [[3, 3, 3]]),
        ([0, 64, 0], [[64]]),
        ([64, 63] * 30, [[64, 63] * 30]),
        ([10, 200, 9, 11, 190], [[200, 190], [11, 10, 9]]),
        ([65, 0], [[65]]),
        ([64, 0], [[64, 0]]),
    ],
)
def test_parts_waste_little(lengths: list[int], expected: list[list[int]]) -> None:
    parts = of_similar_length(torch.tensor(lengths))
    assert [torch.tensor(lengths)[part].tolist() for part in parts] == expected
    rows = torch.cat(parts).tolist()
    assert len(rows) == len(set(rows))
    assert len(parts) > 1 or rows == list(range(len(lengths))) or 0 in lengths


@pytest.mark.parametrize("name", FAMILIES)
def test_parts_are_scored_as_each_text_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their gradients, and however many parts there are."""
    monkeypatch.setattr(language_model, "PASS", 0)
    env = completing()
    policy = LanguageModel(env, FAMILIES[name]())
    t = sampled(env, policy, each=6)
    with counted(policy) as (read, _):
        assert_scored(env, policy, t)
    parts = [columns for rows, columns in read if columns < 5]
    assert {1, 2} < set(parts)  # one pass for each length
    weight = torch.randn(len(t.actions), generator=torch.Generator().manual_seed(1))
    found, expected = (
        torch.autograd.grad((weight * log_p).sum(), list(policy.parameters()))
        for log_p in (policy.log_prob(t), read_alone(env, policy.model, t))
    )
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cached", [1, 14, 100])
def test_log_probabilities_in_pieces(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_token, "CACHED", cached)
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()
    actions = torch.tensor([0, 6, 3, 3, 1])
    torch.testing.assert_close(
        NextToken(logits).log_prob(actions), logits.log_softmax(1)[torch.arange(5), actions], atol=1e-12, rtol=0
    )
    assert torch.autograd.gradcheck(lambda x: NextToken(x).log_prob(actions), logits)


def test_those_that_end_at_once_beside_a_part_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part is left then, and it is not the whole batch."""
    env = completing()
    policy = LanguageModel(env, FAMILIES["llama"]())
    t = sampled(env, policy, each=40)
    shortest, longest = t[t.lengths == 1], t[t.lengths == int(t.lengths.max())]
    both = Trajectories.cat([longest, shortest, longest])
    assert len(shortest) > 2
    monkeypatch.setattr(language_model, "PASS", 0)
    assert [len(part) for part in of_similar_length(both.lengths - 1)] == [2 * len(longest)]
    assert_scored(env, policy, both)
