"""The model as it was, as prior: with adapters it shares all weights, without them it is a copy; and checkpoints."""

from __future__ import annotations

import io
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch

from envs.tokens.language_model import LanguageModel, Unadapted, reference
from envs.tokens.pretrained import with_lora
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.objectives.parts import backward_in_parts
from gfn.sampling import rollout
from tests.test_language_model import Uncached, sampled
from tests.tiny_models import completing, gpt2, llama, read_alone

ENV = completing()
MAKES: dict[str, Callable[..., Any]] = {
    "full llama": llama,
    "full gpt2": gpt2,
    "lora llama": lambda seed=0, **settings: with_lora(llama(seed, **settings), rank=2),
    "lora tied": lambda seed=0: with_lora(llama(seed, tie_word_embeddings=True), rank=2),
    "lora gpt2": lambda seed=0: with_lora(gpt2(seed), rank=2),
}
ADAPTED = [name for name in MAKES if name.startswith("lora")]


def trained(policy: LanguageModel, prior: Any) -> Objective[Any]:
    """After an update on samples of its own."""
    objective = Objective(policy, prior, Alpha(0.5), DevGrad())
    optimiser = torch.optim.AdamW([p for p in objective.parameters() if p.requires_grad], lr=0.03)
    backward_in_parts(objective, sampled(ENV, policy), 0, 5)
    optimiser.step()
    optimiser.zero_grad()
    return objective


def checkpointed(module: torch.nn.Module) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("remember", [0, 1000])
@pytest.mark.parametrize("name", MAKES)
def test_before_training_policy_and_reference_are_the_same_to_the_bit(name: str, remember: int) -> None:
    policy = LanguageModel(ENV, MAKES[name]())
    prior = reference(policy, remember=remember)
    t = sampled(ENV, policy, each=1)
    distinct = t[torch.tensor([0, 1, 3])]
    assert policy.log_prob(distinct).equal(prior.log_prob_backward(distinct))
    objective = Objective(policy, prior, Alpha(1.0), DevGrad())
    assert objective.scores(distinct).excess.equal(-distinct.log_reward)


@pytest.mark.parametrize("name", MAKES)
def test_training_leaves_the_reference_as_it_was(name: str) -> None:
    """To the bit: what it says of given trajectories, and the weights that it says it by."""
    policy = LanguageModel(ENV, MAKES[name]())
    prior = reference(policy, remember=0)
    t = sampled(ENV, policy)
    before, first = prior.log_prob_backward(t), policy.log_prob(t).detach()
    frozen = {k: p.detach().clone() for k, p in policy.named_parameters() if not p.requires_grad}
    trained(policy, prior)
    assert prior.log_prob_backward(t).equal(before)
    assert (policy.log_prob(t) - first).abs().max() > 0.01
    assert all(p.equal(frozen[k]) for k, p in policy.named_parameters() if not p.requires_grad)
    with torch.no_grad():
        original = MAKES[name.replace("lora", "full")]() if "tied" not in name else llama(tie_word_embeddings=True)
        torch.testing.assert_close(before, read_alone(ENV, original.eval(), t), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MAKES)
def test_what_is_shared_and_what_is_copied(name: str) -> None:
    policy = LanguageModel(ENV, MAKES[name]())
    prior = reference(policy)
    ours = {p.data_ptr() for p in policy.parameters()}
    assert ours.isdisjoint(p.data_ptr() for p in prior.parameters())
    assert not any(p.requires_grad for p in prior.parameters())
    t = sampled(ENV, policy)
    before = prior.prior.log_prob(t).detach()
    with torch.no_grad():
        policy.model.get_input_embeddings().weight.mul_(1.5)
    changed = not prior.prior.log_prob(t).equal(before)
    assert changed == isinstance(prior.prior, Unadapted) == (name in ADAPTED)
    assert len(list(prior.parameters())) == (0 if name in ADAPTED else len(list(policy.parameters())))
    assert [group.name for group in Objective(policy, prior, Alpha(1.0), DevGrad()).parameter_groups()] == ["policy"]


