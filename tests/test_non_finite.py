"""What is not finite stops a run before the parameters are touched, and is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from envs.hypergrid import GridStates
from gfn.objectives import Alpha
from gfn.schedules import Piecewise
from gfn.training import NonFiniteError, Trainer
from tests.trainers import Recorder, differences, small_trainer, snapshot


def poison_parameters(trainer: Trainer[GridStates], kind: float) -> None:
    """From the third update on, one backward gradient is not finite."""
    count = 0

    def poisoned(gradient: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return gradient * kind if count == 3 else gradient

    trainer.objective.policy.head.weight.register_hook(poisoned)


def run_into(trainer: Trainer[GridStates], error: type[Exception]) -> tuple[str, list[str]]:
    """Train until ``error``: its message, and what changed since the last update that went well."""
    good = [snapshot(trainer)]

    class Keep(Recorder):
        def __call__(self, report: Any) -> None:
            good.append(snapshot(trainer))

    keep = Keep()
    trainer.callbacks = [keep]
    with pytest.raises(error) as caught:
        trainer.run()
    assert keep.closed == 1
    assert len(good) == 3, "two updates go well"
    parts = ("objective", "optimizer", "step", "trajectories")
    now = snapshot(trainer)
    return str(caught.value), [line for part in parts for line in differences(now[part], good[-1][part], part)]


@pytest.mark.parametrize(("kind", "limit"), [(float("nan"), 10.0), (float("inf"), 10.0), (float("nan"), None)])
def test_a_gradient_that_is_not_finite_stops_the_run(kind: float, limit: float | None) -> None:
    trainer = small_trainer(clip_grad_norm=limit)
    poison_parameters(trainer, kind)
    message, changed = run_into(trainer, NonFiniteError)
    assert message == ("the gradient is not finite at step 2: that of policy.head.weight; parameters are untouched"), (
        "it alone is named, although clipping by a norm that is not finite would spread it to all"
    )
    assert not changed


def test_a_gradient_whose_norm_overflows_is_named() -> None:
    trainer = small_trainer()
    poison_parameters(trainer, 1e30)
    message, changed = run_into(trainer, NonFiniteError)
    assert "its norm overflows, with entries up to" in message
    assert message.endswith("in that of policy.head.weight; parameters are untouched")
    assert not changed


def spoil(method: Callable[..., Tensor], value: float) -> Callable[..., Tensor]:
    """``method`` with one entry of its third result replaced."""
    count = 0

    def spoiled(t: Any) -> Tensor:
        nonlocal count
        count += 1
        result = method(t)
        if count >= 3:
            result = result.clone()
            result[int(t.lengths[0]) + 1] = value  # the second step of the second trajectory
        return result

    return spoiled


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize(("name", "method"), [("log P_F", "log_prob"), ("log P_B", "log_prob_backward")])
def test_a_loss_that_is_not_finite_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, name: str, method: str, value: float
) -> None:
    trainer = small_trainer(seed=2)
    policy = trainer.objective.policy if name == "log P_F" else trainer.objective.backward_policy
    monkeypatch.setattr(policy, method, spoil(getattr(policy, method), value))
    trainer.evaluator = None
    message, changed = run_into(trainer, NonFiniteError)
    assert message.startswith("the loss is ")
    assert message.endswith(f"at step 2: {name} of step 1 of trajectory 1 is {value}; parameters are untouched")
    assert not changed


def test_a_broken_parameter_is_named() -> None:
    trainer = small_trainer(steps=4)
    trainer.run()
    trainer.steps = 8
    trainer.objective.partition.value.data.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"step 4: parameter partition\.value is not finite"):
        trainer.run()


def test_a_divergence_that_is_not_finite_is_named() -> None:
    class Broken(Alpha):
        def loss(self, delta: Tensor) -> Tensor:
            return delta * float("nan")

        def at(self, step: int) -> Alpha:
            return self

    with pytest.raises(NonFiniteError, match="are finite, so it comes from log Z or the divergence"):
        small_trainer(divergence=Broken(1.0)).run()


def test_a_reward_that_is_not_a_number_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = small_trainer(evaluate_every=None)
    env = trainer.sampler.env
    own = env.log_reward
    calls: list[int] = []

    def bad(states: GridStates) -> Tensor:
        calls.append(1)
        return own(states) * (float("nan") if len(calls) >= 3 else 1.0)

    monkeypatch.setattr(env, "log_reward", bad)
    message, changed = run_into(trainer, ValueError)
    assert "log-reward of state" in message
    assert not changed


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1e-3])
def test_a_learning_rate_that_is_not_one_stops_the_run(bad: float) -> None:
    trainer = small_trainer(lr=Piecewise([2], [1e-3, bad]))
    message, changed = run_into(trainer, ValueError)
    assert "learning rates must be finite and not negative" in message
    assert "'policy'" in message
    assert not changed
