"""Exact answers where hardly any terminal state has a reward of its own and a prior says how likely each is.

With a prior π and R the same for all terminal states but a few that can be listed, log Z(x) is known:
Z(x) = R_rest·(1 − Σ π(y|x)) + Σ π(y|x) R(y), both sums over those few. So are the probabilities of each
of them and of all the rest together, under the target and under any policy: for a verifier that says
right or wrong, with all right answers known, nothing has to be estimated.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from gfn import metrics
from gfn.environment import DiscreteEnvironment, Environment, as_discrete
from gfn.objectives.groups import places
from gfn.policies import Policy, UniformBackward
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


@runtime_checkable
class Sparse(Protocol):
    """An environment whose states form trees, and whose terminal states have one log-reward but for some."""

    def log_reward_elsewhere(self) -> float:
        """Log-reward of every terminal state that is none of the :meth:`exceptions`."""
        ...

    def exceptions(self) -> Any:
        """Terminal states, each once, among them all with another log-reward; some below every initial state."""
        ...


def as_sparse(env: Environment[S]) -> Sparse | None:
    """``env`` itself if it can list the states that have a reward of their own, else None."""
    return cast("Sparse", env) if isinstance(env, Sparse) and as_discrete(env) is not None else None


class SparseTarget(Generic[S]):
    """The target π(y|x) R(y)/Z(x) on the exceptions, and on all else together.

    Args:
        env: the environment.
        sparse: the same, as one that lists exceptions.
        prior: π.

    Attributes:
        initial: the initial states, ``[G]``.
        log_z: exact log Z of each, float64 ``[G]``.
    """

    def __init__(self, env: DiscreteEnvironment[S], sparse: Sparse, prior: Policy[S]):
        t: Trajectories[S] = rollout(env, UniformBackward(env), sparse.exceptions(), backward=True)
        t = t.grouped_by_initial()
        self.t = t[t.group.argsort(stable=True)]
        self._place, count = places(self.t.group)
        self.initial = self.t[count.cumsum(0) - count].initial
        prior_table = self._table(prior)
        reward = torch.full_like(prior_table, sparse.log_reward_elsewhere())
        reward[self._place] = self.t.log_reward.double()
        self.log_z = (prior_table + reward).logsumexp(1)
        self.log_target = prior_table + reward - self.log_z.unsqueeze(1)

    @torch.no_grad()
    def _table(self, policy: Policy[S]) -> Tensor:
        """log-probability of the exceptions, −∞ where there are fewer, and last of all the rest, ``[G, 1 + most]``."""
        log_p = self.t.pad(policy.log_prob(self.t).double()).sum(1)
        table = log_p.new_full((len(self.initial), int(self._place[1].max()) + 2), -torch.inf)
        table[self._place] = log_p
        table[:, -1] = torch.log1p(-table.exp().sum(1).clamp(max=1 - 1e-12))
        return table

    def distances(self, policy: Policy[S]) -> dict[str, float]:
        """How far a policy is from the target, where the rest counts as one state; the mean over initial states.

        Lumping makes the divergences lower bounds of those over all terminal states.
        """
        log_p = self._table(policy)
        pairs = list(zip(log_p, self.log_target, strict=True))
        n = len(pairs)
        return {
            "log_z_exact": float(self.log_z.mean()),
            "exceptions_mass": float(log_p[:, :-1].exp().sum(1).mean()),
            "exceptions_mass_target": float(self.log_target[:, :-1].exp().sum(1).mean()),
            "tv_coarse": sum(metrics.total_variation(p, q) for p, q in pairs) / n,
            "kl_target_model_coarse": sum(metrics.kl(q, p) for p, q in pairs) / n,
            "kl_model_target_coarse": sum(metrics.kl(p, q) for p, q in pairs) / n,
        }


def sparse_target(env: Environment[S], prior: Policy[S] | None) -> SparseTarget[S] | None:
    """The exact target where there is a prior and the environment lists its exceptions, else None."""
    sparse, discrete = as_sparse(env), as_discrete(env)
    if prior is None or sparse is None or discrete is None:
        return None
    return SparseTarget(discrete, sparse, prior)
