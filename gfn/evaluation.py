"""Evaluation with a generator of its own, so that looking at a run never changes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from gfn import exact, metrics
from gfn.backward import has_dead_ends, log_return, reach_fraction, terminal_log_prob
from gfn.discovery import Discovery
from gfn.distributions import NoActionError
from gfn.environment import (
    Environment,
    RewardError,
    as_enumerable,
    as_measured,
    as_multimodal,
    as_summarised,
    as_tested,
    checked_log_reward,
)
from gfn.examples import Example, examples
from gfn.objectives import Learner
from gfn.objectives.balance import Scores
from gfn.sampling import rollout
from gfn.solved import as_solved, compare
from gfn.sparse import SparseTarget, sparse_target
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
LADDER = (0.0, 0.5, 1.0, 2.0)  # α of the log Z estimates that are compared
WALKS = 64  # walks back from ends of trajectories, where states are not listed
WORST = ("tv", "l1_sum", "jsd_nats", "kl_target_model", "kl_model_target", "log_z_error")


class Evaluator(Generic[S]):
    """Measures a policy against the exact target where the environment can be listed, and by samples always.

    With several conditions, every metric is the mean of those of each condition, and the exact
    distances come with that of the worst (``tv`` and ``tv_worst``). An environment that lists its
    states is sampled from each of its initial states; another from as many as ``conditions`` says.

    Args:
        env: the environment.
        objective: the policies and the log Z to look at.
        every: updates between evaluations.
        n_samples: trajectories for the sampled metrics, shared out evenly among initial states.
        exact: enumerate if the environment can be; turn off for graphs too large to list.
        seed: of the evaluator's own generator.
        conditions: initial states to draw, where they are not listed.
        top_k: how many of the samples with the largest rewards count for ``log_reward_top`` and ``diversity``.
        test_states: how many states of the environment's test set, if it has one, to look at.
        backward_samples: walks back from each of them, for its probability.

    Raises:
        ValueError: if a number is not positive, or there are not two samples for each initial state.
    """

    def __init__(
        self,
        env: Environment[S],
        objective: Learner[S],
        every: int = 100,
        n_samples: int = 256,
        exact: bool = True,
        seed: int = 0,
        conditions: int = 1,
        top_k: int = 16,
        test_states: int = 256,
        backward_samples: int = 10,
    ):
        if every < 1 or n_samples < 2 or conditions < 1:
            raise ValueError(
                f"Evaluator: needs every >= 1, n_samples >= 2 and conditions >= 1, "
                f"got {every=} {n_samples=} {conditions=}"
            )
        if top_k < 2 or test_states < 2 or backward_samples < 1:
            raise ValueError(
                f"Evaluator: needs top_k >= 2, test_states >= 2 and backward_samples >= 1, "
                f"got {top_k=} {test_states=} {backward_samples=}"
            )
        self.env, self.objective, self.every, self.n_samples = env, objective, every, n_samples
        self.seed, self.top_k, self.backward_samples = seed, top_k, backward_samples
        self.exact = exact
        self.retarget()
        prior = objective.backward_policy.prior
        known = self._known_starts()
        self.starts = conditions if known is None else len(known)
        if n_samples < 2 * self.starts:
            raise ValueError(
                f"Evaluator: {n_samples=} leaves less than 2 for each of {self.starts} initial states; raise n_samples"
            )
        self.test = _test_set(env, test_states, seed) if prior is None else None
        self.discovery = Discovery(env)
        self.examples: Sequence[Example] = ()  # of the latest samples

    def retarget(self) -> None:
        """Find out anew what is to be sampled, as it depends on the prior."""
        self.graph = _graph(self.env, self.objective) if self.exact else None
        listed = not self.exact or self.graph is not None
        self.sparse = None if listed else sparse_target(self.env, self.objective.backward_policy.prior)

    def __call__(self, step: int) -> dict[str, float]:
        """All metrics of the current policy; the same for the same parameters and step, whatever came before."""
        generator = torch.Generator(self.env.device).manual_seed(self.seed * 1_000_003 + step)
        modes = {module: module.training for module in self.objective.modules()}  # parts may differ: a frozen prior
        self.objective.eval()
        try:
            with torch.no_grad():
                sampled, log_z = self._sampled(step, generator)
                listed = {} if self.graph is None else self._exact(self.graph, log_z, generator)
                listed |= {} if self.sparse is None else _of_sparse(self.sparse, self.objective, log_z, sampled["elbo"])
                tested = {} if self.test is None else self._tested(self.test, generator)
        finally:
            for module, training in modes.items():
                module.training = training
        return _joined(sampled, listed, tested)

    def _sampled(self, step: int, generator: torch.Generator) -> tuple[dict[str, float], Tensor]:
        """Metrics of trajectories of P_F, and the estimate of log Z from each initial state, ``[starts]``."""
        group = torch.arange(self.n_samples, device=self.env.device) * self.starts // self.n_samples
        known = self._known_starts()
        first = self.env.reset(self.starts, generator) if known is None else known
        t = rollout(self.env, self.objective.policy, first[group], group=group, generator=generator).known()
        if len(t) == 0:
            raise RewardError(f"none of the rewards of {self.n_samples} samples is known, as all of them failed")
        scores = self.objective.scores(t)
        log_z = _mean_by(t.group, self.objective.log_z(scores, step).double(), self.starts)
        estimates = [_estimates(-scores.excess[t.group == g]) for g in t.group.unique()]
        best = t.log_reward.topk(min(self.top_k, len(t))).indices
        measured = as_measured(self.env)
        apart = {} if measured is None else {"diversity": metrics.diversity(t.final[best], measured.distance)}
        common = {
            **_mean(estimates),
            "log_reward_mean": float(t.log_reward.mean()),
            "log_reward_top": float(t.log_reward[best].double().mean()),
            "length_mean": float(t.lengths.double().mean()),
            **_of_policies(scores, self.objective.backward_policy.prior is not None),
            "log_z": float(log_z.nanmean()),  # NaN where no reward is known
            **apart,
            **self._returning(t.final[:WALKS], generator),
        }
        solved = as_solved(self.env) if known is None and self.objective.backward_policy.prior is None else None
        if solved is not None:
            common |= compare(solved, self.env, self.objective, scores, first, log_z, generator)
        self.examples = examples(self.env, t)
        summarised = as_summarised(self.env)
        return (common if summarised is None else _joined(common, summarised.summary(t))), log_z

    def _known_starts(self) -> S | None:
        """Every initial state, where they are listed."""
        if self.graph is not None:
            return self.graph.states[self.graph.initial]
        return None if self.sparse is None else self.sparse.initial

    def _returning(self, final: S, generator: torch.Generator) -> dict[str, float]:
        """Share of walks by P_B from ends of trajectories that reach the start, where that is not known exactly."""
        backward = self.objective.backward_policy
        if self.graph is not None or backward.prior is not None:
            return {}
        return {"reach_fraction": reach_fraction(self.env, backward, final, generator)}

    def _exact(self, graph: exact.StateGraph[S], log_z: Tensor, generator: torch.Generator) -> dict[str, float]:
        log_p, log_target = exact.log_terminal(graph, self.objective.policy), graph.log_target
        of_terminal = graph.condition[graph.terminal]
        error = _mean_by(graph.condition[graph.initial], log_z, graph.n_conditions) - graph.log_z
        each = [
            _distances(log_p[of_terminal == c], log_target[of_terminal == c], float(graph.log_z[c]), float(error[c]))
            for c in range(graph.n_conditions)
        ]
        result = _mean(each)
        if len(each) > 1:
            result |= {f"{name}_worst": max((d[name] for d in each), key=abs) for name in WORST}
            result["correlation_worst"] = min(d["correlation"] for d in each)
        modal = as_multimodal(self.env)
        if modal is not None:
            labels = modal.modes(graph.states[graph.terminal])
            kept = {name: metrics.modes_kept(labels[name], log_p, log_target) for name in modal.mode_counts}
            result |= {f"{name}_kept": float(count) for name, count in kept.items()}
        return result | self._backward(graph, generator)

    def _backward(self, graph: exact.StateGraph[S], generator: torch.Generator) -> dict[str, float]:
        """Upper bound on log Z by walks back from exact samples of the target; or how many of those would be lost."""
        backward = self.objective.backward_policy
        if backward.prior is not None:
            return {}  # it scores trajectories, and cannot walk back
        if has_dead_ends(graph):
            q = log_return(graph, exact.edge_log_pb(graph, backward))[graph.terminal].exp()
            mean = float((graph.log_target.exp() * q).sum()) / graph.n_conditions
            return {"reach_fraction": mean, "reach_fraction_worst": float(q.min())}
        draw = torch.multinomial(graph.log_target.exp(), self.n_samples, replacement=True, generator=generator)
        final = graph.states[graph.terminal[draw]]
        try:
            t: Trajectories[S] = rollout(self.env, backward, final, backward=True, generator=generator)
        except NoActionError:  # P_B does not know every edge
            return {"reach_fraction": reach_fraction(self.env, backward, final, generator)}
        return {"eubo": metrics.evidence_bound(-self.objective.scores(t).excess)}

    def _tested(self, final: S, generator: torch.Generator) -> dict[str, float]:
        """Correlation of estimated log-probabilities of the test set with its log-rewards."""
        policy, backward = self.objective.policy, self.objective.backward_policy
        log_p = terminal_log_prob(self.env, policy, backward, final, self.backward_samples, generator)
        log_reward = checked_log_reward(self.env, final)
        return {
            "test_spearman": metrics.spearman(log_p, log_reward),
            "test_pearson": metrics.pearson(log_p, log_reward),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"discovery": self.discovery.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over discoveries; a state without any is that of a run without an evaluator."""
        self.discovery.load_state_dict(state.get("discovery", {}))
        if self.objective.backward_policy.prior is not None:  # it may have been reset in the meantime
            self.retarget()


