"""Promise 8, ``mask``: nothing is learned from a trajectory whose reward failed, and it is never scored zero."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Classic, GridStates, Hypergrid
from envs.synthesis.environment import Synthesis
from envs.synthesis.policy import UniformSynthesis
from envs.synthesis.rewards import Cached, Function, Pool
from envs.tokens.verified import Verified
from gfn import exact
from gfn.buffers import Buffer
from gfn.environment import RewardError
from gfn.evaluation import Evaluator
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPPolicy, UniformBackward
from gfn.samplers import LocalSearch, OnPolicy, Stale
from gfn.sampling import rollout
from gfn.training import Trainer
from tests.faults.test_rewards_fail import careful, kind_of
from tests.small_syntheses import small_environment
from tests.trainers import Recorder


class Failing(Hypergrid):
    """A grid on which no reward is known where the coordinates add up to 1, 4, 7, …"""

    masks = True

    def log_reward(self, states: GridStates) -> Tensor:
        return super().log_reward(states).masked_fill(self.failing(states), math.nan)

    def failing(self, states: GridStates) -> Tensor:
        return states.coords.sum(1) % 3 == 1


def trainer(env: Hypergrid, steps: int, width: int = 32, seed: int = 0) -> Trainer[GridStates]:
    torch.manual_seed(seed)
    policy = MLPPolicy(env, width, 1)
    objective = Objective(policy, UniformBackward(env), Alpha(0.5), DevGrad())
    return Trainer(objective, OnPolicy(env, policy, batch_size=32, seed=seed), steps=steps, lr=3e-3)


def test_an_update_is_that_of_the_trajectories_whose_reward_is_known() -> None:
    masked, plain = trainer(Failing(4, 2), 1), trainer(Hypergrid(4, 2), 1)
    batch = copy.deepcopy(plain.sampler)(0)
    failing = Failing(4, 2).failing(batch.final)
    assert 0 < int(failing.sum()) < len(batch)
    loss, _ = plain.objective(batch[~failing], 0)
    loss.backward()
    expected = [parameter.grad for parameter in plain.objective.parameters()]
    masked.callbacks = [recorder := Recorder()]
    masked.run()
    found = [parameter.grad for parameter in masked.objective.parameters()]
    torch.testing.assert_close(found, expected)
    assert recorder.reports[0].metrics["rewards_failed"] == int(failing.sum()), "they are counted"
    assert masked.trajectories == 32, "and were sampled"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_rewards_are_known_the_target_is_reached(seed: int) -> None:
    env = Failing(4, 2, Classic(r0=0.1))
    run = trainer(env, 400, seed=seed)
    graph = exact.state_graph(Hypergrid(4, 2, Classic(r0=0.1)))
    known = ~env.failing(graph.states[graph.terminal])

    @torch.no_grad()
    def distance() -> float:
        log_p = exact.log_terminal(graph, run.objective.policy)[known]
        return float((log_p.softmax(0) - graph.log_target[known].softmax(0)).abs().sum() / 2)

    before = distance()
    run.run()
    print(f"TV {before:.4f} before and {distance():.4f} after, among states whose reward is known")
    assert before > 0.3
    assert distance() < 0.02  # 0.0002 to 0.005 over the seeds


def test_nothing_else_takes_them_for_something() -> None:
    env = Failing(4, 2)
    run = trainer(env, 1)
    t = run.sampler(0)
    buffer = Buffer(env)
    buffer.add(t, 0)
    assert 0 < len(buffer) == len(t.known()) < len(t), "only what is known is stored"
    assert buffer.draw(1, 64, 1).log_reward.isfinite().all()
    found = Evaluator(env, run.objective, 1, n_samples=64, exact=False)(0)
    assert all(math.isfinite(value) for value in found.values())
    search = LocalSearch(env, run.objective.policy, UniformBackward(env), OnPolicy(env, run.objective.policy, 64))
    searched = search(0)
    assert len(searched) == 64
    assert len(searched.known()) > 0
    assert len(Stale(env, OnPolicy(env, run.objective.policy, 64), 2)(0)) == 64, "sizes stay what they are"
    with pytest.raises(RewardError, match=r"log-reward of state .* is nan"):
        exact.state_graph(env)  # a target that is not known everywhere


def test_where_none_is_known_the_run_stops() -> None:
    env = Failing(4, 2)
    env.failing = lambda states: torch.ones(len(states), dtype=torch.bool)  # type: ignore[method-assign]
    with pytest.raises(RewardError, match="none of the 32 rewards at step 0 is known, as all of them failed"):
        trainer(env, 1).run()


def test_an_environment_that_does_not_mask_refuses_them() -> None:
    env = Failing(4, 2)
    env.masks = False
    with pytest.raises(RewardError, match="is nan"):
        trainer(env, 1).run()


def test_molecules_whose_reward_fails_are_left_out(tmp_path: Path) -> None:
    pool = Pool(Function(careful), workers=0, on_failure="mask", retries=0)
    network = small_environment(tmp_path, exponent=1.0).network
    env = Synthesis(network, Cached(pool, tmp_path / "kept.sqlite"), max_reactions=2)
    generator = torch.Generator().manual_seed(0)
    t = rollout(env, UniformSynthesis(env), env.reset(40, generator), generator=generator)
    failed = [kind_of(text) in ("raises", "is no number") for text in t.final.smiles]
    assert t.log_reward.isnan().tolist() == failed
    assert 0 < len(t.known()) < 40
    assert pool.failures.total() == len({s for s, bad in zip(t.final.smiles, failed, strict=True) if bad})
    again = Pool(Function(careful), workers=0, on_failure="mask", retries=0)
    Cached(again, tmp_path / "kept.sqlite")(t.final.smiles)
    assert again.failures == pool.failures, "a later process tries them again"


def test_completions_whose_verifier_fails_are_left_out() -> None:
    def picky(completion: str, answer: str) -> float:
        if completion == "?":
            raise ValueError("no number")
        return float(completion == answer)

    verified = Verified(picky, on_failure="mask", retries=0)
    right, unknown, wrong = verified([("7", "7"), ("?", "7"), ("8", "7")]).tolist()
    assert (right, wrong) == (1.0, 0.0)
    assert math.isnan(unknown)
    assert verified.failures == {"ValueError": 1}
    with pytest.raises(ValueError, match="on_failure: mask or finite, got drop"):
        Verified(picky, on_failure="drop")  # type: ignore[arg-type]
