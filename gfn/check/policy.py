"""The examination of a policy, forward or backward."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from gfn.check.contract import Contract
from gfn.distributions import ActionDistribution
from gfn.environment import Environment, as_discrete, as_enumerable
from gfn.policies import Policy, Uniform
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)
SCORED = 1024  # states whose actions are all scored


def check_policy(
    policy: Policy[S],
    env: Environment[S],
    *,
    backward: bool = False,
    forward: Policy[S] | None = None,
    n: int = 64,
    seed: int = 0,
    tolerance: float = 1e-4,
) -> list[str]:
    """Examine what rollouts and objectives take for granted about a policy.

    Args:
        policy: P_F, or P_B if ``backward``.
        env: where it acts.
        backward: whether it undoes steps.
        forward: P_F that makes the trajectories a backward policy is asked about; default, uniform.
        n: number of trajectories.
        seed: of all random choices.
        tolerance: largest difference, absolute or relative, between log-probabilities that count as equal.

    Returns:
        The names of the clauses examined.

    Raises:
        ContractError: at the first clause that does not hold.
        TypeError: if ``forward`` is needed, and the environment has no dense masks to do without.
    """
    contract = Contract(env, seed, tolerance)
    start = env.reset(n, contract.generator)
    if backward:
        start = rollout(env, _forward(env, forward), start, generator=contract.generator).final
    _check_distribution(contract, policy, start)
    _check_stepper(contract, policy, start, backward)
    with contract.clause("rollout"):
        t = rollout(env, policy, start, backward=backward, generator=contract.generator)
    states = t.targets if backward else t.sources
    _check_distribution(contract, policy, states)
    _check_rows(contract, policy, states)
    _check_normalised(contract, policy, states, backward)
    _check_rescoring(contract, policy, t, backward)
    _check_gradients(contract, policy, t, backward)
    return contract.kept


def _forward(env: Environment[S], forward: Policy[S] | None) -> Policy[S]:
    discrete = as_discrete(env)
    if forward is not None:
        return forward
    if discrete is None:
        raise TypeError(
            f"check_policy: {type(env).__name__} is no DiscreteEnvironment, so it has no uniform policy to make "
            "trajectories with; give it forward="
        )
    return Uniform(discrete.forward_mask)


@torch.no_grad()
def _check_distribution(contract: Contract[S], policy: Policy[S], states: S) -> None:
    """One action and one finite log-probability for each state, drawn from the generator given."""
    with contract.clause("distribution"):
        distribution = policy.distribution(states)
        one, two = _drawn(contract, distribution, 1), _drawn(contract, distribution, 2)
        contract.require(len(one) == len(states), f"{len(states)} actions", str(len(one)), "sample one for each row")
        hint = "pass the generator to every random call in sample"
        contract.require(one.equal(two), "equal actions from equal seeds", "others", hint)
        scores = distribution.log_prob(one)
        contract.require_form("log_prob", scores, (len(states),))
        hint = "look for infinite logits, or a sample outside the support"
        contract.require(scores.isfinite(), "finite log-probabilities", "NaN or infinity", hint, states)


def _drawn(contract: Contract[S], distribution: ActionDistribution, global_seed: int) -> Tensor:
    device = contract.env.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(global_seed)
        return distribution.sample(torch.Generator(device).manual_seed(0))


@torch.no_grad()
def _check_rows(contract: Contract[S], policy: Policy[S], states: S) -> None:
    """The distribution at a state does not depend on the other rows, and can be indexed by row."""
    with contract.clause("rows"):
        distribution = policy.distribution(states)
        actions = distribution.sample(contract.generator)
        whole = distribution.log_prob(actions)
        for rows in contract.subsets(len(states)):
            hint = "do not mix rows: no batch normalisation, no dropout while sampling"
            alone = policy.distribution(states[rows]).log_prob(actions[rows])
            _require_equal(contract, alone, whole[rows], "each state to be scored alone", hint, states[rows])
            hint = "distribution[rows] must select rows of everything it holds"
            picked = distribution[rows].log_prob(actions[rows])
            _require_equal(contract, picked, whole[rows], "distribution[rows] to select rows", hint, states[rows])


@torch.no_grad()
def _check_normalised(contract: Contract[S], policy: Policy[S], states: S, backward: bool) -> None:
    """Probabilities are positive exactly where the environment has an edge, and add up to one."""
    discrete, listed = as_discrete(contract.env), as_enumerable(contract.env)
    states = states[contract.some(len(states), SCORED)]
    if discrete is None and (listed is None or backward):
        return  # such edges are not to be had one state at a time
    with contract.clause("normalised"):
        distribution = policy.distribution(states)
        total = torch.zeros(len(states), dtype=torch.float64, device=contract.env.device)
        hint = "mask the logits with the environment's mask, then normalise"
        came = "a probability that is positive where it is not, or the reverse"
        if discrete is not None:
            mask = (discrete.backward_mask if backward else discrete.forward_mask)(states)
            for action, allowed in enumerate(mask.unbind(1)):
                score = distribution.log_prob(torch.full_like(allowed, action, dtype=torch.long))
                right = torch.where(allowed, score.isfinite(), score == -torch.inf)
                contract.require(right, f"action {action} possible where allowed", came, hint, states)
                total += score.exp()
        elif listed is not None:
            row, action = listed.edges(states)
            score = distribution[row].log_prob(action)
            contract.require(score.isfinite(), "every edge possible", "one that is not", hint, states[row])
            total = total.index_add(0, row, score.double().exp())
        _require_equal(contract, total, torch.ones_like(total), "probabilities to add up to 1", hint, states)


@torch.no_grad()
def _check_stepper(contract: Contract[S], policy: Policy[S], start: S, backward: bool) -> None:
    """Step by step, ``stepper`` gives what ``distribution`` gives."""
    env = contract.env
    move, ended = (env.undo, env.is_initial) if backward else (env.step, env.is_terminal)
    with contract.clause("stepper"):
        advance = policy.stepper()
        live, kept = start, torch.arange(len(start), device=env.device)
        for _ in range(env.max_steps):
            stepped, plain = advance(live, kept), policy.distribution(live)
            action = plain.sample(contract.generator)
            hint = "what the stepper keeps must follow the rows: kept are the live rows of the previous call"
            wanted = plain.log_prob(action)
            _require_equal(contract, stepped.log_prob(action), wanted, "stepper to agree with distribution", hint, live)
            live = move(live, action)
            kept = (~ended(live)).nonzero().squeeze(-1)
            live = live[kept]
            if not len(live):
                break


@torch.no_grad()
def _check_rescoring(contract: Contract[S], policy: Policy[S], t: Trajectories[S], backward: bool) -> None:
    """A finished trajectory is scored as it was drawn."""
    name = "log_prob_backward" if backward else "log_prob"
    with contract.clause("rescoring"):
        scores = policy.log_prob_backward(t) if backward else policy.log_prob(t)
        contract.require_form(name, scores, (len(t.actions),))
        hint = "score every step with the distribution it is drawn from, in train and eval mode alike"
        states = t.targets if backward else t.sources
        _require_equal(contract, scores, t.behaviour_log_prob, f"{name} to be that of the rollout", hint, states)


def _check_gradients(contract: Contract[S], policy: Policy[S], t: Trajectories[S], backward: bool) -> None:
    """Every parameter that is to be trained gets a finite gradient."""
    named = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    if not named:
        return
    with contract.clause("gradients"), torch.enable_grad():
        scores = policy.log_prob_backward(t) if backward else policy.log_prob(t)
        hint = "look for detach, no_grad or .data; or set requires_grad to False where nothing is to be trained"
        contract.require(scores.requires_grad, "log-probabilities with a gradient", "none", hint)
        gradients = torch.autograd.grad(scores.sum(), list(named.values()), allow_unused=True)
        for name, gradient in zip(named, gradients, strict=True):
            contract.require(_reached(gradient), f"a finite gradient for {name}", "none, NaN or infinity", hint)


def _reached(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.isfinite().all())


def _require_equal(contract: Contract[S], scores: Tensor, wanted: Tensor, expected: str, hint: str, states: S) -> None:
    close = torch.isclose(scores.double(), wanted.double(), rtol=contract.tolerance, atol=contract.tolerance)
    gap = float((scores.double() - wanted.double()).abs().max())
    contract.require(close, expected, f"scores that differ by up to {gap:.3g}", hint, states)
