"""Distributions over actions: what a policy returns, and what samplers and objectives use.

Each is a batch of N independent distributions, indexable by row like a batch of states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor


class NoActionError(ValueError):
    """A state that is not terminal allows no action."""


class ActionDistribution(Protocol):
    """A batch of N independent distributions over actions ``[N, ...]``."""

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One action for each row; no gradient flows through it."""
        ...

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability (or log-density) of one action for each row, ``[N]``."""
        ...

    def __getitem__(self, rows: Tensor, /) -> ActionDistribution:
        """The distributions of these rows, in this order, repeats allowed."""
        ...

    def uniform(self) -> ActionDistribution:
        """The uniform distributions over the same supports; raises TypeError where there is none."""
        ...

    def tempered(self, temperature: float) -> ActionDistribution:
        """Probabilities to the power ``1 / temperature``, normalised; above 1 is flatter."""
        ...


@dataclass(frozen=True)
class MaskedCategorical:
    """Categorical over the allowed actions of each row.

    Attributes:
        logits: unnormalised log-probabilities, float ``[N, A]``.
        mask: allowed actions, bool ``[N, A]``.

    Raises:
        NoActionError: if a row allows no action.
    """

    logits: Tensor
    mask: Tensor

    def __post_init__(self) -> None:
        allowed = self.mask.any(-1)
        if not bool(allowed.all()):
            bad = (~allowed).nonzero().flatten().tolist()
            found = f"{len(bad)} of {len(allowed)} states allow no action (rows {bad[:5]})"
            raise NoActionError(f"{found}; every non-terminal state must allow one: check the mask, or is_terminal")

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probability of every action, −inf where it is not allowed, ``[N, A]``."""
        return self.logits.masked_fill(~self.mask, -math.inf).log_softmax(-1)

    @property
    def log_total(self) -> Tensor:
        """Log of the sum of exp(logits) over the allowed actions, ``[N]``."""
        return self.logits.masked_fill(~self.mask, -math.inf).logsumexp(-1)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        # Exponential race: argmax of log p − log Exp(1) is a draw from p, without sorting or cumulating.
        log_probs = self.log_probs.detach()
        noise = torch.empty_like(log_probs).exponential_(generator=generator).clamp_min_(1e-37)
        return (log_probs - noise.log_()).argmax(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def __getitem__(self, rows: Tensor) -> MaskedCategorical:
        return MaskedCategorical(self.logits[rows], self.mask[rows])

    def uniform(self) -> MaskedCategorical:
        return MaskedCategorical(torch.zeros_like(self.logits), self.mask)

    def tempered(self, temperature: float) -> MaskedCategorical:
        return MaskedCategorical(self.logits / temperature, self.mask)


@dataclass(frozen=True)
class RaggedCategorical:
    """Categorical over each row's own list of actions, for action spaces without common names.

    Attributes:
        logits: float ``[M]``, one for each listed action.
        actions: the listed actions, ``[M, ...]``, distinct within a row.
        rows: row of each listed action, long ``[M]``, ascending.
        n: number of rows N.
    """

    logits: Tensor
    actions: Tensor
    rows: Tensor
    n: int

    def __post_init__(self) -> None:
        if not bool((self.rows[1:] >= self.rows[:-1]).all()):
            raise ValueError("RaggedCategorical: list the actions row by row, so that rows ascend")

    @cached_property
    def _count(self) -> Tensor:
        return torch.bincount(self.rows, minlength=self.n)

    @cached_property
    def _start(self) -> Tensor:
        return self._count.cumsum(0) - self._count

    @cached_property
    def _dense(self) -> MaskedCategorical:
        column = torch.arange(len(self.rows), device=self.rows.device) - self._start[self.rows]
        mask = torch.arange(int(self._count.max()), device=self.rows.device) < self._count.unsqueeze(1)
        logits = self.logits.new_zeros(mask.shape).index_put((self.rows, column), self.logits)
        return MaskedCategorical(logits, mask)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.actions[self._start + self._dense.sample(generator)]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of one action for each row, ``[N]``; −inf for an action that the row does not list."""
        match = _same_action(self.actions, actions[self.rows])
        flat = self._dense.log_probs[self._dense.mask]
        nothing = flat.new_full((self.n,), -math.inf)
        return nothing.index_put((self.rows[match],), flat[match])

    def __getitem__(self, rows: Tensor) -> RaggedCategorical:
        count = self._count[rows]
        ends = count.cumsum(0)
        shift = torch.repeat_interleave(self._start[rows] - (ends - count), count)
        place = shift + torch.arange(len(shift), device=shift.device)
        return RaggedCategorical(self.logits[place], self.actions[place], torch.repeat_interleave(count), len(count))

    def uniform(self) -> RaggedCategorical:
        return RaggedCategorical(torch.zeros_like(self.logits), self.actions, self.rows, self.n)

    def tempered(self, temperature: float) -> RaggedCategorical:
        return RaggedCategorical(self.logits / temperature, self.actions, self.rows, self.n)


# Given rows of the batch, long [M], and the first k columns of their actions, [M, k]: the next column's distribution.
Stage = Callable[[Tensor, Tensor], ActionDistribution]


@dataclass(frozen=True)
class Sequential:
    """Hierarchical action ``[N, K]``: each column is drawn given the columns before it.

    Attributes:
        stages: one for each column, a function of the rows asked for and their columns so far.
        rows: which rows of the underlying batch these are, long ``[N]``.
    """

    stages: Sequence[Stage]
    rows: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        action = self.rows.new_empty(len(self.rows), 0)
        for stage in self.stages:
            column = stage(self.rows, action).sample(generator)
            action = torch.cat([action, column.unsqueeze(1)], 1)
        return action

    def log_prob(self, actions: Tensor) -> Tensor:
        parts = [stage(self.rows, actions[:, :k]).log_prob(actions[:, k]) for k, stage in enumerate(self.stages)]
        return torch.stack(parts).sum(0)

    def __getitem__(self, rows: Tensor) -> Sequential:
        return Sequential(self.stages, self.rows[rows])

    def _map(self, change: Callable[[ActionDistribution], ActionDistribution]) -> Sequential:
        def changed(stage: Stage) -> Stage:
            return lambda rows, prefix: change(stage(rows, prefix))

        return Sequential([changed(stage) for stage in self.stages], self.rows)

    def uniform(self) -> Sequential:
        """Uniform at each stage (which is not uniform over whole actions)."""
        return self._map(lambda distribution: distribution.uniform())

    def tempered(self, temperature: float) -> Sequential:
        """Tempered at each stage."""
        return self._map(lambda distribution: distribution.tempered(temperature))


@dataclass(frozen=True)
class Gaussian:
    """Diagonal Gaussian over ``[N, D]``; a coordinate whose standard deviation is zero is certain.

    Attributes:
        mean: float ``[N, D]``.
        std: standard deviation, float ``[N, D]``.
    """

    mean: Tensor
    std: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        noise = torch.empty_like(self.mean).normal_(generator=generator)
        return (self.mean + self.std * noise).detach()

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-density ``[N]``; a certain coordinate counts as 0 (rounding makes its action differ from the mean)."""
        certain = self.std == 0
        std = self.std.masked_fill(certain, 1.0)
        z = (actions - self.mean) / std
        density = -(0.5 * z.square() + std.log() + 0.5 * math.log(2 * math.pi))
        return density.masked_fill(certain, 0.0).sum(-1)

    def __getitem__(self, rows: Tensor) -> Gaussian:
        return Gaussian(self.mean[rows], self.std[rows])

    def uniform(self) -> Gaussian:
        raise TypeError("a Gaussian has no uniform counterpart; explore with gfn.exploration.Noise instead")

    def tempered(self, temperature: float) -> Gaussian:
        return Gaussian(self.mean, self.std * math.sqrt(temperature))

    def noisier(self, extra_std: float) -> Gaussian:
        """Independent Gaussian noise added to every coordinate that is not certain."""
        return Gaussian(self.mean, (self.std.square() + extra_std**2).sqrt() * (self.std > 0))


@dataclass(frozen=True)
class Certain:
    """The only action there is has probability one; every other has none.

    Attributes:
        actions: ``[N, ...]``.
    """

    actions: Tensor

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return self.actions

    def log_prob(self, actions: Tensor) -> Tensor:
        same = _same_action(self.actions, actions)
        impossible = torch.full(same.shape, -math.inf, device=same.device)
        return impossible.masked_fill(same, 0.0)

    def __getitem__(self, rows: Tensor) -> Certain:
        return Certain(self.actions[rows])

    def uniform(self) -> Certain:
        return self

    def tempered(self, temperature: float) -> Certain:
        return self


@dataclass(frozen=True)
class Mixture:
    """Each row follows ``second`` with probability ``weight``, in (0, 1), and ``first`` otherwise."""

    first: ActionDistribution
    second: ActionDistribution
    weight: float

    def __post_init__(self) -> None:
        if not 0 < self.weight < 1:
            raise ValueError(f"Mixture: weight must lie strictly between 0 and 1, got {self.weight}")

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        first, second = self.first.sample(generator), self.second.sample(generator)
        coin = torch.rand(len(first), generator=generator, device=first.device) < self.weight
        return torch.where(coin.reshape(-1, *[1] * (first.ndim - 1)), second, first)

    def log_prob(self, actions: Tensor) -> Tensor:
        first, second = self.first.log_prob(actions), self.second.log_prob(actions)
        return torch.logaddexp(first + math.log1p(-self.weight), second + math.log(self.weight))

    def __getitem__(self, rows: Tensor) -> Mixture:
        return Mixture(self.first[rows], self.second[rows], self.weight)

    def uniform(self) -> ActionDistribution:
        return self.second.uniform()

    def tempered(self, temperature: float) -> ActionDistribution:
        raise TypeError("a mixture is not tempered as a whole; temper its parts before mixing")


def _same_action(a: Tensor, b: Tensor) -> Tensor:
    """Which rows are equal in every column, bool ``[N]``."""
    return (a == b).reshape(len(a), -1).all(1)
