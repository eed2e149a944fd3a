"""Policies: modules that return a distribution over actions."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from gfn.chunks import in_chunks
from gfn.distributions import ActionDistribution, Certain, MaskedCategorical
from gfn.environment import DiscreteEnvironment, Enumerable, Environment, as_discrete
from gfn.memory import Memory
from gfn.merging import distinct, once, picked
from gfn.recall import Recall, recalled
from gfn.states import States, cat
from gfn.trajectories import Trajectories
from gfn.trunk import Trunk

S = TypeVar("S", bound=States)

# Called at every step of a rollout with the live states and the rows of the previous call they are.
Stepper = Callable[[S, Tensor], ActionDistribution]


class Policy(nn.Module, ABC, Generic[S]):
    """P(action | state): the edges out of a state if it is a forward policy, into it if backward.

    Subclasses give :meth:`distribution`; the rest follows, and may be overridden where a network
    can do it in one pass.

    Attributes:
        at_once: steps scored at a time, to bound memory (see :mod:`gfn.chunks`); None scores all together.
            Overridden scoring does not follow it.
    """

    at_once: int | None = None

    @property
    def prior(self) -> Policy[S] | None:
        """The forward policy π that stands in the place of P_B, so that the target is π(x) R(x)/Z; here none does."""
        return None

    @abstractmethod
    def distribution(self, states: S) -> ActionDistribution:
        """Distribution over the edges out of (or, for a backward policy, into) each state."""

    def renew(self, step: int, policy: Policy[S]) -> bool:
        """Before the batch of a step, with the forward policy as it is then: whether the target moves; here, never."""
        return False

    def stuck(self, states: S) -> Tensor:
        """From which states, none of them initial, a backward policy knows no way back, bool ``[N]``; here, none."""
        weight = next(self.parameters(), torch.zeros(0))
        return torch.zeros(len(states), dtype=torch.bool, device=weight.device)

    def perceptron(self, env: DiscreteEnvironment[S]) -> list[Tensor] | None:
        """Weight, bias, weight, … if the logits of allowed actions are a perceptron (ReLU) on ``env.encode``.

        None, as here, if they are something else; nothing in the list if all are zero.
        """
        return None

    def stepper(self) -> Stepper[S]:
        """Start one rollout; override to keep work between steps, such as a key-value cache."""
        return lambda states, kept: self.distribution(states)

    def log_prob(self, t: Trajectories[S]) -> Tensor:
        """Log-probability of every step, this being a forward policy, ``[N]``."""
        return in_chunks(self._scored, self.at_once, t.sources, t.actions)

    def log_prob_backward(self, t: Trajectories[S]) -> Tensor:
        """Log-probability of undoing every step, this being a backward policy, ``[N]``."""
        return in_chunks(self._scored, self.at_once, t.targets, t.actions)

    def log_probs(self, t: Trajectories[S], backward: Policy[S]) -> tuple[Tensor, Tensor]:
        """log P_F and log P_B of every step, each ``[N]``; override where one pass of a network serves both."""
        return self.log_prob(t), backward.log_prob_backward(t)

    def _scored(self, states: S, actions: Tensor) -> Tensor:
        return self.distribution(states).log_prob(actions)


def _keeps(policy: Policy[Any], kind: type[Policy[Any]]) -> bool:
    """Whether a policy is of a kind and has kept how it samples and scores: a subclass may have its own way."""
    names = ("distribution", "log_prob", "log_prob_backward", "stepper")
    own = [getattr(getattr(policy, name), "__func__", None) for name in names]
    return isinstance(policy, kind) and own == [getattr(kind, name) for name in names]


def require_dense(env: Environment[S], what: str) -> None:
    """Raise ValueError unless the actions of an environment have dense masks, as ``what`` needs."""
    if as_discrete(env) is None:
        raise ValueError(
            f"{what} needs an environment with dense masks (a DiscreteEnvironment), and {type(env).__name__} is none: "
            "choose policy= and backward= that are made for it"
        )


class MLPPolicy(Policy[S]):
    """P_F: a masked categorical with logits from a multilayer perceptron on ``env.encode``."""

    def __init__(self, env: DiscreteEnvironment[S], width: int = 256, depth: int = 2):
        super().__init__()
        require_dense(env, "MLPPolicy")
        self.allowed = env.forward_mask
        self.trunk = Trunk(env, width, depth)
        self.head = nn.Linear(width, env.n_actions)

    def distribution(self, states: S) -> MaskedCategorical:
        return MaskedCategorical(once(lambda s: self.head(self.trunk(s)), states), self.allowed(states))

    def perceptron(self, env: DiscreteEnvironment[S]) -> list[Tensor] | None:
        known = _keeps(self, MLPPolicy) and self.allowed == env.forward_mask and self.trunk.encode == env.encode
        return self.trunk.followed_by(self.head) if known else None

    def log_probs(self, t: Trajectories[S], backward: Policy[S]) -> tuple[Tensor, Tensor]:
        together = isinstance(backward, MLPBackward) and _keeps(backward, MLPBackward) and backward.trunk is self.trunk
        known = recalled(self, t)
        if not _keeps(self, MLPPolicy) or self.at_once is not None or (known is None and not together):
            return super().log_probs(t, backward)
        states, features, place = self._looked_at(t, known, together)
        log_pf = picked(self.head(features), self.allowed(states), place[t.source], t.actions)
        if not (together and isinstance(backward, MLPBackward)):
            return log_pf, backward.log_prob_backward(t)
        return log_pf, picked(backward.head(features), backward.allowed(states), place[t.source + 1], t.actions)

    def _looked_at(self, t: Trajectories[S], known: Recall | None, final: bool) -> tuple[S, Tensor, Tensor]:
        """Distinct states of trajectories, their features, and which of them each visited state is, long ``[N + B]``.

        What is known already may leave out the last state of each, unless ``final``; it is then −1.
        """
        if known is None:
            states, place = distinct(t.states) or (t.states, torch.arange(len(t.states), device=t.actions.device))
            return states, self.trunk(states), place
        place = known.place.new_full((len(t.states),), -1)
        place[t.source] = known.place
        if not final:
            return known.states, known.features(), place
        last = distinct(t.final) or (t.final, torch.arange(len(t), device=place.device))
        place[place < 0] = len(known.states) + last[1]
        return cat([known.states, last[0]]), torch.cat([known.features(), self.trunk(last[0])]), place


class MLPBackward(Policy[S]):
    """Learned P_B: a head on the trunk of a forward policy, or on a trunk of its own.

    Args:
        policy: the forward policy whose trunk is shared when ``tied``.
        tied: share the trunk; otherwise a new one of the same width and depth is made.
    """

    def __init__(self, env: DiscreteEnvironment[S], policy: MLPPolicy[S], tied: bool = True):
        super().__init__()
        require_dense(env, "MLPBackward")
        self.allowed = env.backward_mask
        self.trunk = policy.trunk if tied else Trunk(env, policy.trunk.width, len(policy.trunk.layers))
        self.head = nn.Linear(self.trunk.width, env.n_actions)

    def distribution(self, states: S) -> MaskedCategorical:
        return MaskedCategorical(once(lambda s: self.head(self.trunk(s)), states), self.allowed(states))

    def perceptron(self, env: DiscreteEnvironment[S]) -> list[Tensor] | None:
        known = _keeps(self, MLPBackward) and self.allowed == env.backward_mask and self.trunk.encode == env.encode
        return self.trunk.followed_by(self.head) if known else None

    def stuck(self, states: S) -> Tensor:
        return ~self.allowed(states).any(1)


class Uniform(Policy[S]):
    """Every edge equally likely, by a mask function such as ``env.forward_mask``; nothing is learned."""

    def __init__(self, mask: Callable[[S], Tensor]):
        super().__init__()
        self.mask = mask

    def distribution(self, states: S) -> MaskedCategorical:
        mask = self.mask(states)
        return MaskedCategorical(mask.new_zeros(mask.shape, dtype=torch.get_default_dtype()), mask)

    def perceptron(self, env: DiscreteEnvironment[S]) -> list[Tensor] | None:
        return [] if _keeps(self, Uniform) and self.mask in (env.forward_mask, env.backward_mask) else None

    def stuck(self, states: S) -> Tensor:
        return ~self.mask(states).any(1)


class UniformBackward(Uniform[S]):
    """P_B: every edge into a state equally likely."""

    def __init__(self, env: DiscreteEnvironment[S]):
        require_dense(env, "UniformBackward")
        super().__init__(env.backward_mask)


class CertainBackward(Policy[S]):
    """P_B of a tree: the one edge into each state has probability one.

    Raises:
        ValueError: when asked about a state that several edges lead into.
    """

    def __init__(self, env: DiscreteEnvironment[S]):
        super().__init__()
        require_dense(env, "CertainBackward")
        self.allowed = env.backward_mask
        self.describe = env.describe

    def distribution(self, states: S) -> Certain:
        mask = self.allowed(states)
        several = mask.sum(-1) != 1
        if bool(several.any()):
            first = int(several.nonzero()[0, 0])
            raise ValueError(
                f"CertainBackward: {int(mask[first].sum())} edges lead into state "
                f"{self.describe(states[first : first + 1])[0]}, expected 1; use UniformBackward or MLPBackward"
            )
        return Certain(mask.int().argmax(-1))

    def stuck(self, states: S) -> Tensor:
        return ~self.allowed(states).any(1)


class Prior(Policy[S]):
    """A frozen copy of a forward policy π in the place of P_B.

    Trajectory balance then becomes relative trajectory balance, whose solution is
    P_F(τ) ∝ π(τ) R(x): log π_ref of a language model, a pretrained diffusion process (Venkatraman
    et al. 2024, arXiv:2405.20971). It scores trajectories and cannot sample them backward.

    Args:
        policy: π.
        copied: copy it, because it may well be what is trained.
        remember: number of trajectories whose log-probabilities are kept.
        reset_every: updates after which π becomes the policy that is trained, as it then is, each time (as in Kimi
            k1.5, arXiv:2501.12599). The target then moves: after k resets that were trained to the end it is
            π(x) R(x)^(k+1)/Z. 0 never resets.

    Raises:
        ValueError: if a number is negative, or a reset would change what was not copied.
    """

    def __init__(self, policy: Policy[S], copied: bool = True, remember: int = 0, reset_every: int = 0):
        super().__init__()
        if reset_every < 0 or (reset_every > 0 and not copied):
            raise ValueError(f"Prior: reset_every must not be negative, and needs a copy, got {reset_every=} {copied=}")
        self.policy = copy.deepcopy(policy).requires_grad_(False) if copied else policy
        self.memory, self.reset_every = Memory(remember), reset_every

    @property
    def prior(self) -> Policy[S]:
        return self.policy

    def renew(self, step: int, policy: Policy[S]) -> bool:
        if self.reset_every == 0 or step == 0 or step % self.reset_every:
            return False
        self.policy.load_state_dict(policy.state_dict())
        self.memory.clear()
        return True

    def distribution(self, states: S) -> ActionDistribution:
        raise TypeError("Prior scores forward steps and cannot sample backward; use a backward policy for that")

    @torch.no_grad()
    def log_prob_backward(self, t: Trajectories[S]) -> Tensor:
        return self.memory.recalled(t, self.policy.log_prob)


class Tabular(Policy[S]):
    """One logit for each state and action of an enumerable environment: every policy can be written so.

    Args:
        env: where states are looked up.
        mask: ``env.forward_mask`` or ``env.backward_mask``.
        logits: ``[n_states, n_actions]``; trained if ``learned``.
    """

    def __init__(self, env: Enumerable[S], mask: Callable[[S], Tensor], logits: Tensor, learned: bool = True):
        super().__init__()
        self.index, self.mask = env.index, mask
        self.logits = nn.Parameter(logits, requires_grad=learned)

    def distribution(self, states: S) -> MaskedCategorical:
        return MaskedCategorical(self.logits[self.index(states)], self.mask(states))

    def stuck(self, states: S) -> Tensor:
        return ~self.mask(states).any(1)
