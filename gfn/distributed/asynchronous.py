"""The sampler of asynchronous training: batches from searchers that work while the trainer does."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch

from gfn.distributed.engine import Engine, InProcess
from gfn.distributed.hub import Hub
from gfn.distributed.searcher import Searcher
from gfn.environment import Environment
from gfn.exploration import Exploration, NoExploration
from gfn.policies import Policy
from gfn.samplers.sampler import checked_size
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


class Asynchronous(Generic[S]):
    """Groups that searchers have made with weights up to ``max_staleness`` updates old.

    Trajectory balance needs no fresh trajectories, so searching and learning need not wait for each other
    (Bartoldson et al. 2025, arXiv:2503.18929). Searchers stop when they are ``max_staleness`` batches ahead, and
    batches take groups in the order in which they were begun. With ``max_staleness=0`` batches are on policy.

    A group depends on ``seed``, its number and the weights it was made with, not on who made it. Which weights those
    were depends on how quick searchers are, unless ``fixed_lag``: then the batch of update t is what the policy
    sampled after update t − ``max_staleness`` (the untrained policy before), so that a run is the same with any
    engine and any number of searchers, also when some die; checkpoints wait for groups that are being made.

    Args:
        env: where to sample.
        policy: P_F.
        engine: runs the searchers; default, one in this process.
        batch_size: trajectories per step, B.
        group_size: trajectories that share an initial state, K; default, the whole batch.
        max_staleness: age of a group when it is used, in batches, at most.
        fixed_lag: always use groups as old as they may be.
        exploration: how actions are drawn, with schedules at the step of the weights.
        seed: of all groups.
        lease_size: trajectories that a searcher makes at once, whole groups, which then count as one; default, one
            group. More are quicker each, and fewer searchers can work at a batch.

    Raises:
        ValueError: unless ``group_size`` divides ``lease_size`` and that ``batch_size``, all are positive, and
            ``max_staleness`` is not negative; when called, if another size than ``batch_size`` is asked for.
    """

    def __init__(
        self,
        env: Environment[S],
        policy: Policy[S],
        engine: Engine | None = None,
        batch_size: int | None = None,
        group_size: int | None = None,
        max_staleness: int = 4,
        fixed_lag: bool = False,
        exploration: Exploration | None = None,
        seed: int = 0,
        lease_size: int | None = None,
    ) -> None:
        if max_staleness < 0:
            raise ValueError(f"Asynchronous: max_staleness must not be negative, got {max_staleness}; 0 is on policy")
        if group_size is not None and group_size < 1:
            raise ValueError(f"Asynchronous: group_size must be positive, got {group_size}")
        self.batch_size = checked_size("Asynchronous", batch_size, group_size or 16, group_size or 1)
        self.one_group, self.forward = group_size is None, True
        self.group_size = self.batch_size if group_size is None else group_size
        lease = self.group_size if lease_size is None else lease_size
        if lease < 1 or lease % self.group_size or self.batch_size % lease:
            raise ValueError(
                f"Asynchronous: lease_size must be a multiple of group_size={self.group_size} that divides "
                f"batch_size={self.batch_size}, got {lease}"
            )
        self.groups, self.max_staleness, self.fixed_lag = self.batch_size // lease, max_staleness, fixed_lag
        self.engine: Engine = engine if engine is not None else InProcess()
        self.exploration: Exploration = exploration if exploration is not None else NoExploration()
        self.searcher = Searcher(env, policy, self.exploration, self.group_size, seed, lease)
        self.hub = self._new_hub()
        self._like = env.reset(1, torch.Generator(env.device).manual_seed(0))
        self._started = False
        self._taken: list[int] = []  # the groups of the last batch
        self._lags: tuple[float, float] = (0.0, 0.0)

    def _new_hub(self) -> Hub:
        return Hub((self.max_staleness + 1) * self.groups, self.engine.time_limit, self.fixed_lag)

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        if size not in (None, self.batch_size):
            raise ValueError(
                f"Asynchronous: asked for {size} trajectories at step {step}, and searchers work ahead for batches of "
                f"{self.batch_size}: let its batch_size be what is asked for, the same at every step"
            )
        if not self._started:
            self.engine.start(self.hub, self.searcher)
            self._started = True
        self.hub.advance(self._taken, self.engine.publish(step))
        self._taken = []
        self.engine.gather(self.groups)
        found = self.hub.take(self.groups)
        batch = Trajectories.cat([Trajectories.from_tensors(group, self._like) for group in found.values()])
        self._taken = list(found)
        lag = (step - batch.policy_version).double()
        self._lags = float(lag.mean()), float(lag.max())
        return batch

    def settings(self, step: int) -> dict[str, float]:
        """Age of the last batch in updates, groups that wait, and what went wrong with searchers."""
        ledger = self.hub.ledger
        return {
            **self.exploration.settings(step),
            "lag_mean": self._lags[0],
            "lag_max": self._lags[1],
            "queue": float(ledger.waiting - len(self._taken)),
            "leases_expired": float(ledger.expired),
            "duplicates": float(ledger.duplicates),
            **self.engine.settings(),
        }

    def state_dict(self) -> dict[str, Any]:
        """The groups that wait, without those of the last batch, which has been trained on."""
        if self.fixed_lag and self._started and self.hub.error is None:
            self.engine.gather(self.hub.ledger.bound)  # the weights for those on their way are not kept
        return self.hub.state_dict(self._taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.engine.close()
        self._started, self._taken = False, []
        self.hub = self._new_hub()
        self.hub.load_state_dict(state)

    def close(self) -> None:
        """End all searchers. The next call starts them again, and what they were making is made anew."""
        self.load_state_dict(self.hub.state_dict(self._taken))
