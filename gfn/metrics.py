"""Metrics: pure functions of exact distributions and of samples. Distances in nats, all float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from gfn.objectives.divergence import Alpha
from gfn.states import States

S = TypeVar("S", bound=States)


def total_variation(log_p: Tensor, log_q: Tensor) -> float:
    """½ Σ|p − q|, from log-probabilities ``[X]``; in [0, 1]."""
    return l1_sum(log_p, log_q) / 2


def l1_sum(log_p: Tensor, log_q: Tensor) -> float:
    """Σ|p − q|; in [0, 2]. Other libraries' "mean L1" is this over the number of terminal states."""
    return float((log_p.double().exp() - log_q.double().exp()).abs().sum())


def kl(log_p: Tensor, log_q: Tensor) -> float:
    """KL(p‖q) = Σ p log(p/q); +inf where p has mass that q has not."""
    p = log_p.double().exp()
    return float(torch.where(p > 0, p * (log_p.double() - log_q.double()), 0.0).sum())


def jsd(log_p: Tensor, log_q: Tensor) -> float:
    """Jensen–Shannon divergence with even weights; in [0, log 2]."""
    log_m = torch.logaddexp(log_p.double(), log_q.double()) - math.log(2)
    return (kl(log_p, log_m) + kl(log_q, log_m)) / 2


def pearson(x: Tensor, y: Tensor) -> float:
    """Correlation of two samples ``[N]`` over the entries where both are finite; NaN if one is constant."""
    both = x.isfinite() & y.isfinite()
    a, b = x[both].double(), y[both].double()
    if len(a) == 0 or bool((a == a[0]).all()) or bool((b == b[0]).all()):
        return math.nan
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt())


def spearman(x: Tensor, y: Tensor) -> float:
    """Correlation of the ranks of two samples ``[N]``, equal values sharing their mean rank; NaN if one is constant.

    Infinities have a rank like any number; entries where one is NaN do not count.
    """
    both = ~(x.isnan() | y.isnan())
    return pearson(_ranks(x[both]), _ranks(y[both]))


def _ranks(values: Tensor) -> Tensor:
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    return (count.cumsum(0).double() - (count - 1) / 2)[place]


def top_k_mean(values: Tensor, k: int) -> float:
    """Mean of the k largest of a sample ``[N]``, or of all if there are fewer."""
    return float(values.double().topk(min(k, len(values))).values.mean())


def diversity(states: S, distance: Callable[[S, S], Tensor]) -> float:
    """Mean distance over all pairs of N ≥ 2 states; ``distance`` is that of two batches row by row."""
    first, second = torch.triu_indices(len(states), len(states), offset=1)
    return float(distance(states[first], states[second]).double().mean())


def effective_sample_size(log_weight: Tensor) -> float:
    """(Σw)²/Σw² over the number of samples ``[N]``; 1 if all weights are equal."""
    log_ess = 2 * log_weight.double().logsumexp(0) - (2 * log_weight.double()).logsumexp(0)
    return float((log_ess - math.log(len(log_weight))).exp())


def evidence_bound(log_weight: Tensor) -> float:
    """Mean of log w = log R + log P_B − log P_F over trajectories ``[N]``.

    With trajectories of P_F it bounds log Z from below (ELBO); with trajectories drawn by P_B from
    the target, from above (EUBO).
    """
    return float(log_weight.double().mean())


def log_z_estimate(log_weight: Tensor) -> float:
    """log of the mean importance weight of trajectories of P_F; consistent for log Z, biased low."""
    return float(log_weight.double().logsumexp(0) - math.log(len(log_weight)))


def log_z_ladder(log_weight: Tensor, alphas: Sequence[float] = (0.0, 0.5, 1.0, 2.0)) -> list[float]:
    """log Ẑ_α of importance weights ``[N]`` of trajectories of P_F: what the DevGrad of each α takes for log Z.

    It never increases with α: α = 0 is :func:`log_z_estimate`, α = 1 the ELBO. Their difference
    estimates KL(P_F‖target) over trajectories; all steps meet where the policy is right.
    """
    delta = -log_weight.double()
    weight = torch.full_like(delta, 1 / len(delta))
    return [-float(Alpha(alpha).centre(delta, weight)) for alpha in alphas]


def modes_kept(label: Tensor, log_p: Tensor, log_target: Tensor, share: float = 0.25) -> int:
    """How many modes hold at least ``share`` of the mass that the target gives them.

    Args:
        label: mode of each terminal state, long ``[X]``, −1 for none.
        log_p: learned log-probabilities, ``[X]``.
        log_target: exact ones, ``[X]``.
    """
    inside = label >= 0
    names, place = label[inside].unique(return_inverse=True)
    empty = torch.zeros(len(names), dtype=torch.float64, device=label.device)
    mass = empty.index_add(0, place, log_p[inside].double().exp())
    wanted = empty.index_add(0, place, log_target[inside].double().exp())
    return int(((mass >= share * wanted) & (wanted > 0)).sum())
