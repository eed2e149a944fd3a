"""Searchers: they make groups of trajectories, each a function of its number and the weights alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gfn.environment import Environment
from gfn.exploration import Exploration
from gfn.policies import Policy
from gfn.samplers.on_policy import OnPolicy
from gfn.states import States, fingerprint
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
Arrays = dict[str, np.ndarray[Any, np.dtype[np.uint8]]]


class Searcher(Generic[S]):
    """Makes groups by number: trajectories from one initial state, which depend on seed, number and weights alone.

    Args:
        env: where to sample.
        policy: P_F; :meth:`load` changes it.
        exploration: how actions are drawn.
        group_size: trajectories of a group.
        seed: of the whole run.
        size: trajectories made at once; several groups then share a number, and a generator. Default, one group.
    """

    def __init__(
        self,
        env: Environment[S],
        policy: Policy[S],
        exploration: Exploration,
        group_size: int,
        seed: int,
        size: int | None = None,
    ) -> None:
        self.env, self.policy, self.exploration = env, policy, exploration
        self.group_size, self.seed = group_size, seed
        self.size = group_size if size is None else size

    def __call__(self, number: int, version: int) -> Trajectories[S]:
        """Group ``number``, by the weights there are, which have seen ``version`` updates."""
        seed = seed_of(self.seed, number)
        fresh = OnPolicy(self.env, self.policy, self.size, self.group_size, self.exploration, seed=seed)
        return fresh(version)

    @torch.no_grad()
    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Take over weights that :class:`Changing` gave; all others stay as they are.

        Raises:
            ValueError: if they are of another policy, before any is taken over.
        """
        own = dict(_tensors(self.policy))
        _require_same({name: array.shape for name, array in arrays.items()}, {n: _shape(t) for n, t in own.items()})
        for name, array in arrays.items():
            target = own[name]
            # A copy: arrays in shared memory cannot be written to, and tensors can.
            target.copy_(torch.from_numpy(array.copy()).view(target.dtype).view(target.shape))


def seed_of(seed: int, number: int) -> int:
    """The seed of a group's generator."""
    return fingerprint(f"group {seed} {number}".encode())


class Changing:
    """The tensors of a policy that training changes: those with gradients, and others once they have changed.

    Of a model with adapters these are the adapters. What stays is sent to searchers with the policy itself.
    """

    def __init__(self, policy: nn.Module) -> None:
        self._policy = policy
        self._start = {name: (tensor, _edits(tensor)) for name, tensor in _tensors(policy)}

    def arrays(self) -> Arrays:
        """Their bytes by name, ``[*shape, n_bytes]`` each; where they can be, views that the next update changes.

        Raises:
            ValueError: if the policy has tensors, or shapes, that it had not at first.
        """
        now = dict(_tensors(self._policy))
        _require_same({n: _shape(t) for n, t in now.items()}, {n: _shape(t) for n, (t, _) in self._start.items()})
        return {name: _bytes(tensor) for name, tensor in now.items() if self._changes(name, tensor)}

    def _changes(self, name: str, tensor: Tensor) -> bool:
        before, edits = self._start[name]
        return tensor.requires_grad or tensor is not before or _edits(tensor) != edits


def _tensors(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from policy.named_parameters()
    yield from policy.named_buffers()


def _edits(tensor: Tensor) -> int:
    """How often a tensor was changed in place, by torch's own count; those without one cannot be."""
    return 0 if tensor.is_inference() else tensor._version


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's shape, and the bytes of one number."""
    return (*tensor.shape, tensor.element_size())


def _require_same(new: Mapping[str, tuple[int, ...]], held: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in new.items():
        if held.get(name) != shape:
            there = _told(held[name]) if name in held else "no such tensor"
            raise ValueError(
                f"weights {name} have {_told(shape)}, and searchers hold {there}; "
                "close the sampler after a change of the policy, so that searchers start with the new one"
            )


def _told(shape: tuple[int, ...]) -> str:
    return f"shape {list(shape[:-1])}, {shape[-1]} bytes a number"


def _bytes(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """As bytes, because NumPy lacks some of torch's number types."""
    return tensor.detach().cpu().contiguous().unsqueeze(-1).view(torch.uint8).numpy()
