"""The training loop: what is in force when, what stops it, and what never changes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.hypergrid import GridStates
from gfn.callbacks import JSONLines
from gfn.objectives import Alpha, DevGrad, LearnedLogZ, Objective
from gfn.schedules import Cosine, Exponential, Linear, value_at
from gfn.training import Callback
from gfn.trajectories import Trajectories
from tests.trainers import Recorder, differences, scheduled_trainer, small_trainer, snapshot


class Watched:
    """A sampler that hands on another's batches and calls ``look`` on each before the update."""

    def __init__(self, inner: Any, look: Callable[[int, Trajectories[GridStates]], None]) -> None:
        self.inner, self.look, self.group_size = inner, look, inner.group_size

    def __call__(self, step: int) -> Trajectories[GridStates]:
        batch = self.inner(step)
        self.look(step, batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_every_update_is_reported() -> None:
    recorder = Recorder()
    trainer = small_trainer(steps=7, evaluate_every=3, callbacks=[recorder])
    last = trainer.run()
    assert [r.step for r in recorder.reports] == [1, 2, 3, 4, 5, 6, 7]
    assert [r.trajectories for r in recorder.reports] == [8, 16, 24, 32, 40, 48, 56]
    assert [r.step for r in recorder.reports if r.evaluation is not None] == [3, 6, 7], "every third, and the last"
    assert {r.steps for r in recorder.reports} == {7}
    assert last is recorder.reports[-1]
    assert (recorder.started, recorder.closed) == ([0], 1)
    assert trainer.run() is None, "there is nothing left to do"
    assert (recorder.started, recorder.closed) == ([0, 7], 2)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"save_every": 0}, {"keep": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        small_trainer(**wrong)


def test_learning_rates_of_the_optimizer_are_those_of_the_update() -> None:
    """Update k uses schedule(k), k from 0, for both groups; the log says the same."""
    lr, log_z_lr = Cosine(1e-2, 1e-4, 5), Exponential(0.3, 0.01, 4)
    used: list[list[float]] = []

    class Noting(torch.optim.Adam):
        def step(self, closure: Any = None) -> Any:
            used.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    recorder = Recorder()
    small_trainer(steps=7, lr=lr, partition=LearnedLogZ(lr=log_z_lr), optimizer=Noting, callbacks=[recorder]).run()
    expected = [[value_at(lr, k), value_at(log_z_lr, k)] for k in range(7)]
    assert len({tuple(rates) for rates in expected}) == 6, "the schedules must move for this test to show anything"
    assert used == expected
    assert [[r.metrics["lr_policy"], r.metrics["lr_log_z"]] for r in recorder.reports] == expected


@pytest.mark.parametrize("partition", [DevGrad, LearnedLogZ])
def test_alpha_of_the_loss_is_that_of_the_update(partition: type[Any]) -> None:
    alpha = Linear(-1.0, 2.0, 5)
    expected: list[float] = []

    def look(step: int, batch: Trajectories[GridStates]) -> None:
        constant = Objective(trainer.objective.policy, trainer.objective.backward_policy, Alpha(alpha(step)), known)
        loss, _ = constant(batch, 10**6)
        expected.append(float(loss.detach()))

    known = partition()
    recorder = Recorder()
    trainer = small_trainer(steps=7, divergence=Alpha(alpha), partition=known, callbacks=[recorder])
    trainer.sampler = Watched(trainer.sampler, look)
    trainer.run()
    assert [r.metrics["loss"] for r in recorder.reports] == expected
    assert [r.metrics["alpha"] for r in recorder.reports] == [alpha(k) for k in range(7)]
    assert len(set(expected)) == 7


def test_epsilon_of_the_rollout_is_that_of_the_update() -> None:
    epsilon = Linear(1.0, 0.0, 4)
    error: list[float] = []

    def look(step: int, batch: Trajectories[GridStates]) -> None:
        with torch.no_grad():
            distribution = trainer.objective.policy.distribution(batch.sources)
        own, uniform = (d.log_prob(batch.actions).exp() for d in (distribution, distribution.uniform()))
        mixture = epsilon(step) * uniform + (1 - epsilon(step)) * own
        error.append(float((batch.behaviour_log_prob.exp() - mixture).abs().max()))

    recorder = Recorder()
    trainer = small_trainer(steps=6, epsilon=epsilon, lr=0.1, callbacks=[recorder])
    trainer.sampler = Watched(trainer.sampler, look)
    trainer.run()
    assert max(error) < 1e-6
    assert [r.metrics["epsilon"] for r in recorder.reports] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_log_z_learns_at_its_own_rate() -> None:
    """With plain gradient descent, log Z moves by its rate times its gradient, the mean slope of the loss."""
    trainer = small_trainer(
        steps=1, lr=1e-3, partition=LearnedLogZ(0.5, lr=0.25), optimizer=torch.optim.SGD, clip_grad_norm=None
    )
    slope: list[float] = []

    def look(step: int, batch: Trajectories[GridStates]) -> None:
        slope.append(float((trainer.objective.scores(batch).excess.detach() + 0.5).mean()))

    trainer.sampler = Watched(trainer.sampler, look)
    trainer.run()
    assert float(trainer.objective.partition.value.detach()) == pytest.approx(0.5 - 0.25 * slope[0], rel=1e-12)


def test_every_parameter_is_in_one_group() -> None:
    for partition, sizes in ((LearnedLogZ(), {"policy": 6, "log_z": 1}), (LearnedLogZ(lr=None), {"policy": 7})):
        trainer = small_trainer(partition=partition)
        assert {g.name: len(g.parameters) for g in trainer.groups} == sizes, "tied P_B: two layers and two heads"
        optimised = [id(p) for group in trainer.optimizer.param_groups for p in group["params"]]
        assert sorted(optimised) == sorted(id(p) for p in trainer.objective.parameters())
        assert len(set(optimised)) == len(optimised)


@pytest.mark.parametrize("limit", [0.01, None])
def test_the_whole_gradient_is_clipped(limit: float | None) -> None:
    recorder = Recorder()
    trainer = small_trainer(
        steps=1, partition=DevGrad(), lr=1.0, optimizer=torch.optim.SGD, clip_grad_norm=limit, callbacks=[recorder]
    )
    before = torch.cat([p.detach().flatten() for p in trainer.objective.parameters()])
    trainer.run()
    moved = float((torch.cat([p.detach().flatten() for p in trainer.objective.parameters()]) - before).norm())
    reported = recorder.reports[0].metrics["gradient_norm"]
    assert reported > 0.1, "the norm that is reported is that before clipping"
    assert moved == pytest.approx(reported if limit is None else limit, rel=1e-3)


def test_evaluation_does_not_change_training() -> None:
    reference = scheduled_trainer(evaluate_every=3)
    reference.run()
    wanted = snapshot(reference)
    for change in ({"evaluate_every": 1}, {"evaluate_every": 5, "n_samples": 64}, {"evaluate_every": None}):
        trainer = scheduled_trainer(**change)
        trainer.run()
        got = snapshot(trainer)
        found = got.pop("evaluator")
        assert not differences(got, {key: value for key, value in wanted.items() if key != "evaluator"})
        if change["evaluate_every"] is not None:
            assert not differences(found, wanted["evaluator"])


class Faulty(Recorder):
    """A callback that fails in one of its methods."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def start(self, step: int) -> None:
        super().start(step)
        self.fail("start")

    def __call__(self, report: Any) -> None:
        self.fail("call")

    def close(self) -> None:
        super().close()
        self.fail("close")

    def fail(self, here: str) -> None:
        if here == self.where:
            raise RuntimeError(f"failed in {here}")


@pytest.mark.parametrize("where", ["start", "call", "close"])
def test_callbacks_are_closed_whatever_fails(where: str, tmp_path: Path) -> None:
    lines = JSONLines(tmp_path / "metrics.jsonl", every=1)
    first, faulty, last = Recorder(), Faulty(where), Recorder()
    callbacks: list[Callback] = [first, lines, faulty, last]
    with pytest.raises(RuntimeError, match=f"failed in {where}"):
        small_trainer(steps=2, callbacks=callbacks).run()
    assert (first.closed, faulty.closed, lines.file) == (1, 1, None)
    assert last.closed == len(last.started) == (0 if where == "start" else 1)
