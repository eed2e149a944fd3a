"""What a trainer needs of anything that learns from trajectories."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from gfn.objectives.balance import LOG_OF_ZERO, Scores
from gfn.policies import Policy
from gfn.schedules import Number
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
Reported = dict[str, float | Tensor]


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate; ``lr=None`` takes the trainer's."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    lr: Number | None


class Learner(nn.Module, ABC, Generic[S]):
    """A forward and a backward policy, and a loss of trajectories scored by them.

    The work is cut in two at :class:`Scores`: :meth:`scores` sees trajectories and networks,
    :meth:`loss` sees nothing but numbers, so that a batch can be scored in parts (see
    :mod:`gfn.objectives.parts`).
    """

    def __init__(self, policy: Policy[S], backward: Policy[S]):
        super().__init__()
        self.policy, self.backward_policy = policy, backward

    @abstractmethod
    def loss(self, scores: Scores, step: int) -> tuple[Tensor, Reported]:
        """Loss of scored trajectories at a training step, and a report of detached numbers."""

    def forward(self, t: Trajectories[S], step: int = 0) -> tuple[Tensor, Reported]:
        """Loss of a batch, rescored with the current policies whatever its age, and a report."""
        return self.loss(self.scores(t), step)

    def begin(self, step: int) -> bool:
        """What comes before the batch of a step; whether the target has moved."""
        return self.backward_policy.renew(step, self.policy)

    def scores(self, t: Trajectories[S]) -> Scores:
        """Current log-probabilities of every step."""
        log_pf, log_pb = self.policy.log_probs(t, self.backward_policy)
        return Scores(
            log_pf=t.pad(log_pf),
            log_pb=t.pad(log_pb),
            mask=t.mask,
            log_reward=t.log_reward.clamp(min=LOG_OF_ZERO),
            group=t.group,
            initial=t.initial,
            log_behaviour=t.pad(t.behaviour_log_prob),
            weight=t.lengths.new_ones(len(t), dtype=torch.float64),
        )

    def checkpoint_transitions(self, size: int) -> None:
        """Score ``size`` steps at a time from now on, and again for the gradient; see :mod:`gfn.chunks`.

        Raises:
            ValueError: if ``size`` is not positive.
        """
        if size < 1:
            raise ValueError(f"checkpoint_transitions must be at least 1 step, got {size}")
        for policy in (self.policy, self.backward_policy, self.backward_policy.prior):
            if policy is not None:
                policy.at_once = size

    def log_z(self, scores: Scores, step: int) -> Tensor:
        """Estimate of log Z of each trajectory's initial state, ``[B]``; here by importance sampling over the batch."""
        log_weight = -scores.excess
        return (log_weight.logsumexp(0) - math.log(len(log_weight))).expand(len(log_weight))

    def check_direction(self, forward: bool) -> None:
        """Raise ValueError if trajectories not all sampled ``forward`` cannot be learned from; these can."""

    def check_group_size(self, size: int, step: int = 0) -> None:
        """Raise ValueError if groups of ``size`` trajectories cannot be learned from; every size will do here."""

    def parameter_groups(self) -> list[ParameterGroup]:
        """All trainable parameters, each once, in groups that may have learning rates of their own."""
        return split_groups(self, {})


def split_groups(whole: nn.Module, apart: Mapping[str, tuple[nn.Module, Number | None]]) -> list[ParameterGroup]:
    """Parameter groups: the named modules that have a rate of their own, and the rest under ``policy``.

    A parameter that several modules share goes with the rest.
    """
    chosen: list[ParameterGroup] = []
    modules = [module for module, _ in apart.values()]
    for name, (module, lr) in apart.items():
        others = [m for m in (*whole.children(), *modules) if m is not module]
        shared = {id(p) for other in others for p in other.parameters()}
        own = tuple(p for p in module.parameters() if p.requires_grad and id(p) not in shared)
        if lr is not None and own:
            chosen.append(ParameterGroup(name, own, lr))
    taken = {id(p) for group in chosen for p in group.parameters}
    rest = tuple(p for p in whole.parameters() if p.requires_grad and id(p) not in taken)
    return [group for group in (ParameterGroup("policy", rest, None), *chosen) if group.parameters]
