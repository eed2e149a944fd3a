"""Problems in words: a prompt, and an answer that tells which completions are right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from envs.tokens.verified import Verified

PLACE = "{prompt}"
UNKNOWN = "\N{REPLACEMENT CHARACTER}"


@final
@dataclass(frozen=True)
class Problem:
    """What is asked, and the answer as its verifier wants it.

    Attributes:
        id: SHA-1 of both, the same in every run, by which a problem is known in messages and files.
    """

    prompt: str
    answer: str

    @cached_property
    def id(self) -> str:
        text = json.dumps({"answer": self.answer, "prompt": self.prompt}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha1(text.encode()).hexdigest()


class Tokenizer(Protocol):
    """The part of transformers' tokenizers that is needed here."""

    @property
    def bos_token_id(self) -> Any: ...

    @property
    def chat_template(self) -> Any: ...

    def __len__(self) -> int: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> Any: ...

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


@final
@dataclass(frozen=True, eq=False)
class Problems:
    """Problems as a task for :class:`envs.tokens.environment.Tokens`: text in, text out, tokens in between.

    Prompts are tokenised once. Completions are decoded to be verified, and no text is ever tokenised
    again, so two ways to write one text stay two completions.

    Args:
        problems: what is asked.
        tokenizer: of the model.
        verified: values of completions and answers.
        stop_ids: tokens that end a completion; the first stands for all.
        n_tokens: size of the model's vocabulary, which may have more tokens than the tokenizer.
        template: the text around each prompt, with ``{prompt}`` in its place; examples go here.
        chat: give the text to the tokenizer's chat template, as what a user says. Otherwise the tokenizer's
            first token stands in front if its own encoding puts it there.
        max_prompt_tokens: what the model's context leaves for a prompt.

    Attributes:
        prompts: token ids of each.

    Raises:
        ValueError: if there are no problems, a prompt has no tokens or too many, begins twice, or has tokens
            unknown to the model, the template has no place for it, the tokenizer has no chat template, or a
            stop id is outside the vocabulary.
    """

    problems: Sequence[Problem]
    tokenizer: Tokenizer = field(repr=False)
    verified: Verified
    stop_ids: tuple[int, ...]
    n_tokens: int
    template: str = PLACE
    chat: bool = False
    max_prompt_tokens: int | None = None
    prompts: Sequence[Sequence[int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_ids", tuple(self.stop_ids))
        if not self.problems:
            raise ValueError("Problems: there are none; give at least one")
        if PLACE not in self.template:
            raise ValueError(f"Problems: template has no {PLACE} for the prompt to stand in, got {self.template!r}")
        if self.chat and not self.tokenizer.chat_template:
            raise ValueError("Problems: the tokenizer has no chat template; give chat=False, or the tokenizer one")
        if not self.stop_ids or not all(0 <= stop < self.n_tokens for stop in self.stop_ids):
            raise ValueError(
                f"Problems: expected stop ids from 0 to {self.n_tokens - 1}, the model's vocabulary, "
                f"got {list(self.stop_ids)}"
            )
        first = _first_token(self.tokenizer)
        texts = [self.template.replace(PLACE, problem.prompt) for problem in self.problems]
        encode = self._chat if self.chat else self._plain
        object.__setattr__(self, "prompts", tuple(tuple(encode(text, first)) for text in texts))
        for problem, tokens in zip(self.problems, self.prompts, strict=True):
            self._require_prompt(problem, tokens)

    @property
    def masks(self) -> bool:
        """Whether a reward may be NaN: not known."""
        return self.verified.on_failure == "mask"

    def reward(self, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
        answers = [self.problems[prompt].answer for prompt in prompts]
        return self.verified(list(zip(map(self.text, completions), answers, strict=True)))

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text, special ones by their names; those that the tokenizer does not know as �."""
        size = len(self.tokenizer)
        runs = [(known, list(run)) for known, run in groupby(tokens, lambda token: token < size)]
        return "".join(self._decoded(run) if known else UNKNOWN * len(run) for known, run in runs)

    def _decoded(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _plain(self, text: str, first: int | None) -> list[int]:
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens if first is None or tokens[:1] == [first] else [first, *tokens]

    def _chat(self, text: str, _: int | None) -> list[int]:
        said = [{"role": "user", "content": text}]
        return self.tokenizer.apply_chat_template(said, add_generation_prompt=True, tokenize=True, return_dict=False)

    def _require_prompt(self, problem: Problem, tokens: Sequence[int]) -> None:
        """Raise ValueError, naming the problem, unless a model can be given its tokens."""
        where = f"Problems: the prompt of problem {problem.id} ({problem.prompt[:40]!r}…)"
        bos, n = self.tokenizer.bos_token_id, len(tokens)
        if n == 0:
            raise ValueError(f"{where} has no tokens; give a template with some text")
        if bos is not None and list(tokens[:2]) == [bos, bos]:
            raise ValueError(f"{where} begins with the first token {bos} twice; take it out of the template")
        if max(tokens) >= self.n_tokens:
            raise ValueError(
                f"{where} has token {max(tokens)}, and the model only {self.n_tokens}; its tokenizer is another one's"
            )
        if self.max_prompt_tokens is not None and n > self.max_prompt_tokens:
            raise ValueError(
                f"{where} has {n} tokens, over the limit of {self.max_prompt_tokens}; leave it out, shorten the "
                "template, or raise max_prompt_tokens if the model's context allows it"
            )


def _first_token(tokenizer: Tokenizer) -> int | None:
    """The token that the tokenizer's own encoding puts in front of a text; None if it puts none."""
    bos = tokenizer.bos_token_id
    return bos if bos is not None and tokenizer.encode("0", add_special_tokens=True)[:1] == [bos] else None
