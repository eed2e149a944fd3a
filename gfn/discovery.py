"""Modes that training has found."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gfn.environment import Environment, as_multimodal


class Discovery:
    """Which modes training trajectories have ended in so far, under each of the environment's definitions."""

    def __init__(self, env: Environment[Any]):
        self.env = as_multimodal(env)
        names = self.env.mode_counts if self.env is not None else {}
        self.found: dict[str, set[int]] = {name: set() for name in names}

    def observe(self, final: Any) -> None:
        """Take note of the terminal states of a batch."""
        if self.env is None:
            return
        labels = self.env.modes(final)
        for name, seen in self.found.items():
            seen.update(labels[name][labels[name] >= 0].tolist())

    def counts(self) -> dict[str, int]:
        """Number of modes found, by definition."""
        return {name: len(seen) for name, seen in self.found.items()}

    def state_dict(self) -> dict[str, Tensor]:
        return {name: torch.tensor(sorted(seen), dtype=torch.long) for name, seen in self.found.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over what was found; a definition that ``state`` does not know starts with nothing."""
        self.found = {name: set(state[name].tolist()) if name in state else set() for name in self.found}