@pytest.mark.parametrize("name", ADAPTED)
def test_the_reference_samples_without_adapters_and_leaves_them_on(name: str) -> None:
    """Step by step, between steps of the policy, as an evaluation of both would."""
    policy = LanguageModel(ENV, MAKES[name]())
    plain = LanguageModel(ENV, deepcopy(policy).model)
    prior = reference(policy).prior
    trained(policy, reference(policy))
    t, expected = sampled(ENV, prior, seed=5), sampled(ENV, plain, seed=5)
    assert t.actions.equal(expected.actions)
    torch.testing.assert_close(t.behaviour_log_prob, expected.behaviour_log_prob, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        prior.distribution(t.sources).log_prob(t.actions), prior.log_prob(t), atol=1e-5, rtol=1e-5
    )
    adapted = sampled(ENV, policy, seed=5)
    with torch.no_grad():
        torch.testing.assert_close(policy.log_prob(adapted), adapted.behaviour_log_prob, atol=1e-5, rtol=1e-5)
        assert (policy.log_prob(adapted) - prior.log_prob(adapted)).abs().max() > 0.01
    uncached = sampled(ENV, Uncached(ENV, policy.model), seed=5)
    assert uncached.actions.equal(adapted.actions)


def test_gradients_reach_adapters_and_nothing_else() -> None:
    policy = LanguageModel(ENV, MAKES["lora llama"]())
    t = rollout(ENV, policy, ENV.reset(8, torch.Generator().manual_seed(0)))
    policy.log_prob(t).sum().backward()
    assert all(p.grad is None for k, p in policy.named_parameters() if "lora_" not in k)
    assert all(p.grad.abs().sum() > 0 for k, p in policy.named_parameters() if "lora_B" in k)


@pytest.mark.parametrize("name", ADAPTED)
def test_checkpoints_hold_what_is_trained_and_a_checksum(name: str) -> None:
    policy = LanguageModel(ENV, MAKES[name]())
    objective = trained(policy, reference(policy))
    state = checkpointed(objective)
    weights = {k for k in state if "extra_state" not in k}
    trainable = {f"policy.{k}" for k, p in policy.named_parameters() if p.requires_grad}
    assert weights == trainable | {"policy.frozen"}
    again = LanguageModel(ENV, MAKES[name]())
    resumed = Objective(again, reference(again), Alpha(0.5), DevGrad())
    assert not resumed.load_state_dict(state).missing_keys
    for (k, ours), (_, theirs) in zip(again.named_parameters(), policy.named_parameters(), strict=True):
        assert ours.equal(theirs), k
    t = sampled(ENV, policy, seed=9)
    assert again.log_prob(t).equal(policy.log_prob(t))
    assert resumed.backward_policy.log_prob_backward(t).equal(objective.backward_policy.log_prob_backward(t))
    assert checkpointed(resumed)["policy.frozen"].equal(state["policy.frozen"])


def test_checkpoints_of_other_frozen_weights_are_refused() -> None:
    """Also if they differ in one bit of one weight; and whether or not a checkpoint was ever written before."""
    state = checkpointed(LanguageModel(ENV, MAKES["lora llama"]()))
    other = MAKES["lora llama"]()
    weight = other.base_model.model.model.layers[1].mlp.up_proj.base_layer.weight
    weight.data[0, 0] = torch.nextafter(weight.data[0, 0], torch.tensor(9.0))
    for model in (MAKES["lora llama"](seed=1), other):
        policy = LanguageModel(ENV, model)
        with pytest.raises(ValueError, match="the frozen weights are not those this checkpoint was trained on; give"):
            policy.load_state_dict(state)
        policy.state_dict()
        with pytest.raises(ValueError, match="the frozen weights are not those"):
            policy.load_state_dict(state)
    LanguageModel(ENV, MAKES["lora llama"]()).load_state_dict(state)


@pytest.mark.parametrize("name", ["full llama", "full gpt2"])
def test_checkpoints_of_a_whole_model_hold_both(name: str) -> None:
    policy = LanguageModel(ENV, MAKES[name]())
    objective = trained(policy, reference(policy))
    again = LanguageModel(ENV, MAKES[name](seed=1))
    resumed = Objective(again, reference(again), Alpha(0.5), DevGrad())
    resumed.load_state_dict(checkpointed(objective))
    t = sampled(ENV, policy, seed=9)
    assert again.log_prob(t).equal(policy.log_prob(t))
    assert resumed.backward_policy.log_prob_backward(t).equal(objective.backward_policy.log_prob_backward(t))
    assert "policy.frozen" not in objective.state_dict()
    assert not any("prompts" in name for name in objective.state_dict())
