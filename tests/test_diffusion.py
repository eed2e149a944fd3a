"""Diffusion samplers: the contract, the processes, and the exact solution of Gaussian targets."""

from __future__ import annotations

import re

import pytest
import torch

from envs.diffusion.environment import Diffusion, Points, exact_samples
from envs.diffusion.policies import Drift, Reversed
from envs.diffusion.processes import Bridge, Noising
from envs.diffusion.targets import ConditionalGaussian, Function, ManyWell, gaussians25
from gfn.check import check_environment, check_policy
from gfn.evaluation import Evaluator
from gfn.metrics import evidence_bound
from gfn.objectives import Alpha, DevGrad, LearnedLogZ, Objective
from gfn.objectives.derived import Clipped
from gfn.objectives.members import JensenShannon
from gfn.policies import Prior
from gfn.samplers import BackwardFromData
from gfn.sampling import rollout
from tests.diffusion_oracles import TimeReversal, normal

PROCESSES = [Bridge(6.0), Bridge(6.0, power=2.0), Noising(2.0), Noising(2.0, power=1.5, rest=0.05)]
DIVERGENCES = [*map(Alpha, (-1.0, 0.0, 0.5, 1.0, 2.0)), JensenShannon(0.3), Clipped(Alpha(0.0), 3.0)]


@pytest.mark.parametrize("process", PROCESSES)
def test_contract_is_kept(process) -> None:
    env = Diffusion(ConditionalGaussian(3), 5)
    policy, backward = Drift(env, process, width=8, langevin=True, learned_variance=True), Reversed(env, process)
    torch.nn.init.normal_(policy.network[-1].weight, std=0.1)
    check_environment(env, policy, backward, n=16)
    check_policy(policy, env, n=16)
    check_policy(backward, env, backward=True, forward=policy, n=16)


@pytest.mark.parametrize("process", PROCESSES)
def test_walks_back_end_exactly_at_the_origin(process) -> None:
    env = Diffusion(ManyWell(6), 17)
    final = exact_samples(env, 64)
    t = rollout(env, Reversed(env, process), final, backward=True, generator=torch.Generator().manual_seed(0))
    assert t.lengths.tolist() == [17] * 64
    assert t.initial.x.equal(torch.zeros(64, 6))
    assert t.final.x.equal(final.x)
    first = t.column == 0
    assert t.behaviour_log_prob[first].equal(torch.zeros(64))  # the step back to the origin is certain
    assert bool((t.behaviour_log_prob[~first] != 0).all())


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.usefixtures("float64")
def test_places_given_the_end_are_those_of_the_steps(process) -> None:
    """Moments of x_t given x_T, and of x_t given x_{t−1} and x_T, against the joint covariance of the chain."""
    steps = process(4)
    n = len(steps)
    # x_t = scale_t x_T + noise: build the joint covariance of (x_0 … x_T) for an end of unit variance.
    back = torch.zeros(n + 1, n + 1)  # row t: weights of (x_T, noises) in x_t
    back[n, n] = 1.0
    for t in range(n, 0, -1):
        back[t - 1] = steps.shrink[t - 1] * back[t]
        back[t - 1, t - 1] += steps.back[t - 1]
    scale, spread = steps.from_end()
    assert torch.allclose(back[:, n], scale)
    assert torch.allclose(back[:, :n].norm(dim=1), spread)
    covariance = back @ back.T
    for t, (gain, pull, rest) in enumerate(zip(*steps.between(), strict=True), start=1):
        known = [n] if t == 1 or t == n else [t - 1, n]  # the origin tells nothing
        weights = torch.linalg.solve(covariance[known][:, known], covariance[known, t])
        left = covariance[t, t] - weights @ covariance[known, t]
        assert torch.allclose(weights, torch.stack([gain, pull])[-len(known) :], atol=1e-9)
        assert torch.allclose(left.clamp(min=0).sqrt(), rest, atol=1e-7)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.usefixtures("float64")
def test_residual_is_zero_at_the_exact_solution(process) -> None:
    target = normal()
    env = Diffusion(target, 9)
    policy, backward = TimeReversal(env, target, process(9)), Reversed(env, process)
    generator = torch.Generator().manual_seed(0)
    forth = rollout(env, policy, env.reset(32, generator), generator=generator)
    ends = exact_samples(env, 32)
    back = rollout(env, backward, ends, backward=True, generator=generator)
    for t in (forth, back):
        scores = Objective(policy, backward, Alpha(1.0), DevGrad()).scores(t)
        assert torch.allclose(-scores.excess, target.log_z[t.final.label], atol=1e-8)
        for divergence in DIVERGENCES:
            objective = Objective(policy, backward, divergence, DevGrad())
            grouped = t.grouped_by_initial()
            loss, report = objective(grouped)
            assert abs(float(loss)) < 1e-12
            assert float(report["residual"]) < 1e-7
            assert torch.allclose(objective.log_z(objective.scores(grouped), 0), target.log_z[t.final.label])


