"""Gradients in parts, over processes, and with a controlled effective sample size."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.hypergrid import Hypergrid
from gfn.flows import EdgeFlows, MLPFlow
from gfn.objectives import (
    Alpha,
    ConditionalLogZ,
    DevGrad,
    FlowLogZ,
    JensenShannon,
    LearnedLogZ,
    Objective,
    detailed_balance,
    flow_matching,
    sub_trajectory_balance,
)
from gfn.objectives.parts import backward_in_parts
from gfn.policies import MLPBackward, MLPPolicy
from gfn.sampling import rollout
from tests.oracles import f64

Build = Callable[[Hypergrid, MLPPolicy[Any], MLPBackward[Any]], Objective[Any]]
LEARNERS: dict[str, Build] = {
    "devgrad": lambda env, p, b: Objective(p, b, Alpha(0.0), DevGrad()),
    "leave one out": lambda env, p, b: Objective(p, b, JensenShannon(0.5), DevGrad(leave_one_out=True)),
    "learned": lambda env, p, b: Objective(p, b, Alpha(0.5), LearnedLogZ(1.0), backward_loss="likelihood"),
    "conditional": lambda env, p, b: Objective(p, b, Alpha(1.0), ConditionalLogZ(MLPFlow(env, p, tied=True))),
    "detailed": lambda env, p, b: Objective(p, b, Alpha(1.0), FlowLogZ(), detailed_balance, MLPFlow(env, p, tied=True)),
    "sub": lambda env, p, b: Objective(p, b, Alpha(2.0), DevGrad(), sub_trajectory_balance, MLPFlow(env, p)),
    "matching": lambda env, p, b: Objective(p, b, Alpha(1.0), FlowLogZ(), flow_matching, EdgeFlows(env, p)),
    "importance": lambda env, p, b: Objective(p, b, Alpha(0.0, min_ess=0.5), DevGrad(), importance=0.5),
}


def learner(name: str) -> tuple[Objective[Any], Any]:
    torch.manual_seed(0)
    env = Hypergrid(4)
    policy = MLPPolicy(env, 8).double()
    model = LEARNERS[name](env, policy, MLPBackward(env, policy).double()).double()
    other = MLPPolicy(env, 8).double()
    t = rollout(env, other, env.reset(12), group=torch.arange(2).repeat_interleave(6))
    return model, t


def gradients(model: Objective[Any]) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("size", [1, 5, 12, 100])
@pytest.mark.parametrize("name", LEARNERS)
def test_gradient_in_parts_is_that_of_the_whole(name: str, size: int) -> None:
    model, t = learner(name)
    whole, report = model(t, 3)
    whole.backward()
    expected = gradients(model)
    assert sum(float(g.abs().sum()) for g in expected) > 1e-3
    model.zero_grad()
    loss, same = backward_in_parts(model, t, 3, size)
    torch.testing.assert_close(loss, whole.detach())
    torch.testing.assert_close(gradients(model), expected, atol=1e-12, rtol=1e-10)
    assert {k: float(v) for k, v in same.items()} == pytest.approx({k: float(v) for k, v in report.items()})


def test_parts_hold_trajectories_of_like_length(monkeypatch: pytest.MonkeyPatch) -> None:
    model, t = learner("devgrad")
    scored, scores = list[list[int]](), model.scores
    monkeypatch.setattr(model, "scores", lambda part: scored.append(part.lengths.tolist()) or scores(part))
    backward_in_parts(model, t, 0, 5)
    assert [len(lengths) for lengths in scored] == 2 * [5, 5, 2]
    first, second = ([n for lengths in some for n in lengths] for some in (scored[:3], scored[3:]))
    assert first == second == sorted(t.lengths.tolist()) != t.lengths.tolist()


def test_size_must_be_positive() -> None:
    model, t = learner("devgrad")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        backward_in_parts(model, t, 0, 0)


WORKER = """
import sys, torch
import torch.distributed as dist
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
from tests.test_parts import learner, gradients
from gfn.objectives.parts import backward_in_parts
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
for name in sys.argv[3:]:
    model, t = learner(name)
    half = t[6 * rank : 6 * rank + 6]
    loss, _ = backward_in_parts(model, half, 3, 4)
    torch.save([loss, *gradients(model)], f"{folder}/{name}_{rank}.pt")
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("float64")
def test_two_processes_have_the_gradient_of_the_joint_batch(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    processes = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path), *LEARNERS], cwd=root)
        for rank in (0, 1)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    for name in LEARNERS:
        model, t = learner(name)
        loss, _ = model(t, 3)
        loss.backward()
        for rank in (0, 1):
            found = torch.load(tmp_path / f"{name}_{rank}.pt", weights_only=True)
            torch.testing.assert_close(found, [loss.detach(), *gradients(model)], atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 0.54456495), (0.7, 0.71182427), (0.0, 0.0), (1.0, 1.0)])
def test_controlled_alpha_keeps_the_effective_sample_size(share: float, expected: float) -> None:
    delta = f64(-3.0, -0.5, 0.2, 1.7, 4.0)
    group = torch.zeros(5, dtype=torch.long)
    fitted = Alpha(0.0, min_ess=share).fitted(delta, group)
    assert fitted.settings()["alpha"] == pytest.approx(expected, abs=1e-6)
    # The mean over groups counts: an even second group lets the first be more uneven.
    both = torch.cat([delta, torch.zeros(5, dtype=torch.float64)])
    twice = Alpha(0.0, min_ess=0.7).fitted(both, torch.arange(2).repeat_interleave(5)).settings()["alpha"]
    assert twice < 0.7
    assert Alpha(0.9, min_ess=0.2).fitted(delta, group).settings()["alpha"] == 0.9
