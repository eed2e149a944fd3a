"""Threads that ask a server for the groups of a hub."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from envs.tokens.adapters import Adapters
from envs.tokens.connections import LostError, ServerError
from envs.tokens.environment import EMPTY, Sequences, Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.server import Completion, Sampling
from gfn.distributed import Hub, Searcher, SearchError
from gfn.distributed.hub import Job, Weights
from gfn.distributed.searcher import seed_of
from gfn.environment import checked_log_reward
from gfn.exploration import Exploration, NoExploration, Tempered
from gfn.schedules import value_at
from gfn.trajectories import Trajectories

RESTORES = 3  # of adapters for one group, after which the server does not keep them
PARTING = 5.0  # seconds for threads to end


class Requests:
    """A number of threads, each with one request in flight, that make the groups of one hub.

    Args:
        hub: gives out groups, and is given them.
        searcher: what it would have made them with.
        env: that of ``searcher``, on the CPU and for these threads alone.
        policy: that of ``searcher``.
        adapters: of the policy, on the server.
        count: of threads.

    Attributes:
        lost: requests that were given up, for others to make their groups.
        waited: share of the time between the last two batches in which the trainer waited.
        idle: share of it in which requests were not in flight.
    """

    def __init__(
        self,
        hub: Hub,
        searcher: Searcher[Sequences],
        env: Tokens,
        policy: LanguageModel,
        adapters: Adapters,
        count: int,
    ) -> None:
        self.hub, self.adapters, self.lost = hub, adapters, 0
        self.waited = self.idle = 0.0
        self._searcher, self._env, self._policy, self._serial = searcher, env, policy, 0
        self._sampling = Sampling(env.n_actions, env.max_steps, env.min_tokens, tuple(env.task.stop_ids))
        self._in_use: dict[str, tuple[str, float]] = {}  # by thread: name of the adapters, and since when
        self._rewards, self._ended = threading.Lock(), threading.Event()
        self._last, self._busy, self._busy_before = time.monotonic(), 0.0, 0.0
        names = [f"request-{place}" for place in range(count)]
        self._threads = [threading.Thread(target=self._serve, args=(name,), name=name, daemon=True) for name in names]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Break off all requests, and leave nothing on the server."""
        self._ended.set()
        self.adapters.server.close()
        with self.hub.changed:
            self.hub.changed.notify_all()
        deadline = time.monotonic() + PARTING
        for thread in self._threads:
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        self.adapters.close()

    def published(self, version: int) -> Weights:
        """Weights for the hub; those that it cannot give out any more and no request uses are removed."""
        name = self.adapters.publish(version)
        self._serial += 1
        with self.hub.changed:
            used = {weights.content for weights in self.hub.current()} | {used for used, _ in self._in_use.values()}
        self.adapters.keep(used | {name})
        return Weights(version, self._serial, name)

    def gather(self, n: int, timeout: float, stop: Callable[[], bool]) -> None:
        """Return when the next ``n`` groups are there.

        Raises:
            SearchError: if none comes for ``timeout`` seconds; whatever a request failed with.
            Interrupted: if ``stop`` says so.
        """
        began = time.monotonic()
        self.hub.await_groups(n, timeout, stop, self.status)
        now = time.monotonic()
        with self.hub.changed:
            busy = self._busy + sum(now - since for _, since in self._in_use.values())
        past = max(now - self._last, 1e-9)
        self.waited = (now - began) / past
        self.idle = min(max(1 - (busy - self._busy_before) / (past * len(self._threads)), 0.0), 1.0)
        self._last, self._busy_before = now, busy

    def status(self) -> str:
        """One line for messages."""
        server = self.adapters.server
        told = f"{server.retried} requests repeated, {self.lost} lost; {self.adapters.reloaded} adapters loaded again"
        return f"{self.hub.status(time.monotonic())}; {told}"

    def _serve(self, who: str) -> None:
        while not self._ended.is_set() and self.hub.error is None:
            job = self._leased(who)
            if job is None:
                self.hub.wait_for_work(1.0)
                continue
            try:
                group = self._group(job)
            except LostError as error:
                if not self._ended.is_set():
                    with self.hub.changed:
                        self.lost += 1
                        self.hub.lose(who, f"{who}: {error}")
            except Exception as error:
                if not self._ended.is_set():
                    self.hub.fail(error)
            else:
                self.hub.put(who, job.number, group.tensors(), time.monotonic())
            self._done(who)

    def _leased(self, who: str) -> Job | None:
        """The next group, whose adapters are then in use: nobody may find them to be in neither's hands."""
        with self.hub.changed:
            job = self.hub.lease(who, time.monotonic())
            if job is not None:
                self._in_use[who] = job.weights.content, time.monotonic()
            return job

    def _done(self, who: str) -> None:
        with self.hub.changed:
            _, since = self._in_use.pop(who)
            self._busy += time.monotonic() - since

    def _group(self, job: Job) -> Trajectories[Sequences]:
        """The groups of one number, each by a request of its own: in one, all prompts would be given the same seed."""
        deadline = time.monotonic() + self.hub.ledger.time_limit
        seed, n = seed_of(self._searcher.seed, job.number), self._searcher.size // self._searcher.group_size
        starts = self._env.reset(n, torch.Generator().manual_seed(seed)).prompt.tolist()
        groups = list[Trajectories[Sequences]]()
        for place, prompt in enumerate(starts):
            completions = self._completions(job, prompt, seed_of(seed, place), deadline)
            with self._rewards:  # verifiers and tokenizers are not made for several threads
                groups.append(trajectories(self._env, prompt, completions, job.weights.version))
        return Trajectories.cat(groups)

    def _completions(self, job: Job, prompt: int, seed: int, deadline: float) -> list[Completion]:
        """From the server, which may have been restarted and have forgotten the adapters."""
        server, name = self.adapters.server, job.weights.content
        for restores in range(RESTORES + 1):
            try:
                return server.complete(
                    name,
                    self._env.task.prompts[prompt],
                    self._searcher.group_size,
                    self._sampling,
                    temperature_of(self._policy, self._searcher.exploration, job.weights.version),
                    seed % (1 << 62),
                    deadline - time.monotonic(),
                )
            except ServerError as error:
                if error.status != 404 or restores == RESTORES:
                    raise
            self.adapters.restore(name)
        raise AssertionError("the loop ends by itself")


