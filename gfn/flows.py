"""State flows: log F(s), learned. The flow of an initial state is the log Z of its condition."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import Tensor, nn

from gfn.environment import DiscreteEnvironment
from gfn.policies import MLPPolicy, Trunk
from gfn.states import States

S = TypeVar("S", bound=States)


class MLPFlow(nn.Module, Generic[S]):
    """log F(s) from a linear head on the trunk of a forward policy, or on a trunk of its own.

    Args:
        policy: the forward policy whose trunk is shared when ``tied``.
        tied: share the trunk; otherwise a new one of the same width and depth is made.
    """

    def __init__(self, env: DiscreteEnvironment[S], policy: MLPPolicy[S], tied: bool = False):
        super().__init__()
        self.trunk = policy.trunk if tied else Trunk(env, policy.trunk.width, len(policy.trunk.layers))
        self.head = nn.Linear(self.trunk.width, 1)

    def forward(self, states: S) -> Tensor:
        """log F of each state, ``[N]``."""
        return self.head(self.trunk(states)).squeeze(-1)
