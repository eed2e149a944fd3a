"""The contract of policies: each way to break it is caught by the clause that names the fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from envs.hypergrid import GridStates, Hypergrid
from gfn.check import ContractError, check_policy
from gfn.distributions import MaskedCategorical
from gfn.policies import MLPPolicy, Uniform
from tests.toy_environments import Cook, Recipes

ENV = Hypergrid(4, 2)


def caught(clause: str, phrase: str, policy: nn.Module, env=ENV, **options) -> None:
    with pytest.raises(ContractError) as told:
        check_policy(policy, env, **options)
    message = str(told.value)
    assert message.startswith(f"{clause}: expected "), message
    assert phrase in message, message


class Reported(MaskedCategorical):
    """Samples and scores through functions of the right answers."""

    sampled: Callable[[Tensor], Tensor] = staticmethod(lambda actions: actions)
    scored: Callable[[Tensor], Tensor] = staticmethod(lambda scores: scores)

    def sample(self, generator=None):
        return self.sampled(super().sample(generator))

    def log_prob(self, actions):
        return self.scored(super().log_prob(actions))

    def __getitem__(self, rows):
        return type(self)(self.logits[rows], self.mask[rows])


def reporting(**functions: Callable[[Tensor], Tensor]) -> Uniform[GridStates]:
    """A uniform policy that changes what its distribution samples, or how it scores."""
    kind = type("Reporting", (Reported,), {name: staticmethod(f) for name, f in functions.items()})

    class Policy(Uniform):
        def distribution(self, states):
            mask = self.mask(states)
            return kind(torch.zeros(mask.shape), mask)

    return Policy(ENV.forward_mask)


def test_a_missing_action_is_caught() -> None:
    caught("distribution", "64 actions; came 63", reporting(sampled=lambda actions: actions[1:]))


def test_a_sample_from_the_global_generator_is_caught() -> None:
    policy = reporting(sampled=lambda actions: torch.where(torch.rand(len(actions)) < 0.5, actions, 2))
    caught("distribution", "equal actions from equal seeds; came others", policy)


def test_scores_in_a_column_are_caught() -> None:
    policy = reporting(scored=lambda scores: scores.unsqueeze(1))
    caught("distribution", "log_prob of shape (64,); came (64, 1)", policy)


def test_scores_that_are_not_finite_are_caught() -> None:
    policy = reporting(scored=lambda scores: scores / 0)
    caught("distribution", "finite log-probabilities; came NaN or infinity in state [0 0]", policy)


def test_a_forbidden_action_that_is_hardly_ever_drawn_is_caught() -> None:
    class Leaky(Uniform):
        def distribution(self, states):
            mask = self.mask(states)
            return MaskedCategorical(torch.where(mask, 0.0, -30.0), torch.ones_like(mask))

    caught("normalised", "action 0 possible where allowed", Leaky(ENV.forward_mask))


def test_normalisation_over_the_batch_is_caught() -> None:
    class Normalised(MLPPolicy):
        def distribution(self, states):
            distribution = super().distribution(states)
            return MaskedCategorical(distribution.logits - distribution.logits.mean(0), distribution.mask)

    policy = Normalised(ENV, width=8)
    caught("rows", "each state to be scored alone; came scores that differ by up to ", policy)


def test_an_index_that_forgets_the_logits_is_caught() -> None:
    class Forgetful(MaskedCategorical):
        def __getitem__(self, rows):
            return MaskedCategorical(torch.zeros_like(self.logits)[rows], self.mask[rows])

    class Policy(MLPPolicy):
        def distribution(self, states):
            right = super().distribution(states)
            return Forgetful(right.logits, right.mask)

    caught("rows", "distribution[rows] to select rows", Policy(ENV, width=8))


def test_an_action_that_is_never_taken_is_caught() -> None:
    policy = Uniform(lambda states: ENV.forward_mask(states) & (torch.arange(3) != 1))
    caught("normalised", "action 1 possible where allowed; came a probability that is positive where it is not", policy)


def test_a_backward_policy_is_held_against_the_backward_mask() -> None:
    forgotten = torch.tensor([False, True, False])
    policy = Uniform(lambda states: ENV.backward_mask(states) & ~((states.coords > 0).all(1, keepdim=True) & forgotten))
    caught("normalised", "action 1 possible where allowed", policy, backward=True)


def test_probabilities_that_do_not_add_up_are_caught() -> None:
    policy = reporting(scored=lambda scores: scores - 0.1)
    caught("normalised", "probabilities to add up to 1; came scores that differ by up to 0.0952", policy)


def test_an_edge_that_hierarchical_actions_never_take_is_caught() -> None:
    class Timid(Cook):
        def distribution(self, states):
            right = super().distribution(states)
            never = torch.tensor([0.0, -torch.inf, 0.0])

            def first(rows, done):
                first = right.stages[0](rows, done)
                return MaskedCategorical(first.logits + never, first.mask)

            return type(right)([first, right.stages[1]], right.rows)

    env = Recipes()
    caught("normalised", "every edge possible; came one that is not in state", Timid(env), env)


def test_a_stepper_that_loses_track_of_rows_is_caught() -> None:
    class Cached(MLPPolicy):
        def stepper(self):
            cache = []

            def advance(states, kept):
                cache.append(self.distribution(states))
                return cache[max(0, len(cache) - 2)][torch.arange(len(states))]

            return advance

    caught("stepper", "stepper to agree with distribution; came scores that differ by", Cached(ENV, width=8))


def test_a_rollout_that_breaks_off_is_caught() -> None:
    class Unready(MLPPolicy):
        asked = 0

        def stepper(self):
            self.asked += 1
            if self.asked > 1:
                raise RuntimeError("no second time")
            return super().stepper()

    caught("rollout", "expected an answer, came RuntimeError: no second time", Unready(ENV, width=8))


@pytest.mark.parametrize("backward", [False, True])
def test_a_trajectory_scored_otherwise_than_drawn_is_caught(backward: bool) -> None:
    class Twice(MLPPolicy):
        def log_prob(self, t):
            return 2 * super().log_prob(t)

        def log_prob_backward(self, t):
            return 2 * super().log_prob_backward(t)

    policy = Twice(ENV, width=8)
    policy.allowed = ENV.backward_mask if backward else ENV.forward_mask
    name = "log_prob_backward" if backward else "log_prob"
    caught("rescoring", f"{name} to be that of the rollout", policy, backward=backward)


def test_scores_of_the_wrong_shape_are_caught() -> None:
    class Summed(MLPPolicy):
        def log_prob(self, t):
            return t.pad(super().log_prob(t)).sum(1)

    caught("rescoring", "log_prob of shape (", Summed(ENV, width=8))


def test_detached_scores_are_caught() -> None:
    class Detached(MLPPolicy):
        def log_prob(self, t):
            return super().log_prob(t).detach()

    caught("gradients", "log-probabilities with a gradient; came none", Detached(ENV, width=8))


def test_a_parameter_without_a_gradient_is_caught() -> None:
    policy = MLPPolicy(ENV, width=8)
    policy.register_parameter("idle", nn.Parameter(torch.zeros(1)))
    caught("gradients", "a finite gradient for idle; came none", policy)
    policy.idle.requires_grad_(False)
    check_policy(policy, ENV)


def test_a_gradient_that_is_not_finite_is_caught() -> None:
    class Rooted(MLPPolicy):
        def distribution(self, states):
            right = super().distribution(states)
            return MaskedCategorical(right.logits + self.head.bias.abs().sqrt(), right.mask)

    policy = Rooted(ENV, width=8)
    nn.init.zeros_(policy.head.bias)
    caught("gradients", "a finite gradient for head.bias; came none, NaN or infinity", policy)


def test_backward_scores_are_trained_too() -> None:
    class Detached(MLPPolicy):
        def log_prob_backward(self, t):
            return super().log_prob_backward(t).detach()

    policy = Detached(ENV, width=8)
    policy.allowed = ENV.backward_mask
    caught("gradients", "log-probabilities with a gradient; came none", policy, backward=True)