def temperature_of(policy: LanguageModel, exploration: Exploration, step: int) -> float:
    """Of the logits, the policy's own included.

    Raises:
        SearchError: if more than a temperature would be needed to explore so.
    """
    if isinstance(exploration, NoExploration):
        return policy.temperature
    if isinstance(exploration, Tempered):
        return policy.temperature * value_at(exploration.temperature, step)
    raise SearchError(
        f"Served: vLLM cannot explore by {type(exploration).__name__}; use exploration=none or exploration=tempered, "
        "or sampler/engine=ray"
    )


def trajectories(env: Tokens, prompt: int, completions: Sequence[Completion], version: int) -> Trajectories[Sequences]:
    """Completions of one prompt as a group, with their rewards.

    Raises:
        RewardError: if a reward is NaN or +inf, or a verifier fails.
    """
    n = len(completions)
    lengths = torch.tensor([len(completion.tokens) for completion in completions])
    tokens = torch.full((n, env.max_steps), EMPTY)
    for written, completion in zip(tokens, completions, strict=True):
        written[: len(completion.tokens)] = torch.tensor(completion.tokens)
    row = torch.arange(n).repeat_interleave(lengths + 1)
    time_of_state = torch.cat([torch.arange(int(length) + 1) for length in lengths])
    past = torch.arange(env.max_steps) < time_of_state.unsqueeze(1)
    return Trajectories(
        states=Sequences(torch.full_like(row, prompt), tokens[row].where(past, EMPTY)),
        actions=tokens[tokens != EMPTY],
        lengths=lengths,
        log_reward=checked_log_reward(env, Sequences(torch.full((n,), prompt), tokens)),
        group=torch.zeros(n, dtype=torch.long),
        behaviour_log_prob=torch.tensor([x for completion in completions for x in completion.log_probs]),
        policy_version=torch.full((n,), version),
    )
