"""Training on sequences of which none ends: it fails with advice, and until then it is as if nobody watched."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from envs.tokens.environment import Tokens
from envs.tokens.samplers import Watched
from gfn.environment import RewardError
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.policies import Prior
from gfn.samplers import OnPolicy
from gfn.training import Trainer
from tests.test_token_metrics import table, tokens, written
from tests.trainers import Recorder


class Scripted:
    """Batches of two in which ``ended[step]`` sequences end."""

    batch_size, group_size, one_group, forward = 2, 2, True, True

    def __init__(self, env: Tokens, ended: list[int]) -> None:
        self.env, self.ended, self.calls = env, ended, 0

    def __call__(self, step: int, size: int | None = None) -> Any:
        self.calls += 1
        return written(self.env, *[(0, [4]) if i < self.ended[step] else (0, [1, 1, 1, 1]) for i in range(size or 2)])

    def settings(self, step: int) -> dict[str, float]:
        return {"inner": float(step)}

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]


def test_training_ends_where_nothing_ends() -> None:
    env = tokens()
    sampler = Watched(env, Scripted(env, [0, 0, 1, 0, 0, 0]), patience=3)
    shares = list[float]()
    for step in range(5):
        assert len(sampler(step)) == 2
        shares.append(sampler.settings(step)["cut"])
    assert shares == [1.0, 1.0, 0.5, 1.0, 1.0]
    state = sampler.state_dict()
    with pytest.raises(RewardError, match="all sequences of 3 batches in a row, to step 5, were cut at max_tokens=4"):
        sampler(5)
    resumed = Watched(env, Scripted(env, [0] * 6), patience=3)
    resumed.load_state_dict(state)
    assert resumed.sampler.state_dict() == {"calls": 5}
    assert resumed.settings(4) == {"inner": 4.0, "cut": 1.0}
    with pytest.raises(RewardError, match=r"lower env\.cut_reward=0"):
        resumed(5)


def test_a_watched_sampler_is_the_one_it_watches() -> None:
    env = tokens()
    policy = table(env)

    def inner() -> OnPolicy[Any]:
        return OnPolicy(env, policy, batch_size=8, group_size=4, seed=3)

    sampler, alone = Watched(env, inner(), patience=2), inner()
    assert (sampler.batch_size, sampler.group_size, sampler.one_group, sampler.forward) == (8, 4, False, True)
    for step, size in ((0, None), (1, 16)):
        assert torch.equal(sampler(step, size).final.tokens, alone(step, size).final.tokens)
    assert Watched(env, inner(), batch_size=16)(0).lengths.shape == (16,)
    with pytest.raises(ValueError, match="patience must be at least 1 batch, got 0"):
        Watched(env, inner(), patience=0)
    with pytest.raises(ValueError, match="batch_size must be a positive multiple of group_size=4, got 6"):
        Watched(env, inner(), batch_size=6)


def test_a_run_in_which_nothing_ends_fails_with_advice() -> None:
    env = tokens()
    policy = table(env, stop=-80.0)
    objective = Objective(policy, Prior(policy), Alpha(1.0), DevGrad())
    sampler = Watched(env, OnPolicy(env, policy, batch_size=8, group_size=4), patience=3)
    recorder = Recorder()
    with pytest.raises(RewardError, match="all sequences of 3 batches in a row, to step 2,"):
        Trainer(objective, sampler, steps=9, lr=1e-3, callbacks=[recorder]).run()
    assert [r.metrics["cut"] for r in recorder.reports] == [1.0, 1.0]