@pytest.mark.usefixtures("float64")
def test_bounds_enclose_log_z_and_meet_at_the_solution() -> None:
    target = normal()
    env = Diffusion(target, 9)
    backward = Reversed(env, Noising(2.0))
    rough = Drift(env, Noising(2.0), width=4)
    exact = TimeReversal(env, target, Noising(2.0)(9))
    for policy, gap in ((rough, 1.0), (exact, 0.0)):
        objective = Objective(policy, backward, Alpha(1.0), LearnedLogZ(init=0.0))
        if gap == 0:
            objective.register_parameter("anything", torch.nn.Parameter(torch.zeros(())))
        found = Evaluator(env, objective, n_samples=256, conditions=6)(0)
        middle = found["log_z_exact"]
        assert found["elbo"] <= middle - gap + 1e-7
        assert found["eubo"] >= middle + gap - 1e-7
        assert found["log_z_error"] == pytest.approx(-middle)
        if gap == 0:
            assert abs(found["log_z_importance_error"]) < 1e-7
            assert found["importance_ess"] == pytest.approx(1.0)


@pytest.mark.parametrize("divergence", [Alpha(0.0), Alpha(0.5), Alpha(1.0)])
@pytest.mark.usefixtures("float64")
def test_gradient_is_that_of_finite_differences(divergence) -> None:
    env = Diffusion(ConditionalGaussian(2), 4)
    process = Noising(2.0)
    policy = Drift(env, process, width=3, depth=1, learned_variance=True, langevin=True)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    objective = Objective(policy, Reversed(env, process), divergence, LearnedLogZ(init=0.5))
    t = rollout(env, policy, env.reset(8), generator=torch.Generator().manual_seed(0))
    loss, _ = objective(t)
    loss.backward()
    for parameter in (policy.network[0].weight, policy.network[-1].bias, policy.gate[-1].weight, policy.label.weight):
        flat, gradient = parameter.data.view(-1), parameter.grad.view(-1)
        for i in (0, len(flat) - 1):
            at, values = float(flat[i]), []
            for change in (1e-6, -1e-6):
                flat[i] = at + change
                values.append(objective(t)[0].item())
            flat[i] = at
            assert float(gradient[i]) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5, abs=1e-7)


def test_prior_has_the_place_of_the_way_back() -> None:
    env = Diffusion(ConditionalGaussian(2), 4)
    policy = Drift(env, Noising(2.0), width=4)
    objective = Objective(policy, Prior(policy), Alpha(1.0), DevGrad())
    t = rollout(env, policy, env.reset(8), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(objective.scores(t).excess, -t.log_reward)
    found = Evaluator(env, objective, n_samples=16)(0)
    assert found["kl_prior"] == 0.0
    assert "eubo" not in found  # the target is π R, not R
    assert "log_z_exact" not in found


def test_before_learning_forward_steps_are_those_of_the_process() -> None:
    env = Diffusion(gaussians25(), 6)
    states = Points(torch.ones(2, 2), torch.tensor([0, 3]), torch.zeros(2, dtype=torch.long))
    for process in PROCESSES:
        steps, policy = process(6), Drift(env, process, learned_variance=True, langevin=True)
        d = policy.distribution(states)
        assert torch.allclose(d.mean, (steps.carry[[0, 3]] - 1).float().unsqueeze(1).expand(2, 2))
        assert torch.allclose(d.std, steps.out[[0, 3]].float().unsqueeze(1).expand(2, 2))


def test_data_for_training_are_exact_samples_with_walks_back() -> None:
    env = Diffusion(ConditionalGaussian(2), 4)
    sampler = BackwardFromData(env, Reversed(env, Noising(2.0)), exact_samples, batch_size=8, group_size=4)
    t = sampler(0)
    assert t.final.label.view(2, 4).unique(dim=1).shape == (2, 1)
    assert evidence_bound(t.log_reward) > -3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Diffusion(gaussians25(), 1), "steps must be at least 2"),
        (lambda: Bridge(1.0)(1), "needs at least 2 steps"),
        (lambda: Noising(sigma=0.0), "expected finite numbers above 0, got {'sigma': 0.0}"),
        (lambda: Noising(rest=1.0), "rest must lie between 0 and 1, got 1.0"),
        (lambda: Diffusion(Function(lambda x: (x[:, 0] - 1).log(), 2)), "is nan at (0 0), label 0 (64 of 64"),
        (lambda: Diffusion(Function(lambda x: x.square().sum(1).log(), 2)), "is -inf at (0 0), label 0 (64 of 64"),
        (lambda: Diffusion(Function(lambda x: x, 2)), "shape (64,); got (64, 2)"),
        (lambda: exact_samples(Diffusion(Function(lambda x: -x.square().sum(1), 2))), "use sampler=on_policy"),
        (lambda: Diffusion(gaussians25()).ends(torch.zeros(3, 5)), "expected places of shape [N, 2], got [3, 5]"),
        (lambda: Drift(Diffusion(gaussians25()), Bridge(), width=0), "width and depth must be at least 1"),
        (lambda: ManyWell(7), "dim must be an even number from 2 to 64, got 7"),
    ],
)
def test_mistakes_are_told_before_training(wrong, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        wrong()


def test_impossible_moves_are_refused() -> None:
    env = Diffusion(gaussians25(), 3)
    start, move = env.reset(2), torch.ones(2, 2)
    one = env.step(start, move)
    end = env.step(env.step(one, move), move)
    for wrong, message in (
        (lambda: env.step(start, torch.ones(2, 3)), "expected actions of shape"),
        (lambda: env.step(end, move), "a state is terminal already"),
        (lambda: env.undo(start, move), "a state is initial already"),
        (lambda: env.undo(one, 2 * move), "does not come from the origin: (1 1) at time 1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            wrong()
