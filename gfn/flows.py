"""State flows: log F(s) of non-terminal states; that of a terminal state is its log-reward.

The flow of an initial state is the Z of its condition. A flow is learned by a network, learned as
a correction of a known potential (forward-looking), implied by the probability of stopping, or the
sum of edge flows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from gfn.environment import DiscreteEnvironment, Environment, as_discrete
from gfn.policies import MLPPolicy, Policy, Tabular, require_dense
from gfn.states import States
from gfn.trunk import Trunk

S = TypeVar("S", bound=States)
LOWEST_POTENTIAL = -1e3  # in the place of the log of a potential of zero


@runtime_checkable
class Potential(Protocol):
    """An environment that knows how good an unfinished state is."""

    def log_potential(self, states: Any, /) -> Tensor:
        """log R that a state would have if it ended there, float ``[N]``; any state, terminal or not."""
        ...


@runtime_checkable
class Stoppable(Potential, Protocol):
    """An environment in which every state may stop, with its potential for a reward.

    Attributes:
        stop_action: the action that stops.
    """

    @property
    def stop_action(self) -> int: ...


class Flow(nn.Module, ABC, Generic[S]):
    """log F(s), and where edges have flows of their own the log of what flows into a state.

    Attributes:
        on_edges: whether :meth:`inflow` is known.
    """

    on_edges: bool = False

    @abstractmethod
    def forward(self, states: S) -> Tensor:
        """log F of non-terminal states, ``[N]``."""

    def inflow(self, states: S) -> Tensor:
        """Log of the sum of the edge flows into each state, ``[N]``, if ``on_edges``."""
        raise NotImplementedError(f"{type(self).__name__} has no flows on edges")


class MLPFlow(Flow[S]):
    """log F(s) from a linear head on the trunk of a forward policy, or on a trunk of its own.

    Args:
        policy: the forward policy whose trunk is shared when ``tied``.
        tied: share the trunk; otherwise a new one of the same width and depth is made.
    """

    def __init__(self, env: DiscreteEnvironment[S], policy: MLPPolicy[S], tied: bool = False):
        super().__init__()
        require_dense(env, "MLPFlow")
        self.trunk = policy.trunk if tied else Trunk(env, policy.trunk.width, len(policy.trunk.layers))
        self.head = nn.Linear(self.trunk.width, 1)

    def forward(self, states: S) -> Tensor:
        return self.head(self.trunk(states)).squeeze(-1)


class ForwardLooking(Flow[S]):
    """log F(s) = log F̃(s) + log R̃(s): a network corrects the potential (Pan et al. 2023, arXiv:2302.01687).

    Raises:
        ValueError: if the environment has no ``log_potential``.
    """

    def __init__(self, env: Environment[S], correction: Flow[S]):
        super().__init__()
        if not isinstance(env, Potential):
            raise ValueError(
                f"ForwardLooking needs an environment with log_potential; {type(env).__name__} has none: use flow=mlp"
            )
        self.potential, self.correction = env.log_potential, correction

    def forward(self, states: S) -> Tensor:
        return self.correction(states) + self.potential(states).clamp(min=LOWEST_POTENTIAL)


class ImpliedByStop(Flow[S]):
    """log F(s) = log R̃(s) − log P_F(stop | s), where every state may stop.

    Detailed balance with it is modified detailed balance (Deleu et al. 2022, arXiv:2202.13903);
    nothing but the policies is learned.

    Raises:
        ValueError: if the environment has no ``stop_action`` and ``log_potential``.
    """

    def __init__(self, env: Environment[S], policy: Policy[S]):
        super().__init__()
        if not isinstance(env, Stoppable):
            raise ValueError(
                f"ImpliedByStop needs an environment in which every state may stop (stop_action, log_potential); "
                f"{type(env).__name__} is none: use flow=mlp"
            )
        self.potential, self.stop, self.policy = env.log_potential, env.stop_action, policy

    def forward(self, states: S) -> Tensor:
        potential = self.potential(states)
        stop = torch.full((len(states),), self.stop, device=potential.device)
        log_stop = self.policy.distribution(states).log_prob(stop)
        return potential.clamp(min=LOWEST_POTENTIAL).to(log_stop.dtype) - log_stop


class EdgeFlows(Flow[S]):
    """The logits of a forward policy read as log edge flows: F(s) is their sum, and P_F its shares.

    With it ``flow_matching`` is the objective of Bengio et al. 2021 (arXiv:2106.04399). The flow
    into a state is summed over its parents, so they must be listable by ``backward_mask``.

    Raises:
        ValueError: if the environment has no such masks.
    """

    on_edges = True

    def __init__(self, env: DiscreteEnvironment[S], policy: MLPPolicy[S] | Tabular[S]):
        super().__init__()
        if as_discrete(env) is None:
            raise ValueError(
                f"EdgeFlows sums over the parents that backward_mask lists; {type(env).__name__} is no "
                "DiscreteEnvironment and lists none: use balance=detailed with a state flow, or balance=trajectory"
            )
        self.policy = policy
        self.backward_mask, self.undo = env.backward_mask, env.undo

    def forward(self, states: S) -> Tensor:
        return self.policy.distribution(states).log_total

    def inflow(self, states: S) -> Tensor:
        child, action = self.backward_mask(states).nonzero(as_tuple=True)
        parents = self.policy.distribution(self.undo(states[child], action))
        edge = parents.logits.gather(1, action.unsqueeze(1)).squeeze(1)
        peak = edge.detach().new_full((len(states),), -torch.inf).scatter_reduce(0, child, edge.detach(), "amax")
        total = torch.zeros_like(peak).index_add(0, child, (edge - peak[child]).exp())
        return total.log() + peak
