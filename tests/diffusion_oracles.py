"""Small diffusion samplers, and the exact solution where the target is a Gaussian."""

from __future__ import annotations

import torch

from envs.diffusion.environment import Diffusion
from envs.diffusion.processes import Process
from envs.diffusion.targets import Target, log_normal, standard_normal
from gfn.distributions import Gaussian
from gfn.policies import Policy


class Normal(Target):
    """exp(log_z) N(x; mean, diag std²), one for each label: tensors [C, D] and [C]."""

    sampled = True

    def __init__(self, mean, std, log_z):
        self.mean, self.std, self.log_z = mean.double(), std.double(), log_z.double()
        self.n_labels, self.dim = mean.shape

    def log_density(self, x, label):
        return log_normal(x.double(), self.mean[label], self.std[label]).sum(1) + self.log_z[label]

    def sample(self, label, generator=None):
        return self.mean[label] + self.std[label] * standard_normal(len(label), self.dim, label, generator)


def normal() -> Normal:
    """Two labels in three dimensions."""
    mean = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]])
    std = torch.tensor([[0.5, 2.0, 1.0], [1.5, 0.3, 0.7]])
    return Normal(mean, std, torch.tensor([0.7, -1.2]))


class TimeReversal(Policy):
    """P_F that undoes a process exactly for a normal target: linear in x, with a variance smaller than the process's.

    Under P_B x_t is N(m_t, V_t) with m_{t−1} = c_t m_t and V_{t−1} = c_t² V_t + b_t², and Bayes' rule turns the step
    x_{t−1} | x_t ~ N(c_t x_t, b_t²) round.
    """

    def __init__(self, env: Diffusion, target: Normal, process: Process):
        super().__init__()
        mean, variance = [target.mean], [target.std.square()]
        for c, b in zip(process.shrink.flip(0), process.back.flip(0), strict=True):
            mean.append(c * mean[-1])
            variance.append(c**2 * variance[-1] + b**2)
        self.mean, self.variance = torch.stack(mean[::-1]), torch.stack(variance[::-1])  # [T + 1, C, D]
        self.shrink = process.shrink

    def distribution(self, states):
        t, label = states.time, states.label
        before, after = self.variance[t, label], self.variance[t + 1, label]
        gain = torch.where(before > 0, self.shrink[t].unsqueeze(1) * after / before.clamp(min=1e-300), 0.0)
        mean = self.mean[t + 1, label] + gain * (states.x - self.mean[t, label])
        return Gaussian(mean - states.x, (after - gain.square() * before).sqrt())
