"""Promise 7: a number that is not finite stops a run before its update, is named, and its trajectories are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.build import Run
from gfn import checkpoint
from gfn.environment import RewardError
from gfn.states import from_tensors
from gfn.training import NonFiniteError
from gfn.trajectories import Trajectories
from tests.faults.small_runs import ENVIRONMENTS, small_run
from tests.trainers import Recorder, differences, snapshot


def third(method: Callable[..., Any], spoil: Callable[[Any], Any]) -> Callable[..., Any]:
    """A method whose result is spoilt from the third update on."""

    def spoilt(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        return spoil(result) if spoilt.now >= 2 else result  # type: ignore[attr-defined]

    spoilt.now = 0  # type: ignore[attr-defined]
    return spoilt


def nan_first(values: Tensor) -> Tensor:
    values = values.clone()
    values.view(-1)[0] = torch.nan
    return values


def loss(run: Run, patch: pytest.MonkeyPatch) -> Any:
    policy = run.parts["objective"].policy
    spoilt = third(policy.log_prob, nan_first)
    patch.setattr(policy, "log_prob", spoilt)
    return spoilt


def reward(run: Run, patch: pytest.MonkeyPatch) -> Any:
    env = run.parts["env"]
    spoilt = third(env.log_reward, nan_first)
    patch.setattr(env, "log_reward", spoilt)
    return spoilt


def gradient(run: Run, patch: pytest.MonkeyPatch) -> Any:
    spoilt = third(lambda gradient: gradient, nan_first)
    last = [p for p in run.parts["objective"].policy.parameters() if p.requires_grad][-1]
    last.register_hook(spoilt)
    return spoilt


class Keep(Recorder):
    """Counts updates for what is to be spoilt, and keeps the state after each."""

    def __init__(self, run: Run, spoilt: Any) -> None:
        super().__init__()
        self.run, self.spoilt, self.states = run, spoilt, list[dict[str, Any]]()

    def __call__(self, report: Any) -> None:
        self.spoilt.now = report.step
        self.states.append(snapshot(self.run.trainer))


NAMES = [pytest.param(name, marks=pytest.mark.slow) if name == "synthesis" else name for name in ENVIRONMENTS]
CASES = {
    "loss": (loss, NonFiniteError, "log P_F of step 0 of trajectory 0 is nan"),
    "gradient": (gradient, NonFiniteError, "the gradient is not finite at step 2: that of policy"),
    "reward": (reward, RewardError, "log-reward of state .* is nan"),
}


@pytest.mark.parametrize("place", CASES)
@pytest.mark.parametrize("name", NAMES)
def test_it_stops_before_the_update(name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, kind, words = CASES[place]
    run = small_run(name, tmp_path, None, "evaluator.every=1000")
    keep = Keep(run, break_it(run, monkeypatch))
    run.trainer.callbacks = [keep]
    with pytest.raises(kind, match=words) as told:
        run.trainer.run()
    assert run.trainer.step == 2
    now = snapshot(run.trainer)
    for part in ("objective", "optimizer", "step", "trajectories"):
        assert not differences(now[part], keep.states[-1][part], part)

    kept = checkpoint.load(tmp_path / "checkpoints" / "failure.pt")
    assert told.value.__notes__ == [f"what it was made of is in {tmp_path / 'checkpoints' / 'failure.pt'}"]
    assert (kept["step"], kept["cause"]) == (2, str(told.value))
    like = run.parts["env"].reset(1)
    if place == "reward":
        assert len(from_tensors(kept["states"], like)) > 0
    else:
        t = Trajectories.from_tensors(kept["trajectories"], like)
        assert len(t) == 8
        assert run.parts["env"].is_terminal(t.final).all()
    saved = checkpoint.newest(tmp_path / "checkpoints")
    assert saved is not None
    assert saved[1]["step"] == 2, "what was done before is saved, and failure.pt is not taken for it"


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_is_named(name: str, tmp_path: Path) -> None:
    run = small_run(name, tmp_path, None, "evaluator.every=1000")
    victim, parameter = next((n, p) for n, p in run.parts["objective"].named_parameters() if p.requires_grad)

    class Ruin(Recorder):
        def __call__(self, report: Any) -> None:
            if report.step == 2:
                parameter.data.view(-1)[0] = torch.nan

    run.trainer.callbacks = [Ruin()]
    with pytest.raises(NonFiniteError, match=rf"parameter {victim} is not finite"):
        run.trainer.run()
    assert run.trainer.step == 2
    assert not checkpoint.all_in(tmp_path / "checkpoints"), "a broken policy is not saved"
