"""Sequences of tokens: after a prompt, one token after the other, until a stop token or the length limit.

States form a tree, so P_B is certain, or a prior π in its place, with which the target is
π(y|x) exp(r(x, y)/β)/Z(x). The stop token is an action like any other and its probability part of
that of the sequence. A sequence that reaches the limit without one is a terminal object of its own
kind, with a reward of its own: leaving it out of the loss would leave its share of the probability
free, and rewarding it as if it had ended would make it count twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from envs.tokens.summary import summary
from envs.tokens.tasks import Answered, Task
from gfn.environment import DiscreteEnvironment, RewardError, TooManyStatesError
from gfn.states import TensorStates
from gfn.trajectories import Trajectories

EMPTY = -1  # where no token is written yet
MAX_LISTED = 1_000_000


@dataclass(frozen=True)
class Sequences(TensorStates):
    """Completions of prompts.

    Attributes:
        prompt: number of the prompt, long ``[N]``.
        tokens: what has been written, the stop token included, then ``EMPTY``; long ``[N, T]``.
    """

    prompt: Tensor
    tokens: Tensor

    @property
    def length(self) -> Tensor:
        """Number of tokens written, long ``[N]``; by what is empty, never by a padding token."""
        return (self.tokens != EMPTY).sum(1)


class Tokens(DiscreteEnvironment[Sequences]):
    """Completions of at most T tokens, with log R = r(x, y)/β.

    Action v writes token v. Of several stop tokens the first stands for all: a policy adds their
    probabilities up.

    Args:
        task: prompts and the reward of completions.
        max_tokens: T, the stop token included.
        min_tokens: tokens before a stop token is allowed.
        temperature: β.
        cut_reward: r of a sequence that the limit ends; below that of a wrong answer it is a penalty.
        listed: list all states, for exact evaluation; only for a few tokens.

    Raises:
        ValueError: if a number is out of its range, or a stop token outside the vocabulary.
    """

    def __init__(
        self,
        task: Task,
        max_tokens: int = 5,
        min_tokens: int = 0,
        temperature: float = 1.0,
        cut_reward: float = 0.0,
        listed: bool = False,
    ):
        stops = task.stop_ids
        if not 0 <= min_tokens < max_tokens or not 0 < temperature < torch.inf:
            raise ValueError(
                f"Tokens: needs 0 <= min_tokens < max_tokens and temperature > 0, "
                f"got {min_tokens=} {max_tokens=} {temperature=}"
            )
        if not cut_reward / temperature < torch.inf:
            raise ValueError(
                f"Tokens: needs cut_reward/temperature to be finite, or -inf for reward zero, got {cut_reward=} "
                f"{temperature=}"
            )
        if not stops or not all(0 <= stop < task.n_tokens for stop in stops) or len(set(stops)) >= task.n_tokens:
            raise ValueError(
                f"Tokens: stop ids must be some, and not all, of the {task.n_tokens} tokens, got {list(stops)}"
            )
        self.task, self.max_steps, self.min_tokens = task, max_tokens, min_tokens
        self.temperature, self.cut_reward = temperature, cut_reward
        self.masks, self.n_actions = bool(getattr(task, "masks", False)), task.n_tokens
        self.n_features = len(task.prompts) + max_tokens * (task.n_tokens + 1)
        self.writable = torch.ones(self.n_actions, dtype=torch.bool)
        self.writable[list(stops)] = False
        self.stop = stops[0]
        self._answers = self._fitting(task) if isinstance(task, Answered) else []
        self._offer(listed)

    def _fitting(self, task: Answered) -> list[list[list[int]]]:
        """The right answers of each prompt that the numbers of tokens allow."""
        fitting = [
            [answer for answer in task.answers(prompt) if self.min_tokens <= len(answer) < self.max_steps]
            for prompt in range(len(self.task.prompts))
        ]
        if not all(fitting):
            first = self.task.text(self.task.prompts[fitting.index([])])
            raise ValueError(
                f"Tokens: no right answer of the prompt {first!r} has between min_tokens={self.min_tokens} and "
                f"max_tokens={self.max_steps} tokens, the stop token among them; change one of the two"
            )
        return fitting

    def _offer(self, listed: bool) -> None:
        """Bind what only some of these environments have: one that has these methods is evaluated exactly."""
        if listed:
            self.enumerate, self.index = self._enumerate, self._index
        if self._answers and self.cut_reward == 0:  # a cut sequence is worth what a wrong one is
            self.exceptions, self.log_reward_elsewhere = self._exceptions, self._log_reward_of_wrong

    def to(self, device: torch.device | str) -> Self:
        moved = super().to(device)
        moved._offer(listed="enumerate" in vars(self))  # not bound to this one, which lists what lies elsewhere
        return moved

    def reset(self, n: int, generator: torch.Generator | None = None) -> Sequences:
        prompt = torch.randint(len(self.task.prompts), (n,), generator=generator, device=self.device)
        return Sequences(prompt, torch.full((n, self.max_steps), EMPTY, device=self.device))

    def step(self, states: Sequences, actions: Tensor) -> Sequences:
        self.require_allowed(states, actions, self.forward_mask(states), "step")
        return Sequences(states.prompt, states.tokens.scatter(1, states.length.unsqueeze(1), actions.unsqueeze(1)))

    def undo(self, states: Sequences, actions: Tensor) -> Sequences:
        self.require_allowed(states, actions, self.backward_mask(states), "undo")
        last = states.length.unsqueeze(1) - 1
        return Sequences(states.prompt, states.tokens.scatter(1, last, EMPTY))

    def is_initial(self, states: Sequences) -> Tensor:
        return states.length == 0

    def is_terminal(self, states: Sequences) -> Tensor:
        return self.is_stopped(states) | (states.length == self.max_steps)

    def is_stopped(self, states: Sequences) -> Tensor:
        """Which sequences end with a stop token, bool ``[N]``; a terminal one that does not was cut."""
        return self._last(states) == self.stop

    def _last(self, states: Sequences) -> Tensor:
        """The token written last, long ``[N]``; ``EMPTY`` where there is none."""
        place = (states.length - 1).clamp_min(0).unsqueeze(1)
        return states.tokens.gather(1, place).squeeze(1)

    def forward_mask(self, states: Sequences) -> Tensor:
        mask = self.writable.expand(len(states), -1).clone()
        mask[:, self.stop] = states.length >= self.min_tokens
        return mask & ~self.is_terminal(states).unsqueeze(1)

    def backward_mask(self, states: Sequences) -> Tensor:
        return self._last(states).unsqueeze(1) == torch.arange(self.n_actions, device=self.device)

    def encode(self, states: Sequences) -> Tensor:
        """The prompt and each place one-hot, for small networks, ``[N, n_features]``."""
        prompt = one_hot(states.prompt, len(self.task.prompts))
        places = one_hot(states.tokens + 1, self.n_actions + 1).flatten(1)
        return torch.cat([prompt, places], 1).to(torch.get_default_dtype())

    def log_reward(self, states: Sequences) -> Tensor:
        """r(x, y)/β, and the reward of cut sequences for those that are, float64 ``[N]``."""
        value = torch.full((len(states),), self.cut_reward, dtype=torch.float64, device=self.device)
        ended = self.is_stopped(states).nonzero().squeeze(1)
        if len(ended):
            completions = [row[row != EMPTY][:-1].tolist() for row in states.tokens[ended].cpu()]
            given = torch.as_tensor(self.task.reward(states.prompt[ended].tolist(), completions), dtype=torch.float64)
            if given.shape != (len(ended),):
                raise RewardError(
                    f"{type(self.task).__name__}.reward gave shape {tuple(given.shape)} for {len(ended)} completions"
                )
            value[ended] = given.to(self.device)
        return value / self.temperature

    def describe(self, states: Sequences) -> list[str]:
        """Prompt and completion as text, with a sign for the end or the cut."""
        ends, stopped = self.is_terminal(states).tolist(), self.is_stopped(states).tolist()
        lines = list[str]()
        for prompt, row, ended, by_stop in zip(states.prompt.tolist(), states.tokens, ends, stopped, strict=True):
            written = row[row != EMPTY].tolist()
            answer = self.task.text(written[:-1] if by_stop else written)
            sign = "■" if by_stop else "✂" if ended else "…"
            text = f"{self.task.text(self.task.prompts[prompt])} → {answer} {sign}"
            lines.append("⏎".join(text.splitlines()))
        return lines

    def _enumerate(self) -> Sequences:
        """Every sequence of every prompt, the shorter ones first; one prompt after the other.

        Raises:
            TooManyStatesError: if there are more than a million.
        """
        levels = [torch.full((1, self.max_steps), EMPTY, device=self.device)]
        found = list(levels)
        for _ in range(self.max_steps):
            states = Sequences(torch.zeros(len(levels[-1]), dtype=torch.long, device=self.device), levels[-1])
            rows, actions = self.edges(states)
            if (sum(map(len, found)) + len(rows)) * len(self.task.prompts) > MAX_LISTED:
                raise TooManyStatesError(
                    f"more than {MAX_LISTED} sequences of {self.n_actions} tokens: lower max_tokens, or evaluate by "
                    "samples (env.listed=false)"
                )
            levels.append(self.step(states[rows], actions).tokens)
            found.append(levels[-1])
        tokens = torch.cat(found)
        prompt = torch.arange(len(self.task.prompts), device=self.device).repeat_interleave(len(tokens))
        return Sequences(prompt, tokens.repeat(len(self.task.prompts), 1))

    def _exceptions(self) -> Sequences:
        """Every right completion of every prompt that fits, with its stop token; all others are worth 0."""
        rows = [
            [*answer, self.stop] + [EMPTY] * (self.max_steps - len(answer) - 1)
            for answers in self._answers
            for answer in answers
        ]
        prompts = torch.arange(len(self._answers)).repeat_interleave(torch.tensor([len(a) for a in self._answers]))
        return Sequences(prompts, torch.tensor(rows)).to(self.device)

    def _log_reward_of_wrong(self) -> float:
        return 0.0

    def _index(self, states: Sequences) -> Tensor:
        """Position in :meth:`_enumerate`, long ``[N]``."""
        codes, order = (x.to(self.device) for x in self._codes)
        place = order[torch.searchsorted(codes, self._code(states.tokens))]
        return states.prompt * len(codes) + place

    def _code(self, tokens: Tensor) -> Tensor:
        """Each row of tokens as one number, long ``[N]``."""
        return ((tokens + 1) * (self.n_actions + 1) ** torch.arange(self.max_steps, device=self.device)).sum(1)

    @cached_property
    def _codes(self) -> tuple[Tensor, Tensor]:
        """The codes of one prompt's sequences in rising order, and where in the list they stand."""
        every = self._enumerate()
        return self._code(every.tokens[: len(every) // len(self.task.prompts)]).sort()

    def summary(self, t: Trajectories[Sequences]) -> dict[str, float]:
        """How many completions are right, differ, and are cut; see :func:`envs.tokens.summary.summary`."""
        return summary(self, t)
