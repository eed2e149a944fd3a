"""The generic policies: what they share, what they allow, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from envs.hypergrid import Hypergrid
from gfn.flows import MLPFlow
from gfn.policies import (
    CertainBackward,
    MLPBackward,
    MLPPolicy,
    Prior,
    Tabular,
    Trunk,
    Uniform,
    UniformBackward,
)
from gfn.sampling import rollout
from tests.toy_environments import Words


def test_a_learned_policy_is_a_perceptron_on_features_behind_a_mask() -> None:
    env = Hypergrid(3, 2)
    policy = MLPPolicy(env, width=5, depth=3)
    states = env.enumerate()[:9]
    features = env.encode(states)
    for layer in policy.trunk.layers:
        features = (features @ layer[0].weight.T + layer[0].bias).relu()
    logits = features @ policy.head.weight.T + policy.head.bias
    assert len(policy.trunk.layers) == 3
    assert features.shape == (9, 5)
    assert torch.allclose(policy.distribution(states).logits, logits)
    assert policy.distribution(states).mask.equal(env.forward_mask(states))


@pytest.mark.parametrize(("width", "depth"), [(0, 2), (8, 0)])
def test_a_trunk_has_width_and_depth(width: int, depth: int) -> None:
    with pytest.raises(ValueError, match=f"must be at least 1, got width={width} depth={depth}"):
        Trunk(Hypergrid(3, 2), width, depth)


def test_the_smallest_trunk_is_one_layer_of_one_unit() -> None:
    env = Hypergrid(3, 2)
    assert Trunk(env, 1, 1)(env.reset(4)).shape == (4, 1)


def test_features_are_brought_to_the_dtype_of_the_weights() -> None:
    env = Hypergrid(3, 2)
    policy = MLPPolicy(env, width=4).double()
    assert policy.distribution(env.reset(1)).logits.dtype == torch.float64


@pytest.mark.parametrize("kind", [MLPBackward, MLPFlow])
def test_a_tied_head_shares_the_trunk_and_another_does_not(kind) -> None:
    env = Hypergrid(3, 2)
    policy = MLPPolicy(env, width=5, depth=3)
    tied, apart = kind(env, policy, tied=True), kind(env, policy, tied=False)
    assert tied.trunk is policy.trunk
    ours = {id(parameter) for parameter in policy.parameters()}
    assert not ours & {id(parameter) for parameter in apart.parameters()}
    assert [p.shape for p in apart.trunk.parameters()] == [p.shape for p in policy.trunk.parameters()]


def test_a_backward_policy_allows_what_leads_into_a_state() -> None:
    env = Hypergrid(3, 2)
    states = env.enumerate()[1:]
    for backward in (MLPBackward(env, MLPPolicy(env, width=4)), UniformBackward(env)):
        assert backward.distribution(states).mask.equal(env.backward_mask(states))


def test_uniform_policies_weigh_every_edge_alike() -> None:
    env = Hypergrid(3, 2)
    states = env.enumerate()[:9]
    probabilities = Uniform(env.forward_mask).distribution(states).log_probs.exp()
    count = env.forward_mask(states).sum(1, keepdim=True)
    assert torch.allclose(probabilities, env.forward_mask(states) / count)
    assert torch.allclose(
        UniformBackward(env).distribution(states[1:]).log_probs.exp(),
        env.backward_mask(states[1:]) / env.backward_mask(states[1:]).sum(1, keepdim=True),
    )


@pytest.mark.usefixtures("float64")
def test_uniform_policies_follow_the_default_dtype() -> None:
    env = Hypergrid(3, 2)
    assert Uniform(env.forward_mask).distribution(env.reset(1)).log_probs.dtype == torch.float64


def test_the_certain_policy_of_a_tree_knows_the_one_way_back() -> None:
    env = Words(letters=2, length=3)
    written = torch.tensor([[0, -1, -1], [1, 2, -1], [0, 0, 1]])
    assert CertainBackward(env).distribution(written).sample().tolist() == [0, 2, 1]


def test_the_certain_policy_refuses_several_ways_back() -> None:
    env = Hypergrid(3, 2)
    states = env.step(env.step(env.reset(2), torch.tensor([0, 0])), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="2 edges lead into state 1 1, expected 1; use UniformBackward or MLPBackward"):
        CertainBackward(env).distribution(states)


def test_a_prior_scores_forward_steps_and_learns_nothing() -> None:
    env = Hypergrid(4, 2)
    reference = MLPPolicy(env, width=4)
    prior = Prior(reference)
    t = rollout(env, Uniform(env.forward_mask), env.reset(8))
    scores = prior.log_prob_backward(t)
    assert scores.equal(reference.log_prob(t))
    assert not scores.requires_grad
    assert not any(parameter.requires_grad for parameter in prior.parameters())
    with pytest.raises(TypeError, match="Prior scores forward steps and cannot sample backward"):
        prior.distribution(t.final)


@pytest.mark.parametrize("learned", [True, False])
def test_a_table_holds_one_logit_for_each_state_and_action(learned: bool) -> None:
    env = Hypergrid(3, 2)
    logits = torch.randn(18, 3)
    policy = Tabular(env, env.forward_mask, logits, learned=learned)
    states = env.enumerate()[torch.tensor([4, 0, 8])]
    wanted = logits[[4, 0, 8]].masked_fill(~env.forward_mask(states), -torch.inf).log_softmax(1)
    assert policy.distribution(states).log_probs.equal(wanted)
    assert [parameter.requires_grad for parameter in policy.parameters()] == [learned]


def test_a_flow_is_one_number_for_each_state() -> None:
    env = Hypergrid(3, 2)
    policy = MLPPolicy(env, width=4)
    flow = MLPFlow(env, policy, tied=True)
    states = env.enumerate()
    wanted = policy.trunk(states) @ flow.head.weight[0] + flow.head.bias
    assert torch.allclose(flow(states), wanted)


def test_policies_score_steps_by_the_state_they_leave_or_enter() -> None:
    env = Hypergrid(4, 2)
    policy = MLPPolicy(env, width=4)
    backward = MLPBackward(env, policy)
    t = rollout(env, policy, env.reset(8))
    for step in range(len(t.actions)):
        action = t.actions[step : step + 1]
        left, entered = t.sources[step : step + 1], t.targets[step : step + 1]
        assert torch.allclose(policy.log_prob(t)[step], policy.distribution(left).log_prob(action)[0], atol=1e-6)
        back = backward.distribution(entered).log_prob(action)[0]
        assert torch.allclose(backward.log_prob_backward(t)[step], back, atol=1e-6)


def test_prior_is_a_copy_that_training_leaves_alone() -> None:
    env = Hypergrid(3)
    policy = MLPPolicy(env, 4)
    prior = Prior(policy)
    assert all(p.requires_grad for p in policy.parameters())
    assert not any(p.requires_grad for p in prior.parameters())
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    assert not torch.equal(next(policy.parameters()), next(prior.parameters()))
