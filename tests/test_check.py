"""Sound environments and policies of every kind keep the contract, and all its clauses are examined."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Hypergrid, UserReward
from gfn.check import ContractError, check_environment, check_policy
from gfn.exact import log_terminal, state_graph
from gfn.policies import CertainBackward, MLPBackward, MLPPolicy, Uniform, UniformBackward
from gfn.sampling import rollout
from tests.toy import Subsets
from tests.toy_environments import Bridge, Cook, Diffusion, Drift, Palindromes, Recipes, Texts, Uncook, Words

ANY = {
    "reset", "states", "describe", "is_initial", "is_terminal", "forward rollout", "step", "undo", "acyclic",
    "max_steps", "log_reward", "generator", "backward rollout",
}  # fmt: skip
DENSE = ANY | {"masks", "terminal", "encode", "forbidden", "backward edges"}
LISTED = {"index", "enumerate", "edges"}


@pytest.mark.parametrize(("side", "ndim"), [(8, 1), (2, 2), (8, 2), (5, 3), (4, 4)])
def test_a_hypergrid_keeps_every_clause(side: int, ndim: int) -> None:
    assert set(check_environment(Hypergrid(side, ndim))) == DENSE | LISTED | {"modes"}


def test_a_grid_too_large_to_list_is_examined_by_walking() -> None:
    assert set(check_environment(Hypergrid(20, 6), n=8)) == DENSE | {"modes"}


def test_an_environment_of_plain_tensors_keeps_every_clause() -> None:
    assert set(check_environment(Subsets(6, 3))) == DENSE | LISTED


def test_states_need_not_be_made_of_tensors() -> None:
    assert set(check_environment(Palindromes())) == DENSE


def test_states_that_hold_no_tensors_are_compared_row_by_row() -> None:
    class Forgetful(Palindromes):
        def undo(self, states, actions):
            return Texts([text.replace("bb", "ba") for text in super().undo(states, actions).texts])

    with pytest.raises(ContractError, match=r"^undo: .* came another state \[ba\] in state \[bb\] \("):
        check_environment(Forgetful())


def test_a_reward_of_zero_is_legal() -> None:
    check_environment(Hypergrid(4, 2, UserReward(lambda coords: (coords.sum(1) > 2).double())))


@pytest.mark.usefixtures("float64")
def test_a_hypergrid_keeps_every_clause_in_float64() -> None:
    env = Hypergrid(4, 2)
    assert env.encode(env.reset(1)).dtype == torch.float64
    check_environment(env)


def test_a_tree_keeps_every_clause_and_needs_no_backward_policy() -> None:
    env = Words()
    policy = MLPPolicy(env, width=8)
    assert set(check_environment(env, policy, CertainBackward(env))) == DENSE
    assert "normalised" in check_policy(CertainBackward(env), env, backward=True)
    assert "gradients" in check_policy(policy, env)


def test_hierarchical_actions_keep_every_clause() -> None:
    env = Recipes()
    cook, uncook = Cook(env), Uncook(env)
    assert set(check_environment(env, cook, uncook)) == ANY | LISTED | {"backward edges"}
    assert {"normalised", "gradients"} <= set(check_policy(cook, env))
    assert "gradients" in check_policy(uncook, env, backward=True, forward=cook)


def test_hierarchical_actions_have_an_exact_terminal_distribution() -> None:
    env = Recipes(size=2)
    cook = Cook(env)
    log_p = log_terminal(state_graph(env), cook)
    how = torch.log_softmax(cook.how, 1)
    two = cook.what[1:3].log_softmax(0)  # what to add by (1, ·) from nothing: 1 or 2
    serve_at_once = how[0, 0]
    # From 1 only (0, 0) and (1, 1) fit; from 2 only (0, 0).
    at_one = torch.log_softmax(cook.how[1, :2], 0)
    one = how[0, 1] + two[0] + at_one[0]
    both = torch.logsumexp(torch.stack([how[0, 1] + two[1], how[0, 2], how[0, 1] + two[0] + at_one[1]]), 0)
    wanted = torch.stack([serve_at_once, one, both]).double()
    assert torch.allclose(log_p, wanted, atol=1e-6)


def test_diffusion_keeps_every_clause() -> None:
    env = Diffusion()
    policy, bridge = Drift(env), Bridge()
    assert set(check_environment(env, policy, bridge)) == ANY
    assert "gradients" in check_policy(policy, env)
    assert "rescoring" in check_policy(bridge, env, backward=True, forward=policy)


def test_diffusion_weighs_trajectories_by_their_end_alone() -> None:
    """Without drift, log P_F(τ) − log P_B(τ|x) is the log-density of the end of a random walk."""
    env = Diffusion()
    policy, bridge = Drift(env), Bridge()
    t = rollout(env, policy, env.reset(64))
    forward = t.pad(policy.log_prob(t)).sum(1)
    backward = t.pad(bridge.log_prob_backward(t)).sum(1)
    walk = torch.distributions.Normal(0.0, 0.5 * env.max_steps**0.5)
    assert torch.allclose(forward - backward, walk.log_prob(t.final.x).sum(1), atol=1e-3)


def test_learned_policies_keep_every_clause() -> None:
    env = Hypergrid(4, 2)
    policy = MLPPolicy(env, width=8)
    clauses = ["distribution", "stepper", "rollout", "rows", "normalised", "rescoring"]
    assert check_policy(policy, env) == [*clauses, "gradients"]
    assert check_policy(MLPBackward(env, policy), env, backward=True, forward=policy) == [*clauses, "gradients"]
    assert check_policy(UniformBackward(env), env, backward=True) == clauses


def test_without_dense_masks_policies_must_be_given() -> None:
    with pytest.raises(TypeError, match=r"Recipes .* give it policy= and backward="):
        check_environment(Recipes())
    with pytest.raises(TypeError, match="give it policy= and backward="):
        check_environment(Recipes(), Cook(Recipes()))
    with pytest.raises(TypeError, match=r"Recipes .* give it forward="):
        check_policy(Uncook(Recipes()), Recipes(), backward=True)


def test_checking_changes_neither_the_global_generator_nor_gradients() -> None:
    env = Hypergrid(4, 2)
    policy = MLPPolicy(env, width=8)
    before = torch.get_rng_state()
    check_environment(env)
    check_policy(policy, env)
    assert torch.get_rng_state().equal(before)
    assert all(parameter.grad is None for parameter in policy.parameters())


def test_a_breach_is_told_with_clause_state_and_hint() -> None:
    class Short(Hypergrid):
        def backward_mask(self, states) -> Tensor:
            return super().backward_mask(states) & ~((states.coords == 2).all(1) & ~states.stopped).unsqueeze(1)

    with pytest.raises(ContractError) as told:
        check_environment(Short(4, 2))
    message = str(told.value)
    assert message.startswith("masks: expected backward_mask to allow an action elsewhere; came none in state [2 2] (")
    assert message.endswith("Hint: name the actions that lead there, or make is_initial true")


def test_the_same_seed_finds_the_same_fault() -> None:
    class Rewards(Hypergrid):
        def log_reward(self, states) -> Tensor:
            return super().log_reward(states).masked_fill(states.coords.sum(1) > 3, torch.nan)

    def message(seed: int) -> str:
        with pytest.raises(ContractError) as told:
            check_environment(Rewards(4, 2), seed=seed)
        return str(told.value)

    assert message(1) == message(1)
    assert len({message(seed) for seed in range(4)}) > 1


def test_uniform_policies_are_what_a_dense_environment_is_walked_with() -> None:
    env = Hypergrid(3, 2)
    given = check_environment(env, Uniform(env.forward_mask), UniformBackward(env))
    assert given == check_environment(env)
