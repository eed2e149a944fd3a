"""Metrics: pure functions of exact distributions and of samples. Distances in nats, all float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
