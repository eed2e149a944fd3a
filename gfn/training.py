"""The training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from gfn import checkpoint, processes, reporting
from gfn.environment import RewardError
from gfn.evaluation import Evaluator
from gfn.failures import NonFiniteError, broken_parameters, cause_of_gradient, cause_of_loss, recorded
from gfn.objectives import Learner
from gfn.objectives.learner import Reported
from gfn.objectives.parts import backward_in_parts
from gfn.reporting import Callback, Report
from gfn.samplers import Sampler
from gfn.schedules import Number, value_at
from gfn.states import States
from gfn.trajectories import Trajectories

S = TypeVar("S", bound=States)


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
        save_every, keep: updates between checkpoints, and how many of them stay.
        stop: asked after every update; True ends training there, with a checkpoint.
        micro_batch: trajectories scored at once; the gradient is that of the whole batch all the same.
        checkpoint_transitions: steps scored at once, and computed again for the gradient; None: all.
        precision: ``bfloat16`` runs networks under autocast; parameters, scores and losses stay as they are.

    In a process group (``torchrun``) every process trains on the joint batch of all: where batches are
    single groups these become one, otherwise the groups of each stay its own. Only the first
    evaluates, reports and saves.
    """

    def __init__(
        self,
        objective: Learner[S],
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
        micro_batch: int | None = None,
        precision: Literal["float32", "bfloat16"] = "float32",
        checkpoint_transitions: int | None = None,
    ):
        if steps < 0 or save_every < 1 or keep < 1 or (micro_batch is not None and micro_batch < 1):
            raise ValueError(
                "Trainer: needs steps >= 0, save_every >= 1, keep >= 1 and micro_batch >= 1 or none, "
                f"got {steps=} {save_every=} {keep=} {micro_batch=}"
            )
        self.objective, self.sampler, self.evaluator = objective, sampler, evaluator
        self.steps, self.lr, self.clip_grad_norm = steps, lr, clip_grad_norm
        self.callbacks, self.checkpoints, self.save_every, self.keep = callbacks, checkpoints, save_every, keep
        if checkpoint_transitions is not None:
            objective.checkpoint_transitions(checkpoint_transitions)
        self.stop, self.micro_batch, self.autocast = stop, micro_batch, precision == "bfloat16"
        self.groups = objective.parameter_groups()
        rates = self._rates(0)
        self.optimizer = (optimizer or partial(torch.optim.Adam, fused=True))(
            [{"params": list(group.parameters), "lr": rates[group.name]} for group in self.groups]
        )
        self.step = self.trajectories = 0

    def run(self) -> Report | None:
        """Train to the last step, or until ``stop``; the last report, None if there was nothing to do.

        If an update fails, a checkpoint keeps those before it; its batch is not drawn again on resuming.

        Raises:
            NonFiniteError: if a loss or gradient is not finite.
            CheckpointError: if checkpoints cannot be written, or their directory holds another run.
        """
        if self.checkpoints is not None and processes.rank() == 0:
            checkpoint.claim(self.checkpoints, self.step)
        report = None
        with ExitStack() as started:
            for callback in self.callbacks:
                started.callback(callback.close)
                callback.start(self.step)
            while self.step < self.steps:
                try:
                    report = self._advance()
                except Exception as error:
                    broken = broken_parameters(self.objective)
                    if not broken and report is not None and report.step == self.step:  # all updates are reported
                        self._rescue()
                    if broken and not isinstance(error, NonFiniteError):
                        raise NonFiniteError(f"parameter {broken[0]} is not finite at step {self.step}") from error
                    raise
                for callback in self.callbacks:
                    callback(report)
                stopping = any(processes.gathered(self.stop()))
                if stopping or self.step % self.save_every == 0 or self.step == self.steps:
                    self.save()
                if stopping:
                    break
        return report

    def _advance(self) -> Report:
        """One batch, one update, one report."""
        if self.objective.begin(self.step) and self.evaluator is not None:
            self.evaluator.retarget()
        with recorded(self.checkpoints, self.step) as batches:
            with self._precision():
                batches.append(processes.apart(self.sampler(self.step)))
            (batch,) = batches
            known = batch.known()
            if len(known) == 0:
                raise RewardError(
                    f"none of the {len(batch)} rewards at step {self.step} is known, as all of them failed"
                )
            metrics = self._update(known)
        self.step += 1
        self.trajectories += len(batch) * processes.count()
        if self.evaluator is not None:
            self.evaluator.discovery.observe(known.final)
        failed = {"rewards_failed": len(batch) - len(known)} if len(known) < len(batch) else {}
        return self._report({**metrics, **failed})

    def _rescue(self) -> None:
        """Keep the updates before a failure, beside older checkpoints; alone, since other processes may go on."""
        path = None if self.checkpoints is None else checkpoint.path_of(self.checkpoints, self.step)
        if path is not None and processes.count() == 1 and not path.exists():
            with suppress(checkpoint.CheckpointError):
                checkpoint.save(path, self.state_dict())

    def _update(self, batch: Trajectories[S]) -> Reported:
        """One optimizer step on a batch, unless a number is not finite; returns what there is to report."""
        self.optimizer.zero_grad(set_to_none=True)
        report = self._differentiate(batch)
        moving = [p for group in self.groups for p in group.parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm([p.grad for p in moving if p.grad is not None])
        if not bool(norm.isfinite()):
            cause = cause_of_gradient(self.objective)
            raise NonFiniteError(f"the gradient is not finite at step {self.step}: {cause}; parameters are untouched")
        if self.clip_grad_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(moving, self.clip_grad_norm, norm)
        rates = self._rates(self.step)
        for group, target in zip(self.groups, self.optimizer.param_groups, strict=True):
            target["lr"] = rates[group.name]
        self.optimizer.step()
        return {**report, "gradient_norm": norm}

    def _differentiate(self, batch: Trajectories[S]) -> Reported:
        """Put the gradient of a batch's loss, which must be finite, into the parameters; its report."""
        in_parts = self.micro_batch is not None or processes.count() > 1
        with self._precision():
            if in_parts:
                loss, report = backward_in_parts(self.objective, batch, self.step, self.micro_batch or len(batch))
            else:
                loss, report = self.objective(batch, self.step)
        if not bool(loss.isfinite()):
            cause = cause_of_loss(self.objective, batch)
            value = float(loss.detach())
            raise NonFiniteError(f"the loss is {value} at step {self.step}: {cause}; parameters are untouched")
        if not in_parts:
            loss.backward()
        return report

    def _precision(self) -> AbstractContextManager[object]:
        if not self.autocast:
            return nullcontext()
        return torch.autocast(next(self.objective.parameters()).device.type, dtype=torch.bfloat16)

    def _rates(self, step: int) -> dict[str, float]:
        """The learning rate of each parameter group in force at ``step``.

        Raises:
            ValueError: if one is negative or not finite.
        """
        rates = {g.name: value_at(self.lr if g.lr is None else g.lr, step) for g in self.groups}
        bad = {name: rate for name, rate in rates.items() if not 0 <= rate < torch.inf}
        if bad:
            raise ValueError(f"Trainer: learning rates must be finite and not negative, got {bad} at step {step}")
        return rates

    def _report(self, metrics: Mapping[str, float | Tensor]) -> Report:
        evaluator, at = self.evaluator, self.step - 1  # schedules count updates from zero
        found = evaluator.discovery.counts() if evaluator is not None else {}
        rates = {f"lr_{name}": rate for name, rate in self._rates(at).items()}
        told = {**{k: float(v) for k, v in metrics.items()}, **found, **self.sampler.settings(at), **rates}
        if evaluator is None or (self.step % evaluator.every and self.step != self.steps):
            return Report(self.step, self.steps, self.trajectories, told, None)
        return Report(self.step, self.steps, self.trajectories, told, evaluator(self.step), evaluator.examples)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as tensors and plain values."""
        return {
            "step": self.step,
            "trajectories": self.trajectories,
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "samplers": processes.gathered(self.sampler.state_dict()),
            "evaluator": self.evaluator.state_dict() if self.evaluator is not None else {},
            "generators": {  # torch's own, which layers such as dropout draw from
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the trainer that ``state`` is of; sets torch's global generators too."""
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(processes.own(state["samplers"]))
        if self.evaluator is not None:
            self.evaluator.load_state_dict(state["evaluator"])
        self.step, self.trajectories = state["step"], state["trajectories"]
        torch.set_rng_state(state["generators"]["cpu"])
        for device, generator in enumerate(state["generators"]["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator, device)

    def save(self) -> None:
        """Write a checkpoint of this step, then delete the oldest ones."""
        if self.checkpoints is None:
            return
        state = self.state_dict()
        if processes.rank() == 0:
            reporting.sync(self.callbacks)  # what a checkpoint counts as told is not told again
            checkpoint.prune(self.checkpoints, self.keep)  # runs that end between the next two lines leave one too many
            checkpoint.save(checkpoint.path_of(self.checkpoints, self.step), state)
            checkpoint.prune(self.checkpoints, self.keep)

    def resume(self) -> bool:
        """Go on from the newest sound checkpoint; False if there is none. Damaged ones are set aside.

        Raises:
            CheckpointError: if there are checkpoints but none is sound, or it is of another configuration.
        """
        found = checkpoint.newest(self.checkpoints) if self.checkpoints is not None else None
        if found is None:
            return False
        path, state = found
        try:
            self.load_state_dict(state)
        except (KeyError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise checkpoint.CheckpointError(
                f"{path} does not fit this run: {reason}; use the configuration it was made with, or another directory"
            ) from error
        if processes.rank() == 0:
            checkpoint.set_aside(path)
        return True
