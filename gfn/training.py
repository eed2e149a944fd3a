"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from gfn import checkpoint
from gfn.evaluation import Evaluator
from gfn.objectives import Objective
from gfn.samplers import Sampler
from gfn.schedules import Number, value_at
from gfn.states import States

S = TypeVar("S", bound=States)


class NonFiniteError(RuntimeError):
    """A loss or gradient is not finite; nothing was updated."""


@dataclass(frozen=True)
class Report:
    """What callbacks are told after an update.

    Attributes:
        step: number of updates done.
        steps: number of updates in all.
        trajectories: number of trajectories trained on.
        metrics: of this update's batch.
        evaluation: of the policy now, or None if this is not a step to evaluate at.
    """

    step: int
    steps: int
    trajectories: int
    metrics: Mapping[str, float]
    evaluation: Mapping[str, float] | None


class Callback(Protocol):
    """Sees every report; cannot steer."""

    def start(self, step: int) -> None:
        """Training begins, or goes on, after ``step`` updates."""
        ...

    def __call__(self, report: Report) -> None: ...

    def close(self) -> None:
        """Training is over, for whatever reason."""
        ...


def never() -> bool:
    """Never ask to stop."""
    return False


class Trainer(Generic[S]):
    """Sample, score, step, report.

    Args:
        objective: the policies and their loss.
        sampler: where trajectories come from.
        steps: number of updates.
        lr: learning rate, or schedule, of all parameters that bring none of their own.
        clip_grad_norm: largest norm of the whole gradient; None does not clip.
        optimizer: from parameter groups to an optimizer; default Adam.
        evaluator: measures the policy every few steps and at the end.
        callbacks: told after every update.
        checkpoints: directory to save to; None saves nothing.
        save_every: updates between checkpoints.
        keep: how many checkpoints stay.
        stop: asked after every update; True ends training there, with a checkpoint.
    """

    def __init__(
        self,
        objective: Objective[S],
        sampler: Sampler[S],
        *,
        steps: int = 1000,
        lr: Number = 1e-3,
        clip_grad_norm: float | None = 10.0,
        optimizer: Callable[..., torch.optim.Optimizer] | None = None,
        evaluator: Evaluator[S] | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoints: Path | None = None,
        save_every: int = 1000,
        keep: int = 2,
        stop: Callable[[], bool] = never,
    ):
        if steps < 0 or save_every < 1 or keep < 1:
            raise ValueError(
                f"Trainer: needs steps >= 0, save_every >= 1 and keep >= 1, got {steps=} {save_every=} {keep=}"
            )
        self.objective, self.sampler, self.evaluator = objective, sampler, evaluator
        self.steps, self.lr, self.clip_grad_norm = steps, lr, clip_grad_norm
        self.callbacks, self.checkpoints, self.save_every, self.keep = callbacks, checkpoints, save_every, keep
        self.stop = stop
        self.groups = objective.parameter_groups()
        self.optimizer = (optimizer or torch.optim.Adam)(
            [{"params": list(group.parameters), "lr": value_at(self._rate(group.lr), 0)} for group in self.groups]
        )
        self.step = self.trajectories = 0

    def run(self) -> Report | None:
        """Train to the last step, or until ``stop``; the last report, None if there was nothing to do."""
        report = None
        for callback in self.callbacks:
            callback.start(self.step)
        try:
            while self.step < self.steps:
                batch = self.sampler(self.step)
                loss, metrics = self.objective(batch, self.step)
                gradient_norm = self._update(loss)
                self.step += 1
                self.trajectories += len(batch)
                if self.evaluator is not None:
                    self.evaluator.discovery.observe(batch.final)
                report = self._report(metrics | {"gradient_norm": gradient_norm})
                for callback in self.callbacks:
                    callback(report)
                stopping = self.stop()
                if stopping or self.step % self.save_every == 0 or self.step == self.steps:
                    self.save()
                if stopping:
                    break
        finally:
            for callback in self.callbacks:
                callback.close()
        return report

    def _update(self, loss: Tensor) -> Tensor:
        """One optimizer step, unless a number is not finite; returns the gradient's norm before clipping."""
        if not bool(loss.isfinite()):
            raise NonFiniteError(f"the loss is {float(loss)} at step {self.step}; parameters are untouched")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        parameters = [p for group in self.groups for p in group.parameters]
        limit = self.clip_grad_norm if self.clip_grad_norm is not None else torch.inf
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        if not bool(norm.isfinite()):
            named = self.objective.named_parameters()
            bad = [name for name, p in named if p.grad is not None and not bool(p.grad.isfinite().all())]
            raise NonFiniteError(
                f"the gradient of {', '.join(bad[:5])} is not finite at step {self.step}; parameters are untouched"
            )
        for group, target in zip(self.groups, self.optimizer.param_groups, strict=True):
            target["lr"] = value_at(self._rate(group.lr), self.step)
        self.optimizer.step()
        return norm

    def _rate(self, own: Number | None) -> Number:
        return self.lr if own is None else own

    def _report(self, metrics: Mapping[str, float | Tensor]) -> Report:
        evaluate = self.evaluator is not None and (self.step % self.evaluator.every == 0 or self.step == self.steps)
        found = self.evaluator.discovery.counts() if self.evaluator is not None else {}
        at = self.step - 1  # schedules count updates from zero
        in_force = {**self.objective.divergence.at(at).settings(), **self.sampler.settings(at)}
        rates = {f"lr_{g.name}": value_at(self._rate(g.lr), at) for g in self.groups}
        return Report(
            step=self.step,
            steps=self.steps,
            trajectories=self.trajectories,
            metrics={**{k: float(v) for k, v in metrics.items()}, **found, **in_force, **rates},
            evaluation=self.evaluator(self.step) if evaluate and self.evaluator is not None else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as tensors and plain values."""
        return {
            "step": self.step,
            "trajectories": self.trajectories,
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),
            "evaluator": self.evaluator.state_dict() if self.evaluator is not None else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        if self.evaluator is not None:
            self.evaluator.load_state_dict(state["evaluator"])
        self.step, self.trajectories = state["step"], state["trajectories"]

    def save(self) -> None:
        """Write a checkpoint of this step, then delete the oldest ones."""
        if self.checkpoints is None:
            return
        checkpoint.save(checkpoint.path_of(self.checkpoints, self.step), self.state_dict())
        checkpoint.prune(self.checkpoints, self.keep)

    def resume(self) -> bool:
        """Go on from the newest sound checkpoint; False if there is none."""
        found = checkpoint.newest(self.checkpoints) if self.checkpoints is not None else None
        if found is not None:
            self.load_state_dict(found[1])
        return found is not None
