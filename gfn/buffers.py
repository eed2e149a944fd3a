"""Buffers: bounded stores of trajectories."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from gfn.environment import Environment
from gfn.priorities import Priority, Uniform, draw
from gfn.states import States, TensorStates, fingerprint, fingerprints, to_tensors
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
MANY = 64  # batches that lie apart in memory before they are joined


@dataclass(frozen=True)
class Entries(TensorStates):
    """What is known of each stored trajectory, oldest first.

    Attributes:
        place: where it lies in the batches as they were stored, long ``[M]``.
        added: training step at which it was stored, long ``[M]``.
        version: updates that the policy which sampled it had seen, long ``[M]``.
        used: how often it has been drawn, long ``[M]``.
        log_reward: float64 ``[M]``.
        condition: equal where the initial states are, long ``[M]``.
        key: equal where one trajectory would replace the other, long ``[M]``.
    """

    place: Tensor
    added: Tensor
    version: Tensor
    used: Tensor
    log_reward: Tensor
    condition: Tensor
    key: Tensor


class Buffer(Generic[S]):
    """A bounded store of trajectories in main memory; what is drawn from it are copies.

    Args:
        env: where the trajectories are from.
        capacity: number of trajectories.
        priority: which to draw; default, all alike.
        unique: keep but the newest trajectory to each ``terminal`` state, or of each ``trajectory``; or
            ``none``, keep all.
        evict: which go when it is full: the ``oldest``, or those of ``lowest`` priority (the older first).
        per_condition: trajectories from one initial state, at most; None sets no limit of its own.
        max_reuse: how often a trajectory is drawn before it goes (a draw from too few may exceed it); None keeps it.
        max_age: largest number of updates between the policy that sampled a trajectory and the one that learns from
            it; None sets no limit. A balance needs none, being valid for any trajectories; policy gradients do.
        replacement: whether a draw may repeat a trajectory; if not, it does only where there are too few.
        seed: of the buffer's own generator.

    Keeping one of each trajectory (``unique``) changes what a batch is a sample of: those that the policy likes come
    no more often than others. The minimiser of a balance stays, since it is valid for any trajectories; a log Z taken
    from the batch is then the centre over distinct trajectories, and on-policy gradients are no longer those of the
    divergence.

    Raises:
        ValueError: if a number is not positive (``max_age``: negative), an option is none of those, or the
            trajectories may need more memory than the machine has.
        TypeError: if the environment's states cannot be stored.
    """

    def __init__(
        self,
        env: Environment[S],
        capacity: int = 1000,
        priority: Priority | None = None,
        unique: Literal["none", "terminal", "trajectory"] = "none",
        evict: Literal["oldest", "lowest"] = "oldest",
        per_condition: int | None = None,
        max_reuse: int | None = None,
        max_age: int | None = None,
        replacement: bool = True,
        seed: int = 0,
    ):
        if capacity < 1:
            raise ValueError(f"Buffer: capacity must be at least 1 trajectory, got {capacity}")
        if unique not in ("none", "terminal", "trajectory") or evict not in ("oldest", "lowest"):
            raise ValueError(
                "Buffer: unique must be none, terminal or trajectory, and evict oldest or lowest, "
                f"got {unique=} {evict=}"
            )
        low = {name: n for name, n in (("per_condition", per_condition), ("max_reuse", max_reuse)) if n is not None}
        if any(n < 1 for n in low.values()) or (max_age is not None and max_age < 0):
            raise ValueError(
                f"Buffer: per_condition and max_reuse must be at least 1 and max_age at least 0, or null for no limit, "
                f"got {per_condition=} {max_reuse=} {max_age=}"
            )
        self.device, self.capacity, self.unique, self.evict = env.device, capacity, unique, evict
        self.per_condition, self.max_reuse, self.max_age = per_condition, max_reuse, max_age
        self.replacement = replacement
        self.priority: Priority = priority if priority is not None else Uniform()
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0)).to("cpu")
        _require_memory(capacity, self._like, env.max_steps, type(env).__name__)
        self._batches: list[Trajectories[S]] = []
        nothing = torch.zeros(0, dtype=torch.long)
        self._entries = Entries(nothing, nothing, nothing, nothing, nothing.double(), nothing, nothing)
        self.generator = torch.Generator().manual_seed(fingerprint(f"Buffer {seed}".encode()))

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, t: Trajectories[S], step: int) -> None:
        """Store a copy of what has a known reward in a batch, at a training step, and let go of what is too much."""
        stored = t.known().to("cpu")[:]
        place = torch.arange(len(stored)) + sum(len(batch) for batch in self._batches)
        new = self._described(stored, place, torch.full_like(place, step), torch.zeros_like(place))
        self._batches.append(stored)
        self._entries = self._kept(Entries.cat([self._entries, new]), step)
        rows = sum(len(batch) for batch in self._batches)
        if len(self._batches) > MANY or rows > self.capacity + self.capacity // 4:
            self._join()

    def _described(self, stored: Trajectories[S], place: Tensor, added: Tensor, used: Tensor) -> Entries:
        keys, condition = self._keys(stored, place), fingerprints(stored.initial)
        return Entries(place, added, stored.policy_version, used, stored.log_reward.double(), condition, keys)

    def _kept(self, entries: Entries, step: int) -> Entries:
        """Those that stay, oldest first."""
        if self.unique != "none":
            entries = entries[_last_of_each(entries.key, 1)]
        entries = entries[self._usable(entries, step)]
        order = torch.arange(len(entries))
        if self.evict == "lowest":
            order = self._log_weight(entries, step).argsort(stable=True)
        if self.per_condition is not None:
            order = order[_last_of_each(entries.condition[order], self.per_condition)]
        return entries[order[-self.capacity :].sort().values]

    def _usable(self, entries: Entries, step: int) -> Tensor:
        """Which are neither worn out nor too old."""
        usable = torch.ones(len(entries), dtype=torch.bool)
        if self.max_reuse is not None:
            usable &= entries.used < self.max_reuse
        if self.max_age is not None:
            usable &= entries.version >= step - self.max_age
        return usable

    def draw(self, groups: int, size: int, step: int, since: int | None = None) -> Trajectories[S]:
        """``groups`` groups of ``size`` stored trajectories each, a group from one initial state.

        Args:
            groups: number of groups.
            size: trajectories of each.
            step: training step, for ages.
            since: draw, all alike, from what was stored at this step or later, if any of that is left.

        Raises:
            ValueError: if nothing is stored, or nothing may be used any more.
        """
        self._entries = self._entries[self._usable(self._entries, step)]
        if len(self) == 0:
            limits = f"with max_age={self.max_age} and max_reuse={self.max_reuse}"
            some = (
                f"nothing of what was stored may be used at step {step} {limits}"
                if self._batches
                else "nothing is stored yet"
            )
            raise ValueError(f"Buffer: {some}; add trajectories before drawing any")
        entries, position = self._entries, torch.arange(len(self))
        weight = self._log_weight(entries, step)
        if since is not None and bool((late := entries.added >= since).any()):
            entries, position, weight = entries[late], position[late], torch.zeros(int(late.sum()))
        index = position[draw(weight, entries.condition, groups, size, self.generator, self.replacement)]
        drawn = self._fetch(self._entries.place[index])
        used = self._entries.used + torch.bincount(index, minlength=len(self))
        self._entries = replace(self._entries, used=used)
        return replace(drawn, group=torch.arange(groups).repeat_interleave(size)).to(self.device)

    def contents(self) -> Trajectories[S] | None:
        """A copy of all that is stored, oldest first, in no groups; None if nothing is."""
        if len(self) == 0:
            return None
        stored = self._fetch(self._entries.place)
        return replace(stored, group=torch.zeros_like(stored.group))

    def _log_weight(self, entries: Entries, step: int) -> Tensor:
        return self.priority(entries.log_reward, step - entries.added, step)

    def _keys(self, t: Trajectories[S], place: Tensor) -> Tensor:
        if self.unique == "none":
            return place
        if self.unique == "terminal":
            return fingerprints(t.final)
        start = fingerprints(t.initial).tolist()
        actions = t.actions.reshape(len(t.actions), -1).contiguous().view(torch.uint8).split(t.lengths.tolist())
        content = [
            s.to_bytes(8, "little", signed=True) + a.numpy().tobytes() for s, a in zip(start, actions, strict=True)
        ]
        return torch.tensor([fingerprint(one) for one in content], dtype=torch.long)

    def _fetch(self, place: Tensor) -> Trajectories[S]:
        """Copies of the trajectories at these places, in this order, repeats allowed."""
        ends = torch.tensor([len(batch) for batch in self._batches]).cumsum(0)
        which = torch.bucketize(place, ends, right=True)
        pieces: list[Trajectories[S]] = []
        for i in which.unique().tolist():
            batch = self._batches[i]
            pieces.append(batch[place[which == i] - (int(ends[i]) - len(batch))])
        return Trajectories.cat(pieces)[which.argsort(stable=True).argsort()]

    def _join(self) -> None:
        """Lay what is still wanted out as one batch, which frees the rest."""
        self._batches = [self._fetch(self._entries.place)]
        self._entries = replace(self._entries, place=torch.arange(len(self._entries)))

    def state_dict(self) -> dict[str, Any]:
        stored = self.contents()
        return {
            "trajectories": {} if stored is None else stored.tensors(),
            "added": self._entries.added,
            "used": self._entries.used,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the buffer that ``state`` is of; raises ValueError if it holds more than this one may."""
        added: Tensor = state["added"].cpu()
        if len(added) > self.capacity:
            raise ValueError(f"Buffer: {len(added)} stored trajectories are more than capacity={self.capacity}")
        self._batches, place = [], torch.arange(len(added))
        self._entries = self._entries[:0]
        if len(added):
            stored = Trajectories.from_tensors(state["trajectories"], self._like)
            self._batches = [stored]
            self._entries = self._described(stored, place, added, state["used"].cpu())
        self.generator.set_state(state["generator"].cpu())


