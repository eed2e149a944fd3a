"""Every balance condition: zero at the exact solution, against naive definitions, and its gradients' reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Classic, Hypergrid
from gfn import exact
from gfn.flows import EdgeFlows, Flow, ForwardLooking, ImpliedByStop, MLPFlow
from gfn.objectives import (
    Alpha,
    DevGrad,
    FlowLogZ,
    LearnedLogZ,
    Objective,
    detailed_balance,
    flow_matching,
    sub_trajectory_balance,
    trajectory_balance,
)
from gfn.policies import MLPBackward, MLPPolicy, Policy, Tabular, UniformBackward
from gfn.sampling import rollout
from tests.marks import mostly_slow
from tests.oracles import MEMBERS
from tests.test_solution import GRAPHS, as_table, off_policy, random_table


class TableFlow(Flow[Any]):
    """Given log flows of all states of an enumerable environment."""

    def __init__(self, env: Any, log_flow: Tensor):
        super().__init__()
        self.index = env.index
        self.log_flow = torch.nn.Parameter(log_flow)

    def forward(self, states: Any) -> Tensor:
        return self.log_flow[self.index(states)]


def geometric(scores: Any, log_z: Tensor) -> tuple[Tensor, Tensor]:
    return sub_trajectory_balance(scores, log_z, "geometric", 0.7)


def by_length(scores: Any, log_z: Tensor) -> tuple[Tensor, Tensor]:
    return sub_trajectory_balance(scores, log_z, "length")


def equally(scores: Any, log_z: Tensor) -> tuple[Tensor, Tensor]:
    return sub_trajectory_balance(scores, log_z, "equal")


WITH_FLOWS = {"detailed": detailed_balance, "geometric": geometric, "length": by_length, "equal": equally}


def solution(env: Any, backward: Policy[Any]) -> tuple[Any, Tabular[Any], Tensor]:
    """The graph, the one balanced forward policy, and all log flows."""
    graph = exact.state_graph(env)
    log_flow = exact.log_flows(graph, exact.edge_log_pb(graph, backward))
    return graph, as_table(env, graph, exact.optimal_log_pf(graph, backward)), log_flow


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("learned", mostly_slow([False, True], [True]))
@pytest.mark.parametrize("balance", WITH_FLOWS)
@pytest.mark.parametrize("name", GRAPHS)
def test_residuals_with_flows_vanish_at_the_solution(name: str, balance: str, learned: bool) -> None:
    env = GRAPHS[name]()
    backward = random_table(env, env.backward_mask) if learned else UniformBackward(env)
    graph, policy, log_flow = solution(env, backward)
    t = off_policy(env)
    partitions = [FlowLogZ(), LearnedLogZ(float(graph.log_z)), DevGrad(), DevGrad(leave_one_out=True)]
    for member in MEMBERS.values():
        for partition in partitions:
            flow = TableFlow(env, log_flow)
            model = Objective(policy, backward, member.divergence, partition, WITH_FLOWS[balance], flow)
            scores = model.scores(t)
            residual, weight = model.balance(scores, model.partition(scores, member.divergence))
            assert residual.abs().max() <= 1e-12
            assert weight.sum() == pytest.approx(len(t))
    wrong = Objective(policy, backward, Alpha(0.5), FlowLogZ(), WITH_FLOWS[balance], TableFlow(env, log_flow * 1.3))
    assert float(wrong(t)[0].detach()) > 1e-4


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", ["2x2", "3x3", "2x2x2"])
def test_flows_implied_by_stopping_are_the_exact_ones(name: str) -> None:
    env = GRAPHS[name]()
    _, policy, log_flow = solution(env, UniformBackward(env))
    t = off_policy(env)
    torch.testing.assert_close(ImpliedByStop(env, policy)(t.sources), log_flow[env.index(t.sources)])
    model = Objective(
        policy, UniformBackward(env), Alpha(2.0), FlowLogZ(), detailed_balance, ImpliedByStop(env, policy)
    )
    scores = model.scores(t)
    residual, _ = detailed_balance(scores, model.partition(scores, model.divergence))
    assert residual.abs().max() <= 1e-12
    random = Objective(
        random_table(env, env.forward_mask), UniformBackward(env), Alpha(1.0), FlowLogZ(), detailed_balance,
        ImpliedByStop(env, random_table(env, env.forward_mask)),
    )  # fmt: skip
    assert float(random(t)[0].detach()) > 1e-2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", GRAPHS)
def test_flow_matching_vanishes_at_the_edge_flows(name: str) -> None:
    env = GRAPHS[name]()
    backward = random_table(env, env.backward_mask)
    graph, _, log_flow = solution(env, backward)
    edges = log_flow[graph.target] + exact.edge_log_pb(graph, backward)
    policy = as_table(env, graph, edges)
    flow, t = EdgeFlows(env, policy), off_policy(env)
    torch.testing.assert_close(flow(t.sources), log_flow[env.index(t.sources)])
    torch.testing.assert_close(flow.inflow(t.targets), log_flow[env.index(t.targets)])
    for member in MEMBERS.values():
        model = Objective(policy, backward, member.divergence, FlowLogZ(), flow_matching, flow)
        scores = model.scores(t)
        residual, _ = flow_matching(scores, model.partition(scores, member.divergence))
        assert residual.abs().max() <= 1e-12
    torch.testing.assert_close(exact.log_terminal(graph, policy), graph.log_target)


@pytest.mark.usefixtures("float64")
def test_inflow_is_the_sum_over_listed_parents() -> None:
    env = Hypergrid(3)
    graph = exact.state_graph(env)
    policy = random_table(env, env.forward_mask)
    edge = policy.logits[graph.source, graph.action].exp()
    total = torch.zeros(graph.n).index_add(0, graph.target, edge)
    entered = (total > 0).nonzero().flatten()
    torch.testing.assert_close(EdgeFlows(env, policy).inflow(graph.states[entered]), total[entered].log())
    (gradient,) = torch.autograd.grad(EdgeFlows(env, policy).inflow(graph.states[entered]).sum(), policy.logits)
    share = edge / total[graph.target]
    torch.testing.assert_close(gradient[graph.source, graph.action], share)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("weighting", ["geometric", "length", "equal"])
def test_sub_trajectory_balance_against_a_double_loop(weighting: Literal["geometric", "length", "equal"]) -> None:
    env = Hypergrid(4)
    policy, backward = random_table(env, env.forward_mask), random_table(env, env.backward_mask)
    flow = TableFlow(env, torch.randn(len(env.enumerate())))
    t = off_policy(env, 7)
    model = Objective(policy, backward, Alpha(0.3), LearnedLogZ(0.7), trajectory_balance, flow)
    scores = model.scores(t)
    residual, weight = sub_trajectory_balance(scores, torch.full((7,), 0.7), weighting, 0.8)
    loss = (weight * model.divergence.loss(residual)).sum()
    expected = torch.zeros(())
    for i in range(len(t)):
        one = t[i : i + 1]
        log_pf, log_pb = policy.log_prob(one), backward.log_prob_backward(one)
        log_flow = torch.cat([torch.tensor([0.7]), flow(one.sources)[1:], one.log_reward])
        terms, weights = list[Tensor](), list[float]()
        for a in range(len(log_pf)):
            for b in range(a + 1, len(log_pf) + 1):
                delta = log_flow[a] + (log_pf - log_pb)[a:b].sum() - log_flow[b]
                terms.append(model.divergence.loss(delta))
                weights.append({"geometric": 0.8 ** (b - a), "length": float(b - a), "equal": 1.0}[weighting])
        w = torch.tensor(weights)
        expected = expected + (w / w.sum() * torch.stack(terms)).sum()
    torch.testing.assert_close(loss, expected)


@pytest.mark.usefixtures("float64")
def test_extreme_decays_are_detailed_and_trajectory_balance() -> None:
    env = Hypergrid(3)
    policy, backward = random_table(env, env.forward_mask), random_table(env, env.backward_mask)
    model = Objective(
        policy, backward, Alpha(1.0), FlowLogZ(), detailed_balance, TableFlow(env, torch.randn(len(env.enumerate())))
    )
    scores = model.scores(off_policy(env, 1))
    log_z = model.partition(scores, model.divergence)
    for decay, same in ((1e-9, detailed_balance), (1e9, trajectory_balance)):
        residual, weight = sub_trajectory_balance(scores, log_z, "geometric", decay)
        other, by = same(scores, log_z)
        torch.testing.assert_close(
            (weight * model.divergence.loss(residual)).sum(),
            (by * model.divergence.loss(other)).sum(),
            rtol=1e-6,
            atol=0,
        )


@pytest.mark.usefixtures("float64")
def test_local_gradient_of_detailed_balance_is_that_of_the_divergence_at_a_state() -> None:
    """With F constant and next states from P_F, it is ∇D_f(P_F(·|s)‖F(s')P_B(s|s')/F(s)), normalised or not."""
    theta = torch.randn(4, requires_grad=True)
    log_target = torch.randn(4)  # log of F(s') P_B(s|s') / F(s): sums to anything
    for member in MEMBERS.values():
        log_p = theta.log_softmax(0)
        delta = log_p - log_target
        surrogate = (log_p.exp().detach() * member.divergence.slope(delta.detach()) * delta).sum()
        (found,) = torch.autograd.grad(surrogate, theta)
        log_p = theta.log_softmax(0)
        exact_value = (log_target.exp() * member.divergence.generator((log_p - log_target).exp())).sum()
        (expected,) = torch.autograd.grad(exact_value, theta)
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9)


COMBINATIONS: dict[str, tuple[Callable[..., Any], Callable[[Any, Any], Any], set[str]]] = {
    "detailed": (detailed_balance, lambda env, p: MLPFlow(env, p), {"policy", "backward", "flow"}),
    "sub": (sub_trajectory_balance, lambda env, p: MLPFlow(env, p), {"policy", "backward", "flow"}),
    "looking": (detailed_balance, lambda env, p: ForwardLooking(env, MLPFlow(env, p)), {"policy", "backward", "flow"}),
    "stop": (detailed_balance, lambda env, p: ImpliedByStop(env, p), {"policy", "backward"}),
    "matching": (flow_matching, lambda env, p: EdgeFlows(env, p), {"policy"}),
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINATIONS)
def test_each_gradient_reaches_each_group(name: str) -> None:
    balance, make, reached = COMBINATIONS[name]
    env = Hypergrid(4)
    policy = MLPPolicy(env, 8)
    flow = make(env, policy)
    model = Objective(
        policy,
        MLPBackward(env, policy, tied=False),
        Alpha(0.5),
        FlowLogZ(),
        balance,
        flow,
        backward_lr=1e-2,
        flow_lr=1e-2,
    )
    model(rollout(env, policy, env.reset(16)))[0].backward()
    groups = {group.name: group for group in model.parameter_groups()}
    assert set(groups) == ({"policy", "backward", "flow"} if "flow" in reached else {"policy", "backward"})
    got = {n for n, g in groups.items() if any(p.grad is not None and bool((p.grad != 0).any()) for p in g.parameters)}
    assert got == reached


def test_likelihood_trains_the_backward_policy_and_leaves_the_balance_alone() -> None:
    env = Hypergrid(4, 2, Classic(0.1))
    policy = MLPPolicy(env, 8)
    t = rollout(env, policy, env.reset(16))

    def gradients(kind: Literal["balance", "likelihood"]) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)
        backward = MLPBackward(env, policy, tied=False)
        model = Objective(policy, backward, Alpha(1.0), LearnedLogZ(0.5), backward_loss=kind)
        policy.zero_grad()
        model(t)[0].backward()
        expected = torch.autograd.grad(-backward.log_prob_backward(t).sum() / len(t), backward.head.weight)[0]
        if kind == "likelihood":
            torch.testing.assert_close(backward.head.weight.grad, expected)
        return policy.head.weight.grad.clone(), backward.head.weight.grad  # pyright: ignore

    (same, through_balance), (too, by_likelihood) = gradients("balance"), gradients("likelihood")
    torch.testing.assert_close(same, too)
    assert not torch.allclose(through_balance, by_likelihood)


@pytest.mark.usefixtures("float64")
def test_importance_weights_restore_the_gradient_of_stale_data() -> None:
    """With exponent 1 and no truncation, DevGrad on samples of μ weighted by P_F/μ is DevGrad on samples of P_F."""
    env = Hypergrid(3)
    graph = exact.state_graph(env)
    policy, behaviour = random_table(env, env.forward_mask), random_table(env, env.forward_mask)
    t = exact.all_trajectories(graph)
    t = replace(t, group=torch.zeros_like(t.group), behaviour_log_prob=torch.zeros_like(behaviour.log_prob(t)))
    for alpha in (0.0, 0.5, 1.0, 2.0):
        # Every trajectory once, as if μ were uniform over them: the weights are proportional to P_F(τ).
        model = Objective(
            policy, UniformBackward(env), Alpha(alpha), DevGrad(), importance=1.0, importance_limit=float("inf")
        )
        (found,) = torch.autograd.grad(model(t)[0], policy.logits)
        scores = model.scores(t)
        log_p = t.pad(policy.log_prob(t)).sum(1)
        divergence = Alpha(alpha)
        centre = divergence.centre(scores.excess.detach(), log_p.detach().exp())
        exact_loss = exact.expected_loss(divergence.loss, scores.excess - centre, log_p)
        (expected,) = torch.autograd.grad(exact_loss, policy.logits)
        torch.testing.assert_close(found, expected)
        plain = Objective(policy, UniformBackward(env), Alpha(alpha), DevGrad())
        (without,) = torch.autograd.grad(plain(t)[0], policy.logits)
        assert torch.cosine_similarity(without.flatten(), expected.flatten(), 0) < 0.99
