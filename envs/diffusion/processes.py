"""Linear Gaussian processes that run from x at time T back to the origin at time 0: what P_B is, and P_F starts from.

Back, x_{t−1} | x_t ~ N(shrink_t x_t, back_t²), and the last step is certain: shrink_1 = back_1 = 0. Forward, before
anything is learned, x_t | x_{t−1} ~ N(carry_t x_{t−1}, out_t²).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Process:
    """T steps of a process; entry t − 1 of each tensor, float64 ``[T]``, is of the step between times t − 1 and t.

    Attributes:
        shrink: mean of x_{t−1} over x_t.
        back: standard deviation of x_{t−1} given x_t.
        carry: mean of x_t over x_{t−1} before anything is learned.
        out: standard deviation of x_t given x_{t−1} before anything is learned.
    """

    shrink: Tensor
    back: Tensor
    carry: Tensor
    out: Tensor

    def __len__(self) -> int:
        return len(self.shrink)

    def from_end(self) -> tuple[Tensor, Tensor]:
        """x_t | x_T ~ N(scale_t x_T, spread_t²): both, for the times 0 … T, ``[T + 1]``."""
        scale, variance = [torch.ones((), dtype=torch.float64)], [torch.zeros((), dtype=torch.float64)]
        for shrink, back in zip(self.shrink.flip(0), self.back.flip(0), strict=True):
            scale.append(shrink * scale[-1])
            variance.append(shrink**2 * variance[-1] + back**2)
        return torch.stack(scale).flip(0), torch.stack(variance).flip(0).sqrt()

    def between(self) -> tuple[Tensor, Tensor, Tensor]:
        """x_t | x_{t−1}, x_T ~ N(a_t x_{t−1} + b_t x_T, c_t²): the three, for t = 1 … T, ``[T]``."""
        scale, spread = self.from_end()
        before, after = spread[:-1].square(), spread[1:].square()
        # At t = 1 the place before is the origin, which tells nothing; at t = T the end is x_T itself.
        gain = torch.where(before > 0, self.shrink * after / before.clamp(min=1e-300), 0.0)
        return gain, scale[1:] - gain * scale[:-1], (after - gain.square() * before).clamp(min=0).sqrt()


def _require_steps(name: str, steps: int) -> None:
    if steps < 2:
        raise ValueError(f"{name}: needs at least 2 steps (the first leaves the origin), got env.steps={steps}")


def _require_positive(name: str, **values: float) -> None:
    bad = {key: value for key, value in values.items() if not 0 < value < math.inf}
    if bad:
        raise ValueError(f"{name}: expected finite numbers above 0, got {bad}")


@dataclass(frozen=True)
class Bridge:
    """Brownian motion from the origin over one unit of time, and back the bridge that it is given its end.

    Attributes:
        sigma: standard deviation of the motion at its end.
        power: above 1, steps get shorter towards the end: time is 1 − (1 − t/T)^power.
    """

    sigma: float = 1.0
    power: float = 1.0

    def __post_init__(self) -> None:
        _require_positive("Bridge", sigma=self.sigma, power=self.power)

    def __call__(self, steps: int) -> Process:
        """The process in ``steps`` steps."""
        _require_steps("Bridge", steps)
        time = 1 - (1 - torch.linspace(0, 1, steps + 1, dtype=torch.float64)) ** self.power
        before, after = time[:-1], time[1:]
        shrink, step = before / after, (after - before).sqrt()
        return Process(shrink, self.sigma * step * shrink.sqrt(), torch.ones_like(shrink), self.sigma * step)


@dataclass(frozen=True)
class Noising:
    """Noise is mixed in while the variance is kept; forward, the first step draws N(0, sigma²) and the others denoise.

    The share of the end that is left after noising for u, from 0 to 1, is cos²(θu^power) (Nichol and Dhariwal 2021,
    arXiv:2102.09672, with power 1), where θ leaves the share ``rest`` at u = 1.

    Attributes:
        sigma: standard deviation of the noise, about that of the target.
        power: above 1, steps near the end of a trajectory add less noise.
        rest: share of the variance that is still the end's at time 1.
    """

    sigma: float = 1.0
    power: float = 1.0
    rest: float = 1e-3

    def __post_init__(self) -> None:
        _require_positive("Noising", sigma=self.sigma, power=self.power)
        if not 0 < self.rest < 1:
            raise ValueError(f"Noising: rest must lie between 0 and 1, got {self.rest}")

    def __call__(self, steps: int) -> Process:
        """The process in ``steps`` steps, the first of which draws noise."""
        _require_steps("Noising", steps)
        u = torch.linspace(1, 0, steps, dtype=torch.float64)  # at times 1 … T
        kept = (math.acos(math.sqrt(self.rest)) * u**self.power).cos().square()
        shrink = (kept[:-1] / kept[1:]).sqrt()
        noise = self.sigma * (1 - shrink.square()).sqrt()
        zero = torch.zeros(1, dtype=torch.float64)
        return Process(
            shrink=torch.cat([zero, shrink]),
            back=torch.cat([zero, noise]),
            carry=torch.cat([zero, shrink]),
            out=torch.cat([zero + self.sigma, noise]),
        )
