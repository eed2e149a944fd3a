"""Partitions: where the log Z of a residual comes from."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gfn import exact
from gfn.environment import Enumerable
from gfn.objectives.balance import LOG_OF_ZERO, Scores
from gfn.objectives.divergence import Divergence
from gfn.objectives.groups import places
from gfn.schedules import Number


class Partition(nn.Module, ABC):
    """An estimate of log Z for each trajectory of a batch.

    Attributes:
        lr: learning rate of the partition's own parameters; None takes the trainer's.
    """

    lr: Number | None = None

    @abstractmethod
    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        """log Z of each trajectory's initial state, float64 ``[B]``; differentiable if it is learned."""

    def check_group_size(self, size: int, divergence: Divergence) -> None:
        """Raise ValueError if groups of ``size`` trajectories cannot be normalised this way."""

    def require(self, scores: Scores) -> None:
        """Raise ValueError if something it needs is not among the scores."""


class LearnedLogZ(Partition):
    """One learned scalar.

    Args:
        init: its first value, or ``"data"``: minus the centre of the first training batch under the
            divergence in force (which is DevGrad's estimate), so that training does not start with
            a wrong normaliser. Trajectories with reward zero do not count; a batch of nothing else
            leaves it at zero for the next one to set.
        lr: its own learning rate, commonly a hundred times the policy's.
    """

    def __init__(self, init: float | Literal["data"] = "data", lr: Number | None = 0.1):
        super().__init__()
        self.value = nn.Parameter(torch.tensor(0.0 if init == "data" else float(init), dtype=torch.float64))
        self.register_buffer("initialised", torch.tensor(init != "data"))
        self.lr = lr

    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        if self.training and not bool(self.initialised):
            excess = scores.excess.detach()[scores.log_reward > LOG_OF_ZERO]
            if len(excess) > 0:
                centre = divergence.centre(excess, torch.full_like(excess, 1 / len(excess)))
                self.value.data.copy_(-centre)
                self.initialised.fill_(True)
        return self.value.expand(len(scores.log_reward))


class ConditionalLogZ(Partition):
    """log Z of each initial state from a network, for environments whose reset draws a condition.

    Args:
        network: from initial states to log Z ``[B]``, such as :class:`gfn.flows.MLPFlow`.
        lr: its own learning rate; None takes the trainer's.
    """

    def __init__(self, network: nn.Module, lr: Number | None = None):
        super().__init__()
        self.network = network
        self.lr = lr

    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        log_z: Tensor = self.network(scores.initial)
        return log_z.double()


class DevGrad(Partition):
    """Batch log Z: log Ẑ = argmin_C mean L(excess + C) in each group, held constant for the gradient.

    Closed form for the α family, a bracketed solve otherwise (Fawkes & Hartford, arXiv:2605.15417;
    α = 1 is VarGrad, Richter et al. 2020, arXiv:2010.10436). In a batch, the sum of coefficients of
    a group is zero.

    Args:
        leave_one_out: estimate log Z for each trajectory from the others of its group. For the α
            family the expected gradient is then exactly parallel to ∇D_α for any group size ≥ 2,
            but the coefficients are no longer bounded: combine with ``Clipped``.
    """

    def __init__(self, leave_one_out: bool = False):
        super().__init__()
        self.leave_one_out = leave_one_out

    def check_group_size(self, size: int, divergence: Divergence) -> None:
        if size < 2:
            raise ValueError(
                f"DevGrad estimates log Z within a group and needs at least 2 trajectories in each, got {size}; "
                "raise the batch or group size, or use partition=learned"
            )
        below, above = divergence.slope(torch.tensor([-1.0, 1.0], dtype=torch.float64)).tolist()
        if size < 4 and not math.isclose(-below, above, rel_tol=1e-9):
            warnings.warn(
                f"DevGrad with groups of {size}: below 4, members of the family that mirror one another "
                "(α and 2 − α) train almost alike; use larger groups to tell covering from seeking",
                stacklevel=2,
            )

    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        excess, place, size = scores.excess.detach(), *places(scores.group)
        if int(size.min()) < 2:
            self.check_group_size(int(size.min()), divergence)
        delta = excess.new_zeros(len(size), int(size.max())).index_put(place, excess)
        weight = torch.zeros_like(delta).index_put(place, scores.weight.double() / size[place[0]])
        if not self.leave_one_out:
            return -divergence.centre(delta, weight)[place[0]]
        return -_centre_of_others(divergence.centre, delta, weight)[place]


def _centre_of_others(centre: Callable[[Tensor, Tensor], Tensor], delta: Tensor, weight: Tensor) -> Tensor:
    """For each entry of ``[G, K]``, the centre of the other entries of its row."""
    columns: list[Tensor] = []
    for k in range(delta.shape[1]):  # one column at a time: K² numbers never stand in memory together
        others = weight.clone()
        others[:, k] = 0
        columns.append(centre(delta, others / others.sum(-1, keepdim=True)))
    return torch.stack(columns, 1)


class MeanLogReward(Partition):
    """The group's mean log R in the place of its log Z, as in the objective of Kimi k1.5 (2025, arXiv:2501.12599).

    With ``ReverseKL`` the coefficient of ∇log P_F is the advantage log R − mean log R less the log-ratio to P_B. That
    leaves out the mean log-ratio, so the target is not where the loss is smallest once P_F has left P_B.
    """

    def check_group_size(self, size: int, divergence: Divergence) -> None:
        if size < 2:
            raise ValueError(
                f"MeanLogReward compares trajectories of one group and needs at least 2 in each, got {size}; raise the "
                "batch or group size, or use partition=learned"
            )

    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        (row, _), size = places(scores.group)
        self.check_group_size(int(size.min()), divergence)
        total = torch.zeros_like(size, dtype=torch.float64).index_add(0, row, scores.log_reward.double())
        return (total / size)[row]


class FlowLogZ(Partition):
    """The flow of the initial state, for balances with state flows."""

    def require(self, scores: Scores) -> None:
        self._flow(scores)

    @staticmethod
    def _flow(scores: Scores) -> Tensor:
        if scores.log_flow is None:
            raise ValueError("FlowLogZ needs state flows: use flow=mlp, or partition=learned which needs none")
        return scores.log_flow

    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        return self._flow(scores)[:, 0].double()


class ExactLogZ(Partition):
    """The true log Z of each trajectory's condition, by enumeration; to study objectives apart from estimating it.

    Raises:
        ValueError: if the environment cannot be enumerated (nor then its log Z be known).
    """

    def __init__(self, env: Any):
        super().__init__()
        if not isinstance(listed := env, Enumerable):
            raise ValueError(
                f"ExactLogZ needs an environment with enumerate and index; {type(env).__name__} has none: "
                "use partition=learned or partition=devgrad"
            )
        self.index = listed.index
        environment: Any = listed
        initial: Tensor = environment.is_initial(listed.enumerate()).nonzero().squeeze(-1)
        self.value: Tensor
        self.initial: Tensor
        self.register_buffer("initial", initial)
        if len(initial) == 1:
            value = exact.log_partition(env)
        else:
            graph = exact.state_graph(env)
            value = graph.log_z[graph.condition[initial]]
        self.register_buffer("value", value)

    def forward(self, scores: Scores, divergence: Divergence) -> Tensor:
        if len(self.value) == 1:
            return self.value.expand(len(scores.log_reward))
        return self.value[torch.searchsorted(self.initial, self.index(scores.initial))]
