"""Asynchronous training in one process: which policy made what, bit for bit, and that it learns."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.hypergrid import Classic, GridStates, Hypergrid
from gfn.distributed import Asynchronous, Searcher
from gfn.distributed.searcher import seed_of
from gfn.evaluation import Evaluator
from gfn.exploration import EpsilonUniform, NoExploration
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import MLPPolicy, UniformBackward
from gfn.samplers import OnPolicy, Stale
from gfn.schedules import Linear
from gfn.training import Trainer
from gfn.trajectories import Trajectories
from tests.composing import built
from tests.stored import Conditioned, grid, listed, moved, network
from tests.trainers import Recorder, differences, snapshot

ENV = grid()
CONDITIONED = Conditioned(4, 2, Classic(r0=0.1))
EXPLORATION = EpsilonUniform(Linear(0.5, 0.0, 8))


def by_hand(env: Hypergrid, policy: MLPPolicy[GridStates], numbers: range, version: int) -> Trajectories[GridStates]:
    """Pairs with these numbers from a policy after ``version`` updates, each with a generator of its own."""
    pairs = [OnPolicy(env, policy, 2, 2, EXPLORATION, seed=seed_of(7, number))(version) for number in numbers]
    return Trajectories.cat(pairs)


@pytest.mark.parametrize("fixed_lag", [False, True])
@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_batches_are_what_the_policy_some_updates_ago_samples(staleness: int, fixed_lag: bool) -> None:
    """Batch t has pairs 3t to 3t + 2, made after update max(0, t − staleness): with 0, by the current policy."""
    policy = network(CONDITIONED)
    settings = {"max_staleness": staleness, "fixed_lag": fixed_lag, "exploration": EXPLORATION, "seed": 7}
    sampler = Asynchronous(CONDITIONED, policy, batch_size=6, group_size=2, **settings)
    versions = list[MLPPolicy[GridStates]]()
    for step in range(6):
        versions.append(copy.deepcopy(policy))
        batch = sampler(step)
        version = max(0, step - staleness)
        expected = by_hand(CONDITIONED, versions[version], range(3 * step, 3 * step + 3), version)
        assert listed(batch) == listed(expected)
        assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]
        assert batch.policy_version.tolist() == [version] * 6
        moved(policy)
        told = sampler.settings(step)
        assert (told["lag_mean"], told["lag_max"], told["queue"]) == (step - version, step - version, 3 * staleness)
        assert told["epsilon"] == max(0.0, 0.5 - step / 16)


def test_several_groups_may_be_made_at_once() -> None:
    policy = network(CONDITIONED)
    sampler = Asynchronous(CONDITIONED, policy, None, 8, 2, max_staleness=1, seed=7, lease_size=4)
    for step in range(2):
        batch = sampler(step)
        pairs = [OnPolicy(CONDITIONED, policy, 4, 2, seed=seed_of(7, 2 * step + i))(0) for i in range(2)]
        assert listed(batch) == listed(Trajectories.cat(pairs))
        assert batch.group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (sampler.batch_size, sampler.group_size, sampler.hub.ledger.bound) == (8, 2, 4)


def test_without_a_group_size_the_batch_is_one_group() -> None:
    policy = network(CONDITIONED)
    sampler = Asynchronous(CONDITIONED, policy, batch_size=6, max_staleness=0, seed=7)
    for step in range(2):
        batch = sampler(step)
        assert listed(batch) == listed(OnPolicy(CONDITIONED, policy, 6, seed=seed_of(7, step))(step))
        assert batch.group.tolist() == [0] * 6
    assert (sampler.group_size, sampler.one_group, sampler.forward) == (6, True, True)


def test_groups_of_different_numbers_and_seeds_differ() -> None:
    drawn = {
        str(listed(Searcher(ENV, network(ENV), NoExploration(), 8, seed)(number, 0)))
        for seed in range(3)
        for number in range(3)
    }
    assert len(drawn) == 9


def trainer(steps: int, seed: int, group_size: int | None, staleness: int, **settings: Any) -> Trainer[GridStates]:
    policy = network(ENV, seed)
    sampler = Asynchronous(
        ENV, policy, settings.pop("engine", None), 8, group_size, staleness, settings.pop("fixed_lag", False),
        EpsilonUniform(Linear(0.5, 0.0, 12)), seed=settings.pop("run_seed", seed),
    )  # fmt: skip
    objective = Objective(policy, UniformBackward(ENV), Alpha(0.5), DevGrad())
    return Trainer(objective, sampler, steps=steps, lr=0.05, **settings)


@pytest.mark.parametrize(
    ("group_size", "staleness", "stop", "fixed_lag"),
    [(2, 2, 1, False), (2, 2, 5, True), (2, 0, 5, False), (None, 3, 1, True), (None, 3, 5, False)],
)
def test_two_runs_are_equal_and_so_is_one_that_was_interrupted(
    group_size: int | None, staleness: int, stop: int, fixed_lag: bool
) -> None:
    settings = {"group_size": group_size, "staleness": staleness, "fixed_lag": fixed_lag, "run_seed": 5}
    whole, again = trainer(8, 0, **settings), trainer(8, 0, **settings)
    whole.run()
    again.run()
    assert not differences(snapshot(again), snapshot(whole))
    first = trainer(stop, 0, **settings)
    first.run()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = trainer(8, 1, **settings)
    second.load_state_dict(torch.load(file, weights_only=True))
    second.run()
    assert not differences(snapshot(second), snapshot(whole))
    other = trainer(8, 0, **{**settings, "run_seed": 6})
    other.run()
    assert differences(snapshot(other), snapshot(whole))


def test_a_checkpoint_holds_the_groups_that_wait_and_changes_nothing(tmp_path: Path) -> None:
    saving = trainer(6, 0, 2, 2, checkpoints=tmp_path, save_every=1)
    silent = trainer(6, 0, 2, 2)
    saving.run()
    silent.run()
    assert not differences(snapshot(saving), snapshot(silent))
    state = silent.sampler.state_dict()
    assert state["ledger"] == {"next": 32, "consumed": 24, "done": [*range(24, 32)], "expired": 0, "duplicates": 0}
    assert list(state["groups"]) == [*range(24, 32)]


def test_it_is_stale_sampling_by_another_name() -> None:
    """With one group a batch, versions are those of Stale, which delays on-policy batches."""
    policy = network(ENV)
    delayed = Stale(ENV, OnPolicy(ENV, policy, 4), lag=3)
    sampler = Asynchronous(ENV, policy, batch_size=4, max_staleness=3)
    for step in range(8):
        assert torch.equal(sampler(step).policy_version, delayed(step).policy_version)
        moved(policy)


def test_closing_it_between_batches_loses_nothing() -> None:
    whole, broken = trainer(9, 0, 2, 2), trainer(4, 0, 2, 2)
    whole.run()
    broken.run()
    broken.sampler.close()
    broken.sampler.close()
    broken.steps = 9
    broken.run()
    assert not differences(snapshot(broken), snapshot(whole))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 6, "group_size": 4}, "batch_size must be a positive multiple of group_size=4, got 6"),
        ({"batch_size": 0}, "got 0"),
        ({"group_size": 0}, "group_size must be positive, got 0"),
        ({"batch_size": 8, "group_size": 2, "lease_size": 3}, r"lease_size must be a multiple .* got 3"),
        ({"batch_size": 8, "group_size": 2, "lease_size": 6}, "that divides batch_size=8, got 6"),
        ({"max_staleness": -1}, "max_staleness must not be negative, got -1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Asynchronous(ENV, network(ENV), **settings)


def test_batches_are_of_one_size() -> None:
    sampler = Asynchronous(ENV, network(ENV), batch_size=8, group_size=4)
    assert len(sampler(0, 8)) == 8
    with pytest.raises(ValueError, match=r"asked for 4 trajectories at step 1, .* batches of 8"):
        sampler(1, 4)
    assert Asynchronous(ENV, network(ENV), group_size=4).batch_size == 4
    assert Asynchronous(ENV, network(ENV)).batch_size == 16


class Moody(Hypergrid):
    """A grid whose reward fails while it is told to."""

    broken = False

    def log_reward(self, states: GridStates) -> Tensor:
        if self.broken:
            raise RuntimeError("no reward today")
        return super().log_reward(states)


def test_a_group_that_failed_is_made_again() -> None:
    env = Moody(4, 2, Classic(r0=0.1))
    policy = network(env)
    sampler, untroubled = (Asynchronous(env, policy, batch_size=4, group_size=2, max_staleness=1) for _ in range(2))
    expected = [listed(untroubled(step)) for step in range(2)]
    assert listed(sampler(0)) == expected[0]
    env.broken = True
    with pytest.raises(RuntimeError, match="no reward today"):
        sampler(1)
    env.broken = False
    assert listed(sampler(1)) == expected[1]
    assert sampler.settings(1)["leases_expired"] == 1


ENVIRONMENTS = {
    "grid": ["env.side=4", "policy.width=8"],
    "bits": ["env=bits", "env.bits=8", "policy.width=8"],
    "exponents": ["env=conditional", "env.env.side=4", "policy.width=8", "sampler.group_size=4"],
    "prompts": ["env=tokens_toy", "policy.width=8", "sampler.group_size=4"],
    "molecules": ["env=synthesis", "env.size=60", "env.max_reactions=1", "evaluator.n_samples=8"],
    "language": ["env=tokens", "policy.pretraining_steps=2", "sampler.group_size=4", "evaluator.n_samples=32"],
    "detailed balance": ["env.side=4", "policy.width=8", "balance=detailed", "flow=mlp"],
    "policy gradient": ["env.side=4", "policy.width=8", "objective=grpo"],
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow) if kind == "molecules" else kind for kind in ENVIRONMENTS]
)
def test_every_environment_and_objective_trains(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chosen = [*ENVIRONMENTS[kind], "sampler=asynchronous", "sampler.batch_size=8", "sampler.max_staleness=1"]
    run = built(tmp_path / "run", *chosen, "trainer.steps=3", "logger=quiet", "evaluator.every=3")
    recorder = Recorder()
    run.trainer.callbacks = [recorder]
    run.trainer.run()
    assert [report.metrics["lag_max"] for report in recorder.reports] == [0, 1, 1]
    assert [report.trajectories for report in recorder.reports] == [8, 16, 24]


@pytest.mark.parametrize("staleness", [0, 6])
def test_it_learns_the_target_with_and_without_lag(staleness: int) -> None:
    """Seeds 0 to 5 end at total variations of 0.01 to 0.05, and with lag 0.01 to 0.13, from 0.36 to 0.52."""
    ends = list[float]()
    for seed in range(2):
        policy = network(ENV, seed)
        objective = Objective(policy, UniformBackward(ENV), Alpha(1.0), DevGrad())
        sampler = Asynchronous(ENV, policy, batch_size=16, max_staleness=staleness, seed=seed)
        evaluator = Evaluator(ENV, objective, every=150, n_samples=16)
        assert evaluator(0)["tv"] > 0.3
        report = Trainer(objective, sampler, steps=150, lr=0.03, evaluator=evaluator).run()
        assert report is not None
        assert report.evaluation is not None
        ends.append(report.evaluation["tv"])
    assert mean(ends) < 0.05
