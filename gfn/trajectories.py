"""Complete trajectories of one environment, stored flat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, cast

import torch
from torch import Tensor

from gfn.states import States, cat, fingerprint, fingerprints, from_tensors, to_tensors

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
    def source(self) -> Tensor:
        """Where in ``states`` the state before each step is, long ``[N]``; the one after it comes next."""
        return torch.arange(len(self.row), device=self.row.device) + self.row

    @property
    def sources(self) -> S:
        """State before each step, ``[N]``."""
        return self.states[self.source]

    @property
    def targets(self) -> S:
        """State after each step, ``[N]``."""
        return self.states[self.source + 1]

    @property
    def initial(self) -> S:
        """First state of each trajectory, ``[B]``."""
        return self.states[self._state_start]

    @property
    def final(self) -> S:
        """Terminal state of each trajectory, ``[B]``."""
        return self.states[self._state_start + self.lengths]

    def at(self, time: Tensor) -> S:
        """State of each trajectory after ``time[b]`` steps, ``[B]``."""
        return self.states[self._state_start + time]

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

    def known(self) -> Self:
        """Those whose reward is known; all of them, unless an environment masks rewards that failed (NaN)."""
        unknown = self.log_reward.isnan()
        return self[~unknown] if bool(unknown.any()) else self

    def reversed(self) -> Self:
        """The same trajectories with the order of states and steps turned round."""
        steps = _flipped(self._step_start, self.lengths)
        return replace(
            self,
            states=self.states[_flipped(self._state_start, self.lengths + 1)],
            actions=self.actions[steps],
            behaviour_log_prob=self.behaviour_log_prob[steps],
        )

    def to(self, device: torch.device | str) -> Self:
        """The same trajectories on ``device``."""
        return type(self)(self.states.to(device), **{name: x.to(device) for name, x in self._columns().items()})

    def _columns(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in COLUMNS}

    def tensors(self) -> dict[str, Any]:
        """Everything as tensors by name, those of the states under ``states``; see :meth:`from_tensors`."""
        return {"states": to_tensors(self.states), **self._columns()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any], like: S) -> Self:
        """The trajectories that gave ``tensors``, on the device of the states ``like``, which show their kind."""
        device = next(iter(to_tensors(like).values())).device
        states = from_tensors({name: x.to(device) for name, x in tensors["states"].items()}, like)
        return cls(cast(Any, states), **{name: tensors[name].to(device) for name in COLUMNS})

    @classmethod
    def cat(cls, parts: Sequence[Self]) -> Self:
        """Join batches in order; groups of different parts stay apart. Numbers take the widest type among the parts.

        Raises:
            ValueError: if the parts lie on different devices.
        """
        devices = {str(part.lengths.device) for part in parts}
        if len(devices) != 1:
            raise ValueError(f"Trajectories.cat: expected parts on one device, got {sorted(devices)}; move them first")
        offsets = [0]
        for part in parts:
            offsets.append(offsets[-1] + (int(part.group.max()) + 1 if len(part) else 0))
        joined = {name: torch.cat([part._columns()[name] for part in parts]) for name in COLUMNS}
        joined["group"] = torch.cat([p.group + offset for p, offset in zip(parts, offsets, strict=False)])
        return cls(cat([part.states for part in parts]), **joined)

    def grouped_by_initial(self) -> Self:
        """The same trajectories, those that share an initial state in one group, whatever groups they were in."""
        _, group = fingerprints(self.initial).unique(return_inverse=True)
        return replace(self, group=group.to(self.group.device))

    def spliced(self, kept: Tensor, rest: Self) -> Self:
        """The first ``kept[b]`` steps of each trajectory, then those of ``rest``, which begins there.

        Rewards and versions are those of ``rest``, groups those of these.
        """
        every = torch.arange(len(self), device=kept.device)
        states = _runs(self._state_start, kept, every)  # without the state at which they join
        steps = _runs(self._step_start, kept, every)
        head = every.repeat_interleave(kept)
        by_step = order_by_trajectory([head, rest.row])
        by_state = order_by_trajectory([head, every.repeat_interleave(rest.lengths + 1)])
        return replace(
            rest,
            states=cat([self.states[states], rest.states])[by_state],
            actions=torch.cat([self.actions[steps], rest.actions])[by_step],
            lengths=kept + rest.lengths,
            group=self.group,
            behaviour_log_prob=torch.cat([self.behaviour_log_prob[steps], rest.behaviour_log_prob])[by_step],
        )


COLUMNS = ("actions", "lengths", "log_reward", "group", "behaviour_log_prob", "policy_version")


def chosen(which: Tensor, first: Trajectories[S], second: Trajectories[S]) -> Trajectories[S]:
    """Trajectory ``b`` of ``first`` where ``which[b]``, of ``second`` elsewhere, with the groups of ``first``."""
    place = torch.arange(len(first), device=which.device)
    return replace(Trajectories.cat([first, second])[place.where(which, place + len(first))], group=first.group)


def seed_of(t: Trajectories[Any]) -> int:
    """A seed that depends on the actions alone: for draws that must come out the same whenever a batch is scored."""
    return fingerprint(t.actions.detach().cpu().contiguous().numpy().tobytes()) % (1 << 63)


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
