"""Small environments of the kinds the core is meant to carry: a tree of tokens, hierarchical actions, diffusion."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gfn.distributions import Gaussian, MaskedCategorical, RaggedCategorical, Sequential
from gfn.environment import DiscreteEnvironment, Environment
from gfn.policies import Policy
from gfn.states import TensorStates


class Words(DiscreteEnvironment[Tensor]):
    """A tree: words over ``letters`` letters, written from the left, ended by a full stop or at full length.

    A state is a row of token numbers, −1 where nothing is written yet.
    """

    def __init__(self, letters: int = 3, length: int = 4):
        self.stop, self.length = letters, length
        self.n_actions = letters + 1
        self.n_features = length * (letters + 2)
        self.max_steps = length

    def reset(self, n, generator=None):
        return torch.full((n, self.length), -1, device=self.device)

    def _written(self, states):
        return (states >= 0).sum(1)

    def step(self, states, actions):
        if not self.forward_mask(states).gather(1, actions.unsqueeze(1)).all():
            raise ValueError("Words: nothing can be written after the end")
        return states.scatter(1, self._written(states).unsqueeze(1), actions.unsqueeze(1))

    def undo(self, states, actions):
        return states.scatter(1, self._written(states).unsqueeze(1) - 1, -1)

    def is_initial(self, states):
        return self._written(states) == 0

    def is_terminal(self, states):
        return (self._written(states) == self.length) | (states == self.stop).any(1)

    def forward_mask(self, states):
        return ~self.is_terminal(states).unsqueeze(1).expand(-1, self.n_actions)

    def backward_mask(self, states):
        written = self._written(states).unsqueeze(1)
        last = states.gather(1, (written - 1).clamp_min(0))
        return torch.arange(self.n_actions, device=states.device) == last

    def encode(self, states):
        return nn.functional.one_hot(states + 1, self.n_actions + 1).flatten(1).float()

    def log_reward(self, states):
        return (states == 0).sum(1).double()


class Texts:
    """States that hold no tensor: a list of strings."""

    def __init__(self, texts: list[str]):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return Texts([self.texts[i] for i in torch.arange(len(self))[index].tolist()])

    def to(self, device):
        return self

    @classmethod
    def cat(cls, batches):
        return cls([text for batch in batches for text in batch.texts])


class Palindromes(DiscreteEnvironment[Texts]):
    """Texts that grow at either end: action 0 puts an ``a`` in front, 1 a ``b`` in front, 2 and 3 the same behind."""

    n_actions, n_features, max_steps = 4, 2, 3

    def reset(self, n, generator=None):
        return Texts([""] * n)

    def step(self, states, actions):
        letters = ["ab"[a % 2] for a in actions.tolist()]
        if not self.forward_mask(states).gather(1, actions.unsqueeze(1)).all():
            raise ValueError("Palindromes: three letters are enough")
        grown = zip(states.texts, letters, actions.tolist(), strict=True)
        return Texts([letter + text if a < 2 else text + letter for text, letter, a in grown])

    def undo(self, states, actions):
        return Texts([text[1:] if a < 2 else text[:-1] for text, a in zip(states.texts, actions.tolist(), strict=True)])

    def is_initial(self, states):
        return torch.tensor([text == "" for text in states.texts])

    def is_terminal(self, states):
        return torch.tensor([len(text) == 3 for text in states.texts])

    def forward_mask(self, states):
        return ~self.is_terminal(states).unsqueeze(1).expand(-1, 4)

    def backward_mask(self, states):
        ends = [[t[:1] == "a", t[:1] == "b", t[-1:] == "a", t[-1:] == "b"] for t in states.texts]
        return torch.tensor(ends).reshape(-1, 4)

    def encode(self, states):
        return torch.tensor([[t.count("a"), t.count("b")] for t in states.texts]).float().reshape(-1, 2)

    def log_reward(self, states):
        return torch.tensor([float(t == t[::-1]) for t in states.texts])

    def describe(self, states):
        return [text or "nothing" for text in states.texts]


@dataclass(frozen=True)
class Mixed(TensorStates):
    """How much is in the pot, long ``[N]``, and whether it was served, bool ``[N]``."""

    total: Tensor
    served: Tensor


class Recipes(Environment[Mixed]):
    """Pairs as actions: (1, b) adds b, (2, b) adds 2b, (0, 0) serves; at most ``size`` fits into the pot.

    Adding 2 by (1, 2) and by (2, 1) are two edges between the same states.
    """

    table = torch.tensor([[0, 0], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]])

    def __init__(self, size: int = 7):
        self.size = size
        self.max_steps = size + 1

    def reset(self, n, generator=None):
        return Mixed(torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.bool))

    def step(self, states, actions):
        total = states.total + actions.prod(1)
        if bool((states.served | (total > self.size)).any()):
            raise ValueError("Recipes: it does not fit, or was served")
        return Mixed(total, actions[:, 0] == 0)

    def undo(self, states, actions):
        return Mixed(states.total - actions.prod(1), torch.zeros_like(states.served))

    def is_initial(self, states):
        return (states.total == 0) & ~states.served

    def is_terminal(self, states):
        return states.served

    def log_reward(self, states):
        return (1 + states.total.double()).log()

    def allowed(self, states):
        """Rows of ``table`` that can be done, bool ``[N, 7]``."""
        return (states.total.unsqueeze(1) + self.table.prod(1) <= self.size) & ~states.served.unsqueeze(1)

    def entering(self, states):
        """Rows of ``table`` that can have led here, bool ``[N, 7]``."""
        serves = self.table[:, 0] == 0
        added = (states.total.unsqueeze(1) >= self.table.prod(1)) & ~serves
        return torch.where(states.served.unsqueeze(1), serves, added)

    def edges(self, states):
        row, action = self.allowed(states).nonzero(as_tuple=True)
        return row, self.table[action]

    def enumerate(self):
        total = torch.arange(self.size + 1)
        return Mixed(total.repeat(2), torch.arange(2 * len(total)) >= len(total))

    def index(self, states):
        return states.total + states.served * (self.size + 1)


class Cook(Policy[Mixed]):
    """P_F of Recipes: first how, then what, both by learned tables."""

    def __init__(self, env: Recipes):
        super().__init__()
        self.env = env
        self.how = nn.Parameter(torch.randn(env.size + 1, 3))
        self.what = nn.Parameter(torch.randn(4))

    def distribution(self, states):
        allowed, table = self.env.allowed(states), self.env.table

        def first(rows, done):
            possible = torch.stack([(allowed[rows] & (table[:, 0] == how)).any(1) for how in range(3)], 1)
            return MaskedCategorical(self.how[states.total[rows]], possible)

        def second(rows, done):
            row, entry = (allowed[rows] & (table[:, 0] == done)).nonzero(as_tuple=True)
            what = table[entry, 1]
            return RaggedCategorical(self.what[what], what, row, len(rows))

        return Sequential([first, second], torch.arange(len(states)))


class Uncook(Policy[Mixed]):
    """P_B of Recipes: a learned weight for each whole action."""

    def __init__(self, env: Recipes):
        super().__init__()
        self.env = env
        self.weight = nn.Parameter(torch.randn(len(env.table)))

    def distribution(self, states):
        row, entry = self.env.entering(states).nonzero(as_tuple=True)
        return RaggedCategorical(self.weight[entry], self.env.table[entry], row, len(states))


@dataclass(frozen=True)
class Particles(TensorStates):
    """Place, float ``[N, D]``, and number of steps made, long ``[N]``."""

    x: Tensor
    time: Tensor


class Diffusion(Environment[Particles]):
    """Particles that start at the origin and make ``horizon`` Gaussian steps; the action is the increment."""

    def __init__(self, ndim: int = 2, horizon: int = 5):
        self.ndim, self.max_steps = ndim, horizon

    def reset(self, n, generator=None):
        return Particles(torch.zeros(n, self.ndim), torch.zeros(n, dtype=torch.long))

    def step(self, states, actions):
        return Particles(states.x + actions, states.time + 1)

    def undo(self, states, actions):
        return Particles(states.x - actions, states.time - 1)

    def is_initial(self, states):
        return states.time == 0

    def is_terminal(self, states):
        return states.time == self.max_steps

    def log_reward(self, states):
        return -0.5 * (states.x - 1).square().sum(1)


class Drift(Policy[Particles]):
    """P_F of Diffusion: a learned linear drift, initially none, and a fixed standard deviation."""

    def __init__(self, env: Diffusion, std: float = 0.5):
        super().__init__()
        self.std = std
        self.drift = nn.Linear(env.ndim, env.ndim)
        nn.init.zeros_(self.drift.weight)
        nn.init.zeros_(self.drift.bias)

    def distribution(self, states):
        return Gaussian(self.drift(states.x), torch.full_like(states.x, self.std))


class Bridge(Policy[Particles]):
    """P_B of Diffusion: a Brownian bridge to the origin, whose first increment is certain."""

    def __init__(self, std: float = 0.5):
        super().__init__()
        self.std = std

    def distribution(self, states):
        time = states.time.unsqueeze(1)
        std = self.std * ((time - 1) / time).sqrt()
        return Gaussian(states.x / time, std.expand_as(states.x))
