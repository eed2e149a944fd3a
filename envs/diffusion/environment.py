"""Diffusion samplers: T steps from the origin to a sample of an unnormalised density."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from envs.diffusion.metrics import covered, wasserstein
from envs.diffusion.targets import Target
from gfn.environment import Environment
from gfn.states import TensorStates
from gfn.trajectories import Trajectories

TRIED = 64  # points at which a density is looked at before training
COMPARED = 512  # samples whose distance to exact ones is measured


@dataclass(frozen=True)
class Points(TensorStates):
    """A batch of places.

    Attributes:
        x: place, float ``[N, D]``.
        time: steps made, long ``[N]``.
        label: the condition, long ``[N]``; it never changes.
    """

    x: Tensor
    time: Tensor
    label: Tensor


class Diffusion(Environment[Points]):
    """Points that start at the origin and move ``steps`` times; the action is the increment, ``[N, D]``.

    Args:
        target: the density R(x | label) of where they end; a label is drawn evenly by ``reset``.
        steps: T.

    Raises:
        ValueError: if T < 2, or the density is not finite where it is tried.
    """

    def __init__(self, target: Target, steps: int = 32):
        if steps < 2:
            raise ValueError(
                f"Diffusion: steps must be at least 2 (the first leaves the origin, the last arrives), got {steps}"
            )
        self.target, self.max_steps, self.dim, self.n_labels = target, steps, target.dim, target.n_labels
        self._require_density()

    def _require_density(self) -> None:
        """Look at the density near the origin, far out and, where that can be done, at exact samples."""
        generator = torch.Generator().manual_seed(0)
        for number in range(self.n_labels):
            label = torch.full((TRIED,), number)
            noise = torch.randn(TRIED, self.dim, generator=generator)
            tried = [torch.zeros_like(noise), noise, self.target.reach * noise]
            tried += [self.target.sample(label, generator).to(noise.dtype)] if self.target.sampled else []
            for x in tried:
                value = self.target.log_density(x, label)
                if value.shape != (TRIED,):
                    raise ValueError(
                        f"Diffusion: log_density of {type(self.target).__name__} must give one number for each of "
                        f"{TRIED} points, shape ({TRIED},); got {tuple(value.shape)}"
                    )
                bad = (~value.isfinite()).nonzero().flatten()
                if len(bad):
                    first = int(bad[0])
                    raise ValueError(
                        f"Diffusion: the log-density of {type(self.target).__name__} is {float(value[first])} at "
                        f"{_shown(x[first])}, label {number} ({len(bad)} of {TRIED} points); it must be finite there: "
                        "give the density a floor, or full support"
                    )

    def reset(self, n: int, generator: torch.Generator | None = None) -> Points:
        label = torch.randint(self.n_labels, (n,), device=self.device, generator=generator)
        return self.starts(label)

    def starts(self, label: Tensor) -> Points:
        """The initial states of labels, long ``[N]``."""
        return Points(torch.zeros(len(label), self.dim, device=self.device), torch.zeros_like(label), label)

    def ends(self, x: Tensor, label: Tensor | None = None) -> Points:
        """Terminal states at places ``[N, D]``, given labels; default, the first.

        Raises:
            ValueError: if the places have another dimension.
        """
        if x.ndim != 2 or x.shape[1] != self.dim:
            raise ValueError(f"Diffusion: expected places of shape [N, {self.dim}], got {list(x.shape)}")
        label = torch.zeros(len(x), dtype=torch.long) if label is None else label
        time = torch.full_like(label, self.max_steps)
        return Points(x.to(torch.get_default_dtype()), time, label).to(self.device)

    def step(self, states: Points, actions: Tensor) -> Points:
        self._require_moves(states, actions, self.is_terminal(states), "step: a state is terminal already")
        return Points(states.x + actions, states.time + 1, states.label)

    def undo(self, states: Points, actions: Tensor) -> Points:
        self._require_moves(states, actions, self.is_initial(states), "undo: a state is initial already")
        x, first = states.x - actions, (states.time == 1).unsqueeze(1)
        missed = (x.abs() > 1e-4 * (1 + states.x.abs())) & first
        self._require_moves(states, actions, missed.any(1), "undo: the first step does not come from the origin")
        return Points(x.masked_fill(first, 0.0), states.time - 1, states.label)

    def _require_moves(self, states: Points, actions: Tensor, wrong: Tensor, what: str) -> None:
        if actions.shape != states.x.shape:
            raise ValueError(f"Diffusion: expected actions of shape {list(states.x.shape)}, got {list(actions.shape)}")
        if bool(wrong.any()):
            first = int(wrong.nonzero()[0, 0])
            raise ValueError(f"Diffusion.{what}: {self.describe(states[first : first + 1])[0]}")

    def is_initial(self, states: Points) -> Tensor:
        return states.time == 0

    def is_terminal(self, states: Points) -> Tensor:
        return states.time == self.max_steps

    def log_reward(self, states: Points) -> Tensor:
        return self.target.log_density(states.x, states.label)

    def score(self, states: Points) -> Tensor:
        """∇ log R at the places of states, whatever their time, ``[N, D]``; constant for gradients."""
        with torch.enable_grad():
            x = states.x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.target.log_density(x, states.label).sum(), x)
        return gradient

    def describe(self, states: Points) -> list[str]:
        rows = zip(states.x, states.time.tolist(), states.label.tolist(), strict=True)
        named = self.n_labels > 1
        return [f"{_shown(x)} at time {time}" + (f", label {label}" if named else "") for x, time, label in rows]

    @property
    def mode_counts(self) -> dict[str, int | None]:
        count = self.target.mode_count
        return {} if count is None else {"modes": count * self.n_labels}

    def modes(self, states: Points) -> dict[str, Tensor]:
        if self.target.mode_count is None:
            return {}
        mode = self.target.mode(states.x, states.label)
        return {"modes": torch.where(mode < 0, mode, mode + states.label * self.target.mode_count)}

    def distance(self, first: Points, second: Points) -> Tensor:
        return (first.x - second.x).norm(dim=1)

    def log_partition(self, initial: Points) -> Tensor | None:
        return None if self.target.log_z is None else self.target.log_z[initial.label]

    def exact_terminal(self, initial: Points, generator: torch.Generator | None = None) -> Points | None:
        if not self.target.sampled:
            return None
        return self.ends(self.target.sample(initial.label, generator), initial.label)

    def summary(self, t: Trajectories[Points]) -> Mapping[str, float]:
        """Modes covered, and distance to exact samples beside that of exact samples to one another.

        ``modes_covered`` counts modes with at least a quarter of the samples that they should have (with so many
        modes that this is less than one, those with a sample); ``w2`` is the 2-Wasserstein distance, labels apart,
        of at most 512 samples, and ``w2_exact`` that between two sets of as many exact ones.
        """
        final, found = t.final, dict[str, float]()
        if self.target.mode_count is not None:
            found["modes_covered"] = covered(self.modes(final)["modes"], self.target.mode_count * self.n_labels)
        if self.target.sampled:
            some = final[:COMPARED]
            exact, others = (self._exact_places(some.label, seed) for seed in (1, 2))
            found |= {"w2": self._apart(some.x, exact, some.label), "w2_exact": self._apart(others, exact, some.label)}
        return found | dict(self.target.summary(final.x, final.label))

    def _exact_places(self, label: Tensor, seed: int) -> Tensor:
        return self.target.sample(label, torch.Generator(label.device).manual_seed(seed))

    def _apart(self, first: Tensor, second: Tensor, label: Tensor) -> float:
        """Distance of samples, the mean over labels; both sets have the same labels ``[N]``."""
        each = [wasserstein(first[label == c], second[label == c]) for c in label.unique()]
        return sum(each) / len(each)

    def paint(self, states: Points, figure: Any) -> None:
        """Terminal states as their target shows them, beside exact samples if there are any."""
        exact = self.exact_terminal(states, torch.Generator(states.x.device).manual_seed(1))
        self.target.paint(figure, states.x, None if exact is None else exact.x)

    def to(self, device: torch.device | str) -> Self:
        moved = super().to(device)
        moved.target = self.target.to(device)
        return moved


def _shown(x: Tensor) -> str:
    numbers = " ".join(f"{value:.4g}" for value in x[:6].tolist())
    return f"({numbers}{' …' if len(x) > 6 else ''})"


def exact_samples(env: Diffusion, n: int = 4096) -> Points:
    """Draws from R/Z of a target that has an exact sampler, as data (``sampler=data``).

    Raises:
        ValueError: if it has none.
    """
    label = torch.arange(n, device=env.device) % env.n_labels
    drawn = env.exact_terminal(env.starts(label), torch.Generator(env.device).manual_seed(0))
    if drawn is None:
        raise ValueError(f"{type(env.target).__name__} has no exact sampler: use sampler=on_policy")
    return drawn