def _last_of_each(key: Tensor, n: int) -> Tensor:
    """Positions of the last ``n`` of the items with each key, ascending."""
    order = key.argsort(stable=True)
    _, count = key[order].unique_consecutive(return_counts=True)
    left = count.cumsum(0).repeat_interleave(count) - torch.arange(len(key))  # of the same key, this one included
    return order[left <= n].sort().values


def machine_memory() -> int:
    """Bytes of main memory that this process may use at most."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")  # of a container
    given = limit.read_text(encoding="utf-8").strip() if limit.is_file() else "max"
    return min(physical, int(given)) if given.isdigit() else physical


def trajectory_bytes(state: States, max_steps: int) -> int:
    """Bytes of a stored trajectory of ``max_steps`` steps, given one state; an action counts as one number."""
    row = sum(x.numel() * x.element_size() for x in to_tensors(state).values())
    return row * (max_steps + 1) + 16 * max_steps + 72


def _require_memory(capacity: int, state: States, max_steps: int, name: str) -> None:
    one, available = trajectory_bytes(state, max_steps), machine_memory()
    if capacity * one > available:
        raise ValueError(
            f"Buffer: {capacity} trajectories of up to {max_steps} steps in {name} can take {capacity * one / 1e9:.3g} "
            f"GB, and this machine has {available / 1e9:.3g} GB; set capacity to at most {available // one}"
        )