def _graph(env: Environment[S], objective: Learner[S]) -> exact.StateGraph[S] | None:
    """The graph of an environment that can be listed, with what is to be sampled: R, or π·R under a prior."""
    if as_enumerable(env) is None:
        return None
    graph, prior = exact.state_graph(env), objective.backward_policy.prior
    return graph if prior is None else replace(graph, log_reward=graph.log_reward + exact.log_terminal(graph, prior))


def _test_set(env: Environment[S], n: int, seed: int) -> S | None:
    """At most ``n`` states of the environment's test set, the same for the same seed; None if it has none."""
    tested = as_tested(env)
    if tested is None:
        return None
    generator = torch.Generator(env.device).manual_seed(seed)
    states: S = tested.benchmark_states(generator)
    return states[torch.randperm(len(states), generator=generator, device=env.device)[:n]]


def _of_policies(scores: Scores, prior: bool) -> dict[str, float]:
    """Entropy of trajectories, and KL to the prior if there is one, in nats, by samples."""
    log_pf = scores.log_pf.double().sum(1)
    kl = {"kl_prior": float((log_pf - scores.log_pb.double().sum(1)).mean())} if prior else {}
    return {"entropy": -float(log_pf.mean()), **kl}


def _of_sparse(target: SparseTarget[S], objective: Learner[S], log_z: Tensor, elbo: float) -> dict[str, float]:
    """Distances to a target known on its exceptions; the KL to it is unbiased, the ELBO being so."""
    error = float((log_z - target.log_z).mean())
    kl = float(target.log_z.mean()) - elbo
    return {**target.distances(objective.policy), "log_z_error": error, "kl_model_target": kl}


