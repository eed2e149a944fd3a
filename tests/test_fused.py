"""Rollouts with one compiled call a step: what they draw is what operators draw."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.bits import Insert
from envs.hypergrid import Hypergrid
from gfn import fused
from gfn.conditioning import RewardExponents
from gfn.distributions import MaskedCategorical, NoActionError
from gfn.fused import Table, compiled
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPBackward, MLPPolicy, Uniform, UniformBackward
from gfn.recall import recalled
from gfn.samplers import OnPolicy
from gfn.sampling import rollout
from gfn.training import Trainer
from gfn.trajectories import Trajectories


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def assert_same(a: Trajectories[Any], b: Trajectories[Any], tolerance: float) -> None:
    first, second = a.tensors(), b.tensors()
    states, others = first.pop("states"), second.pop("states")
    assert all(states[name].equal(others[name]) for name in states)
    torch.testing.assert_close(
        first.pop("behaviour_log_prob"), second.pop("behaviour_log_prob"), rtol=0, atol=tolerance
    )
    assert all(first[name].equal(second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 16, 300])
def test_the_compiled_step_draws_what_operators_draw(n: int, dtype: torch.dtype) -> None:
    assert compiled(), "a C++ compiler is needed"
    grid = Hypergrid(5, 3)
    environments: list[Any] = [grid, RewardExponents(grid, [0.5, 1.0]), Insert(bits=6, word=2, modes=["000111"])]
    for env in environments:
        torch.manual_seed(0)
        policy = MLPPolicy(env, width=16).to(dtype)
        table, start = Table(env), env.reset(n, generator())
        tolerance = 1e-6 if dtype is torch.float32 else 1e-14
        forward = rollout(env, policy, start, generator=generator())
        assert_same(rollout(env, policy, start, generator=generator(), table=table), forward, tolerance)
        learned = [MLPBackward(env, policy, tied).to(dtype) for tied in (True, False)]
        for backward in (*learned, UniformBackward(env)):
            walked = rollout(env, backward, forward.final, backward=True, generator=generator())
            again = rollout(env, backward, forward.final, backward=True, generator=generator(), table=table)
            assert_same(again, walked, tolerance)


@pytest.mark.slow
def test_training_is_the_same_to_rounding() -> None:
    weights: list[Tensor] = []
    for choice in (True, False):
        env = Hypergrid(5, 2)
        torch.manual_seed(0)
        policy = MLPPolicy(env, width=16).double()
        objective = Objective(policy, MLPBackward(env, policy).double(), Alpha(0.5), DevGrad())
        Trainer(objective, OnPolicy(env, policy, 16, fused=choice), steps=50).run()
        weights.append(torch.cat([p.detach().flatten() for p in objective.parameters()]))
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False, None])
def test_what_the_rollout_computed_is_used_for_the_gradient_as_long_as_it_holds(tied: bool | None) -> None:
    env = Hypergrid(5, 3)
    torch.manual_seed(0)
    policy = MLPPolicy(env, width=16, depth=3).double()
    backward = UniformBackward(env) if tied is None else MLPBackward(env, policy, tied).double()
    objective = Objective(policy, backward, Alpha(0.5), DevGrad())
    t = OnPolicy(env, policy, 200, fused=True)(0)
    looked: list[int] = []
    policy.trunk.register_forward_hook(lambda module, args, output: looked.append(len(output)))

    def gradient(of: Trajectories[Any]) -> list[Tensor]:
        looked.clear()
        return list(torch.autograd.grad(objective(of)[0], list(objective.parameters())))

    known, saved = gradient(t), list(looked)
    afresh = gradient(t[torch.arange(200)])  # other trajectories, for all that is known
    assert sum(saved) == (len(distinct_final(t)) if tied else 0) < sum(looked)
    for ours, theirs in zip(known, afresh, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        policy.trunk.layers[0][0].weight.mul_(1.5)  # type: ignore[index]
    for ours, theirs in zip(gradient(t), gradient(t[torch.arange(200)]), strict=True):
        assert ours.equal(theirs)


def distinct_final(t: Trajectories[Any]) -> Tensor:
    return t.final.coords.unique(dim=0)


@pytest.mark.slow
def test_an_optimizer_s_update_ends_what_is_known_of_the_rollout() -> None:
    for optimizer in (torch.optim.SGD, torch.optim.Adam):
        every: list[dict[str, Any]] = [{"fused": True}, {"foreach": True}, {"fused": False, "foreach": False}]
        for options in every:
            env = Hypergrid(4, 2)
            policy = MLPPolicy(env, width=8)
            objective = Objective(policy, MLPBackward(env, policy), Alpha(0.5), DevGrad())
            t = OnPolicy(env, policy, 16, fused=True)(0)
            assert recalled(policy, t) is not None
            updating = optimizer(policy.parameters(), lr=0.1, **options)
            objective(t)[0].backward()
            updating.step()
            assert recalled(policy, t) is None


@pytest.mark.slow
def test_a_policy_that_has_drawn_can_be_copied_and_pickled() -> None:
    env = Hypergrid(4, 2)
    policy = MLPPolicy(env, width=8)
    t = OnPolicy(env, policy, 16, fused=True)(0)
    for twin in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert recalled(twin, t) is None
    assert recalled(policy, t) is not None


class Crossed(MLPPolicy[Any]):
    """Has a way of its own to choose, which no table knows."""

    def distribution(self, states: Any) -> MaskedCategorical:
        other = super().distribution(states)
        return MaskedCategorical(-other.logits, other.mask)


def test_policies_that_are_no_plain_network_go_one_operator_at_a_time() -> None:
    env = Hypergrid(4, 2)
    table = Table(env)
    policy = Crossed(env, width=8)
    assert table.steps(policy, False, None) is None
    assert table.steps(MLPPolicy(Hypergrid(4, 2), width=8), False, None) is None, "of another environment"
    t = rollout(env, policy, env.reset(8), generator=generator(), table=table)
    assert_same(t, rollout(env, policy, env.reset(8), generator=generator()), 0.0)
    log_pf, _ = policy.log_probs(t, MLPBackward(env, policy))
    torch.testing.assert_close(log_pf, t.behaviour_log_prob)


def test_without_a_compiler_operators_do_it_and_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    env = Hypergrid(4, 2)
    policy = MLPPolicy(env, width=8)
    plain = OnPolicy(env, policy, 8)(0)
    for compiler, reason in (
        ("no-such-compiler", "No such file or directory: 'no-such-compiler'"),
        ("false", "status 1"),
    ):
        compiled.cache_clear()
        caplog.clear()
        monkeypatch.setenv("CXX", compiler)
        sampler = OnPolicy(env, policy, 8, fused=True)
        assert_same(sampler(0), plain, 0.0)
        sampler(1)
        told = [record.getMessage() for record in caplog.records if "one operator at a time" in record.getMessage()]
        assert len(told) == 1
        assert reason in told[0]
        assert list(tmp_path.rglob("*.so")) == []
    compiled.cache_clear()


@pytest.mark.slow
def test_what_cannot_be_drawn_is_told_as_operators_tell_it() -> None:
    env = Hypergrid(4, 2)
    policy = MLPPolicy(env, width=8)
    torch.nn.init.constant_(policy.head.bias, torch.nan)
    with pytest.raises(FloatingPointError, match="MLPPolicy: logits are not finite"):
        rollout(env, policy, env.reset(4), table=Table(env))
    stopped = rollout(env, Uniform(env.forward_mask), env.reset(4)).final
    with pytest.raises(NoActionError, match="4 of 4 states allow no action"):
        rollout(env, Uniform(env.forward_mask), stopped, table=Table(env))


class Unlisted(Hypergrid):
    device = torch.device("meta")


def test_environments_that_no_table_holds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="dense masks on the CPU, got Unlisted on meta: use"):
        Table(Unlisted(4, 2))
    monkeypatch.setattr(fused, "LARGEST", 100)
    with pytest.raises(ValueError, match="a table of 448 numbers for the 32 states of Hypergrid, more than 100"):
        OnPolicy(Hypergrid(4, 2), MLPPolicy(Hypergrid(4, 2), width=8), fused=True)
