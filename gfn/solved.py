"""Environments whose target is known exactly though their states cannot be listed, and what that tells of a policy."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gfn import metrics
from gfn.environment import Environment
from gfn.objectives import Learner
from gfn.objectives.balance import Scores
from gfn.sampling import rollout


@runtime_checkable
class Solved(Protocol):
    """An environment that knows log Z, or draws from its target, or both."""

    def log_partition(self, initial: Any, /) -> Tensor | None:
        """Exact log Z of each initial state, ``[N]``; None where it is not known."""
        ...

    def exact_terminal(self, initial: Any, generator: torch.Generator | None = None, /) -> Any | None:
        """A terminal state drawn from R/Z for each initial state, N of them; None where that cannot be done."""
        ...


def as_solved(env: Environment[Any]) -> Solved | None:
    """``env`` itself if it knows its target, else None."""
    return env if isinstance(env, Solved) else None


def compare(
    solved: Solved,
    env: Environment[Any],
    objective: Learner[Any],
    scores: Scores,
    first: Any,
    log_z: Tensor,
    generator: torch.Generator,
) -> dict[str, float]:
    """Errors of estimates of log Z, and the upper bound on it by walks of P_B from exact samples (EUBO).

    Args:
        solved, env: the environment.
        objective: the policies; P_B must be able to walk back.
        scores: of trajectories of P_F, with groups numbered as the rows of ``first``.
        first: initial states.
        log_z: the objective's estimate of log Z of each of them.
        generator: source of exact samples and walks.

    Returns:
        ``log_z_exact`` and ``log_z_error`` are means over initial states, ``log_z_importance_error`` is the one of
        largest size among the errors of importance-weighted estimates.
    """
    found = dict[str, float]()
    exact, final = solved.log_partition(first), solved.exact_terminal(first[scores.group], generator)
    if exact is not None:
        excess, known = scores.excess, exact.double()
        estimated = [metrics.log_z_estimate(-excess[scores.group == g]) for g in range(len(first))]
        errors = [z - float(true) for z, true in zip(estimated, known, strict=True)]
        found |= {"log_z_exact": float(known.mean()), "log_z_error": float((log_z - known).mean())}
        found |= {"log_z_importance_error": max(errors, key=abs)}
    if final is not None:
        t = rollout(env, objective.backward_policy, final, backward=True, group=scores.group, generator=generator)
        found["eubo"] = metrics.evidence_bound(-objective.scores(t).excess)
    return found