def _estimates(log_weight: Tensor) -> dict[str, float]:
    """What importance weights of trajectories from one initial state tell about its log Z."""
    ladder = metrics.log_z_ladder(log_weight, LADDER)
    return {
        "elbo": metrics.evidence_bound(log_weight),
        "log_z_importance": metrics.log_z_estimate(log_weight),
        "importance_ess": metrics.effective_sample_size(log_weight),
        **{f"log_z_alpha_{alpha:g}": value for alpha, value in zip(LADDER, ladder, strict=True)},
        "kl_estimate": ladder[0] - ladder[2],
    }


def _distances(log_p: Tensor, log_target: Tensor, log_z: float, error: float) -> dict[str, float]:
    """How the learned distribution differs from the target of one condition."""
    return {
        "tv": metrics.total_variation(log_p, log_target),
        "l1_sum": metrics.l1_sum(log_p, log_target),
        "jsd_nats": metrics.jsd(log_p, log_target),
        "kl_target_model": metrics.kl(log_target, log_p),
        "kl_model_target": metrics.kl(log_p, log_target),
        "correlation": metrics.pearson(log_p, log_target),
        "log_z_exact": log_z,
        "log_z_error": error,
    }


def _joined(*parts: Mapping[str, float]) -> dict[str, float]:
    """Metrics of several kinds; raises ValueError if two have one name."""
    result: dict[str, float] = {}
    for part in parts:
        twice = sorted(result.keys() & part.keys())
        if twice:
            raise ValueError(f"Evaluator: there are two metrics named {', '.join(twice)}; rename what summary gives")
        result |= part
    return result


def _mean(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(d[name] for d in each) / len(each) for name in each[0]}


def _mean_by(index: Tensor, values: Tensor, n: int) -> Tensor:
    """Mean of the values with each index, ``[n]``."""
    return values.new_zeros(n).index_add(0, index, values) / torch.bincount(index, minlength=n)
