"""A graph small enough for tables: pairs out of {0, 1, 2}, each reached by two trajectories."""

from __future__ import annotations

import torch
from torch import Tensor

from gfn.environment import DiscreteEnvironment
from gfn.policies import Tabular
from tests.oracles import f64

SETS = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.bool)


class TwoPaths(DiscreteEnvironment[Tensor]):
    """States are subsets as bool ``[N, 3]``, terminal with two elements; action i adds element i."""

    def __init__(self, log_reward: Tensor | None = None):
        self.rewards = f64(1.0, -0.5, 0.3) if log_reward is None else log_reward
        self.n_actions = self.n_features = 3
        self.max_steps = 2

    def reset(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.zeros(n, 3, dtype=torch.bool)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        return states | torch.nn.functional.one_hot(actions, 3).bool()

    def undo(self, states: Tensor, actions: Tensor) -> Tensor:
        return states & ~torch.nn.functional.one_hot(actions, 3).bool()

    def is_initial(self, states: Tensor) -> Tensor:
        return ~states.any(1)

    def is_terminal(self, states: Tensor) -> Tensor:
        return states.sum(1) == 2

    def log_reward(self, states: Tensor) -> Tensor:
        return self.rewards[self.index(states) - 4]

    def forward_mask(self, states: Tensor) -> Tensor:
        return ~states & ~self.is_terminal(states).unsqueeze(1)

    def backward_mask(self, states: Tensor) -> Tensor:
        return states

    def encode(self, states: Tensor) -> Tensor:
        return states.to(torch.get_default_dtype())

    def enumerate(self) -> Tensor:
        return SETS

    def index(self, states: Tensor) -> Tensor:
        return (states.unsqueeze(1) == SETS).all(2).int().argmax(1)


def table_forward(env: TwoPaths) -> Tabular[Tensor]:
    """The forward policy of the tables."""
    rows = [[0.5, -0.3, 0.1], [0, 0.2, -0.4], [0.7, 0, 0.0], [-0.6, 0.3, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    return Tabular(env, env.forward_mask, torch.tensor(rows, dtype=torch.float64))


def table_backward(env: TwoPaths) -> Tabular[Tensor]:
    """The backward policy of the tables."""
    rows = [[0, 0, 0]] * 4 + [[0.4, -0.2, 0], [0.0, 0, 0.9], [0, -0.5, 0.4]]
    return Tabular(env, env.backward_mask, torch.tensor(rows, dtype=torch.float64))
