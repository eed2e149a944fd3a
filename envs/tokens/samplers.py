"""A sampler that does not train on for ever where no sequence ends."""

from __future__ import annotations

from typing import Any

from envs.tokens.environment import Sequences, Tokens
from envs.tokens.summary import advice
from gfn.environment import RewardError
from gfn.samplers.sampler import Sampler, checked_size, unit_of
from gfn.trajectories import Trajectories


class Watched:
    """Batches of a sampler, unless none of their sequences has ended for a long time: then nothing can be learned.

    The share that the limit cuts is in the log as ``cut``.

    Args:
        env: where the trajectories are from.
        sampler: called at every step.
        patience: batches in a row without a sequence that has ended, after which training fails.
        batch_size: trajectories per step; default, the inner sampler's.

    Raises:
        ValueError: if ``patience`` is not positive.
        RewardError: when called, if the patience has come to its end.
    """

    def __init__(
        self, env: Tokens, sampler: Sampler[Sequences], patience: int = 20, batch_size: int | None = None
    ) -> None:
        if patience < 1:
            raise ValueError(f"Watched: patience must be at least 1 batch, got {patience}")
        self.env, self.sampler, self.patience = env, sampler, patience
        self.one_group, self.forward = sampler.one_group, sampler.forward
        self.batch_size = checked_size("Watched", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self.cut, self.in_vain = 0.0, 0

    def __call__(self, step: int, size: int | None = None) -> Trajectories[Sequences]:
        batch = self.sampler(step, self.batch_size if size is None else size)
        self.cut = 1 - float(self.env.is_stopped(batch.final).double().mean())
        self.in_vain = self.in_vain + 1 if self.cut == 1 else 0
        if self.in_vain >= self.patience:
            raise RewardError(f"all sequences of {self.in_vain} batches in a row, to step {step}, {advice(self.env)}")
        return batch

    def settings(self, step: int) -> dict[str, float]:
        return {**self.sampler.settings(step), "cut": self.cut}

    def state_dict(self) -> dict[str, Any]:
        return {"sampler": self.sampler.state_dict(), "cut": self.cut, "in_vain": self.in_vain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.cut, self.in_vain = state["cut"], state["in_vain"]
