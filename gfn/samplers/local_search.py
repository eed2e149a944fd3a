"""Local search by back-and-forth: undo some steps of a trajectory, redo them, keep the better."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from gfn.environment import Environment
from gfn.exploration import Exploration, NoExploration
from gfn.policies import Policy
from gfn.samplers.sampler import Sampler, checked_size, generator_of, unit_of
from gfn.sampling import rollout
from gfn.states import States
from gfn.trajectories import Trajectories, chosen

S = TypeVar("S", bound=States)


class LocalSearch(Generic[S]):
    """Refines another sampler's trajectories by rounds of back-and-forth (Kim et al. 2024, arXiv:2310.02710).

    In each round every trajectory is walked back from its end by P_B, all the way, so that it has
    a new path τ; some last steps of τ are redone by P_F, which gives a proposal τ'. A round begins
    with the results of the one before. A rejected proposal leaves the end as it was, with path τ.

    ``metropolis`` accepts with probability min(1, R(x')P_B(τ'|x') q(τ|τ') / R(x)P_B(τ|x) q(τ'|τ)), q the
    probability of undoing as many steps as it takes and redoing the other's. Given the number of
    steps it is reversible with respect to R(x)P_B(τ|x)/Z, so that the ends are a Markov chain
    reversible with respect to R/Z, and trajectories drawn from R(x)P_B(τ|x)/Z stay so. Whether every
    end can be reached is another matter: where lengths differ, a ``fraction`` below 1 can cut short
    trajectories off from long ones for good; 1, or two and more ``steps``, do not on a hypergrid.

    Args:
        env: where to search.
        policy: P_F.
        backward: P_B.
        sampler: where searches begin.
        rounds: proposals for each trajectory.
        fraction: undo up to this fraction of the steps, rounded up.
        steps: undo up to this many steps instead.
        vary: undo a random number of steps, uniform from one up to that; otherwise always that many
            (where lengths differ, Metropolis then rejects most proposals, having no way back).
        accept: ``metropolis``, or ``greedy``, when the reward is higher.
        exploration: how actions are drawn when redoing.
        batch_size: trajectories per step; default, the inner sampler's.
        seed: of the sampler's own generator.

    Raises:
        ValueError: if ``rounds``, ``fraction`` or ``steps`` is out of range, or ``accept`` is neither of the two.
    """

    def __init__(
        self,
        env: Environment[S],
        policy: Policy[S],
        backward: Policy[S],
        sampler: Sampler[S],
        rounds: int = 4,
        fraction: float = 0.5,
        steps: int | None = None,
        vary: bool = True,
        accept: Literal["greedy", "metropolis"] = "greedy",
        exploration: Exploration | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ):
        if rounds < 0 or not 0 < fraction <= 1 or (steps is not None and steps < 1):
            raise ValueError(
                "LocalSearch: needs rounds >= 0, fraction in (0, 1] and steps >= 1 or none, "
                f"got {rounds=} {fraction=} {steps=}"
            )
        if accept not in ("greedy", "metropolis"):
            raise ValueError(f"LocalSearch: accept must be greedy or metropolis, got {accept!r}")
        self.env, self.policy, self.backward, self.sampler = env, policy, backward, sampler
        self.rounds, self.fraction, self.steps, self.vary, self.accept = rounds, fraction, steps, vary, accept
        self.exploration: Exploration = exploration if exploration is not None else NoExploration()
        self.one_group, self.forward = sampler.one_group, False
        self.batch_size = checked_size("LocalSearch", batch_size, sampler.batch_size, unit_of(sampler))
        self.group_size = self.batch_size if self.one_group else sampler.group_size
        self.generator = generator_of(self, env.device, seed)
        self.proposed = self.accepted = 0

    def __call__(self, step: int, size: int | None = None) -> Trajectories[S]:
        t = self.sampler(step, self.batch_size if size is None else size)
        self.proposed = self.accepted = 0
        for _ in range(self.rounds):
            t = self.round(t, step)
        return t

    def round(self, t: Trajectories[S], step: int) -> Trajectories[S]:
        """One proposal for each trajectory, accepted or not."""
        walked = rollout(
            self.env, self.backward, t.final, backward=True, group=t.group, generator=self.generator, version=step
        )
        kept = walked.lengths - self._draw_undone(walked.lengths)
        redone = rollout(
            self.env,
            self.policy,
            walked.at(kept),
            explore=lambda distribution: self.exploration(distribution, step),
            group=t.group,
            generator=self.generator,
            version=step,
        )
        proposal = walked.spliced(kept, redone)
        taken = self.accepts(walked, proposal, kept, step)
        self.proposed += len(taken)
        self.accepted += int(taken.sum())
        return chosen(taken, proposal, walked)

    def accepts(self, old: Trajectories[S], new: Trajectories[S], kept: Tensor, step: int) -> Tensor:
        """Which proposals to take, bool ``[B]``; old and new share their first ``kept`` steps."""
        if self.accept == "greedy":
            return new.log_reward > old.log_reward
        coin = torch.rand(len(old), generator=self.generator, dtype=torch.float64, device=kept.device)
        return coin.log() < self.log_ratio(old, new, kept, step)

    @torch.no_grad()
    def log_ratio(self, old: Trajectories[S], new: Trajectories[S], kept: Tensor, step: int) -> Tensor:
        """Logarithm of the Metropolis-Hastings ratio, float64 ``[B]``; +inf from where the target has no mass."""
        there = self._log_target(new) - self._log_target(old)
        back = self._log_proposal(old, kept, step) + self._log_undone(new.lengths, kept)
        forth = self._log_proposal(new, kept, step) + self._log_undone(old.lengths, kept)
        return torch.where(old.log_reward == -torch.inf, torch.inf, there + back - forth)

    def _log_target(self, t: Trajectories[S]) -> Tensor:
        """log R(x)P_B(τ|x), float64 ``[B]``."""
        return t.log_reward.double() + t.pad(self.backward.log_prob_backward(t)).double().sum(1)

    def _log_proposal(self, t: Trajectories[S], kept: Tensor, step: int) -> Tensor:
        """Log-probability of redoing the steps after the first ``kept``, as they are drawn, float64 ``[B]``."""
        distribution = self.exploration(self.policy.distribution(t.sources), step)
        log_prob = distribution.log_prob(t.actions).double().masked_fill(t.column < kept[t.row], 0.0)
        return t.pad(log_prob).sum(1)

    def _most_undone(self, lengths: Tensor) -> Tensor:
        if self.steps is not None:
            return lengths.clamp(max=self.steps)
        return (lengths * self.fraction).ceil().long().clamp(min=1)

    def _draw_undone(self, lengths: Tensor) -> Tensor:
        most = self._most_undone(lengths)
        if not self.vary:
            return most
        share = torch.rand(len(lengths), generator=self.generator, dtype=torch.float64, device=lengths.device)
        return (share * most).long() + 1

    def _log_undone(self, lengths: Tensor, kept: Tensor) -> Tensor:
        """Log-probability of undoing all but the first ``kept`` steps, float64 ``[B]``."""
        undone, most = lengths - kept, self._most_undone(lengths)
        possible = undone <= most if self.vary else undone == most
        chance = -most.double().log() if self.vary else torch.zeros_like(most, dtype=torch.float64)
        return chance.where(possible, -torch.inf)

    def settings(self, step: int) -> dict[str, float]:
        """The inner sampler's, and the fraction of the last call's proposals that were accepted."""
        rate = self.accepted / self.proposed if self.proposed else 0.0
        return {**self.sampler.settings(step), "acceptance": rate}

    def state_dict(self) -> dict[str, Any]:
        own = {"generator": self.generator.get_state(), "proposed": self.proposed, "accepted": self.accepted}
        return {"sampler": self.sampler.state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        self.generator.set_state(state["generator"].cpu())
        self.proposed, self.accepted = state["proposed"], state["accepted"]
