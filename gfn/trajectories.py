"""Complete trajectories of one environment, stored flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from gfn.states import States, cat

S = TypeVar("S", bound=States)


@dataclass(frozen=True)
class Trajectories(Generic[S]):
    """B complete trajectories with N steps in all.

    Trajectory ``b`` visits ``lengths[b] + 1`` states. States and actions lie one trajectory after
    another, in forward order however they were sampled, so ragged lengths cost no padding.

    Attributes:
        states: every visited state, ``[N + B]``.
        actions: the action of every step, ``[N, ...]``.
        lengths: number of steps of each trajectory, long ``[B]``.
        log_reward: log-reward of each final state, ``[B]``.
        group: trajectories with equal numbers share an initial state, long ``[B]``.
        behaviour_log_prob: log-probability of each step under the distribution it was drawn from
            (exploration included; of undoing the step, if sampled backward), ``[N]``. Never the
            current policy's value: objectives rescore.
        policy_version: number of updates the sampling policy had seen, long ``[B]``.
    """

    states: S
    actions: Tensor
    lengths: Tensor
    log_reward: Tensor
    group: Tensor
    behaviour_log_prob: Tensor
    policy_version: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def _state_start(self) -> Tensor:
        sizes = self.lengths + 1
        return sizes.cumsum(0) - sizes

    @cached_property
    def _step_start(self) -> Tensor:
        return self.lengths.cumsum(0) - self.lengths

    @cached_property
    def row(self) -> Tensor:
        """Trajectory of each step, long ``[N]``."""
        return torch.repeat_interleave(self.lengths)

    @cached_property
    def column(self) -> Tensor:
        """Time of each step, long ``[N]``."""
        return torch.arange(len(self.row), device=self.row.device) - self._step_start[self.row]

    @cached_property
    def _source(self) -> Tensor:
        return torch.arange(len(self.row), device=self.row.device) + self.row

    @property
    def sources(self) -> S:
        """State before each step, ``[N]``."""
        return self.states[self._source]

    @property
    def targets(self) -> S:
        """State after each step, ``[N]``."""
        return self.states[self._source + 1]

    @property
    def initial(self) -> S:
        """First state of each trajectory, ``[B]``."""
        return self.states[self._state_start]

    @property
    def final(self) -> S:
        """Terminal state of each trajectory, ``[B]``."""
        return self.states[self._state_start + self.lengths]

    @cached_property
    def mask(self) -> Tensor:
        """Which entries of a padded ``[B, T]`` tensor are steps."""
        steps = torch.arange(int(self.lengths.max()), device=self.lengths.device)
        return steps < self.lengths.unsqueeze(-1)

    def pad(self, values: Tensor) -> Tensor:
        """Lay per-step values ``[N]`` out as ``[B, T]``, zero after the end."""
        return values.new_zeros(self.mask.shape).index_put((self.row, self.column), values)

    def pad_states(self, values: Tensor) -> Tensor:
        """Lay per-state values ``[N + B]`` out as ``[B, T + 1]``, zero after the end."""
        row = torch.repeat_interleave(self.lengths + 1)
        column = torch.arange(len(row), device=row.device) - self._state_start[row]
        return values.new_zeros(len(self), self.mask.shape[1] + 1).index_put((row, column), values)

    def __getitem__(self, index: Any) -> Self:
        """The trajectories at ``index`` (a 1-d integer or boolean tensor, or a slice), in that order."""
        index = torch.arange(len(self), device=self.lengths.device)[index]
        steps = _runs(self._step_start, self.lengths, index)
        states = _runs(self._state_start, self.lengths + 1, index)
        return type(self)(
            states=self.states[states],
            actions=self.actions[steps],
            lengths=self.lengths[index],
            log_reward=self.log_reward[index],
            group=self.group[index],
            behaviour_log_prob=self.behaviour_log_prob[steps],
            policy_version=self.policy_version[index],
        )

    def reversed(self) -> Self:
        """The same trajectories with the order of states and steps turned round."""
        steps = _flipped(self._step_start, self.lengths)
        return replace(
            self,
            states=self.states[_flipped(self._state_start, self.lengths + 1)],
            actions=self.actions[steps],
            behaviour_log_prob=self.behaviour_log_prob[steps],
        )

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Join batches in order; groups of different parts stay apart."""
        offsets = [0]
        for part in parts:
            offsets.append(offsets[-1] + int(part.group.max()) + 1)
        return cls(
            states=cat([p.states for p in parts]),
            actions=torch.cat([p.actions for p in parts]),
            lengths=torch.cat([p.lengths for p in parts]),
            log_reward=torch.cat([p.log_reward for p in parts]),
            group=torch.cat([p.group + offset for p, offset in zip(parts, offsets, strict=False)]),
            behaviour_log_prob=torch.cat([p.behaviour_log_prob for p in parts]),
            policy_version=torch.cat([p.policy_version for p in parts]),
        )


def order_by_trajectory(rows: Sequence[Tensor]) -> Tensor:
    """Permutation that turns values listed step by step into values listed trajectory by trajectory.

    ``rows[t]`` are the trajectories that have a value at time ``t``.
    """
    return torch.cat(list(rows)).argsort(stable=True)


def _runs(starts: Tensor, sizes: Tensor, index: Tensor) -> Tensor:
    """Positions of the runs ``starts[i] : starts[i] + sizes[i]`` for each ``i`` in ``index``, joined."""
    sizes = sizes[index]
    shift = starts[index] - (sizes.cumsum(0) - sizes)
    return torch.repeat_interleave(shift, sizes) + torch.arange(int(sizes.sum()), device=sizes.device)


def _flipped(starts: Tensor, sizes: Tensor) -> Tensor:
    """Positions that turn every run ``starts[i] : starts[i] + sizes[i]`` round."""
    last = torch.repeat_interleave(2 * starts + sizes - 1, sizes)
    return last - torch.arange(len(last), device=sizes.device)
