"""Samplers whose batches are used late, as when others sample while a policy is trained; in one process, exactly."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import torch

from gfn.environment import Environment
from gfn.samplers.sampler import Sampler, checked_size, unit_of
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
Dated = tuple[int, Trajectories[S]]  # a batch, and the step it was sampled at


class Stale(Generic[S]):
    """Batches used ``lag`` updates after they were sampled: at step t, what the policy of step t − lag sampled.

    While there is nothing so old, the oldest there is, that of step 0. ``policy_version`` tells.

    Args:
        env: where the trajectories are from.
        sampler: called at every step.
        lag: age of the batches, in updates.
        batch_size: trajectories per step; default, the inner sampler's.

    Raises:
        ValueError: if ``lag`` is negative; when called, if the size asked for is not that of the batch
            whose turn it is.
    """

    def __init__(self, env: Environment[S], sampler: Sampler[S], lag: int = 10, batch_size: int | None = None):
        if lag < 0:
            raise ValueError(f"Stale: lag must not be negative, got {lag}; 0 uses every batch at once")
        self.sampler, self.lag, self.one_group = sampler, lag, sampler.one_group
        self.forward = sampler.forward
        self.batch_size = checked_size("Stale", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0))
        self._waiting: deque[Dated[S]] = deque()

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        self._waiting.append((step, self.sampler(step, size)))
        while len(self._waiting) > 1 and self._waiting[1][0] <= step - self.lag:
            self._waiting.popleft()
        return _of_size(self._waiting[0], size, step, "Stale")

    def settings(self, step: int) -> dict[str, float]:
        return {**self.sampler.settings(step), "lag": float(min(step, self.lag))}

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict(), "waiting": _written(self._waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self._waiting = _read(state["waiting"], self._like)


class Synchronised(Generic[S]):
    """Batches of a policy that is brought up to date every few updates only.

    At every ``every``-th step the sampler makes that many batches, one for this step and each until the next
    time: what the searchers of trajectory balance with asynchrony do between two synchronisations (Bartoldson
    et al. 2025, arXiv:2503.18929). The age of a batch runs from 0 to ``every`` − 1.

    Args:
        env: where the trajectories are from.
        sampler: called ``every`` times in a row.
        every: updates between synchronisations.
        batch_size: trajectories per step; default, the inner sampler's.

    Raises:
        ValueError: if ``every`` is not positive; when called, if another size is asked for than at the
            latest synchronisation.
    """

    def __init__(self, env: Environment[S], sampler: Sampler[S], every: int = 10, batch_size: int | None = None):
        if every < 1:
            raise ValueError(f"Synchronised: every must be at least 1, got {every}")
        self.sampler, self.every, self.one_group = sampler, every, sampler.one_group
        self.forward = sampler.forward
        self.batch_size = checked_size("Synchronised", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0))
        self._waiting: deque[Dated[S]] = deque()

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        if not self._waiting:
            self._waiting.extend((step, self.sampler(step, size)) for _ in range(self.every - step % self.every))
        return _of_size(self._waiting.popleft(), size, step, "Synchronised")

    def settings(self, step: int) -> dict[str, float]:
        return {**self.sampler.settings(step), "lag": float(step % self.every)}

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict(), "waiting": _written(self._waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self._waiting = _read(state["waiting"], self._like)


class Jittered(Generic[S]):
    """Batches of random age: each as likely as any other of those of the last ``lag`` updates and this one.

    A batch may be used more than once, or never.

    Args:
        env: where the trajectories are from.
        sampler: called at every step.
        lag: largest age, in updates.
        batch_size: trajectories per step; default, the inner sampler's.
        seed: of the choice of batches.

    Raises:
        ValueError: if ``lag`` is negative; when called, if the size asked for is not that of the batch
            whose turn it is.
    """

    def __init__(
        self, env: Environment[S], sampler: Sampler[S], lag: int = 10, batch_size: int | None = None, seed: int = 0
    ):
        if lag < 0:
            raise ValueError(f"Jittered: lag must not be negative, got {lag}; 0 uses every batch at once")
        self.sampler, self.lag, self.one_group = sampler, lag, sampler.one_group
        self.forward = sampler.forward
        self.batch_size = checked_size("Jittered", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self.generator = torch.Generator().manual_seed(seed)
        self.age = 0
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0))
        self._recent: deque[Dated[S]] = deque(maxlen=lag + 1)

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        size = self.batch_size if size is None else size
        self._recent.append((step, self.sampler(step, size)))
        chosen = self._recent[int(torch.randint(len(self._recent), (), generator=self.generator))]
        self.age = step - chosen[0]
        return _of_size(chosen, size, step, "Jittered")

    def settings(self, step: int) -> dict[str, float]:
        return {**self.sampler.settings(step), "lag": float(self.age)}

    def state_dict(self) -> dict[str, Any]:
        own = {"generator": self.generator.get_state(), "age": self.age}
        return {"sampler": self.sampler.state_dict(), "recent": _written(self._recent), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.generator.set_state(state["generator"].cpu())
        self.age = state["age"]
        self._recent = deque(_read(state["recent"], self._like), maxlen=self.lag + 1)


def _of_size(dated: Dated[S], size: int, step: int, name: str) -> Trajectories[S]:
    sampled, batch = dated
    if len(batch) != size:
        raise ValueError(
            f"{name}: asked for {size} trajectories at step {step}, and {len(batch)} were sampled at step {sampled}; "
            "the size must stay the same while batches wait"
        )
    return batch


def _written(batches: Iterable[Dated[Any]]) -> list[tuple[int, dict[str, Any]]]:
    return [(step, batch.tensors()) for step, batch in batches]


def _read(written: Iterable[tuple[int, dict[str, Any]]], like: S) -> deque[Dated[S]]:
    return deque((step, Trajectories.from_tensors(batch, like)) for step, batch in written)
