"""A small client of a vLLM server, and the only place that knows its protocol.

Written for the HTTP interface of vLLM 0.33: the fields are those of its source, and vLLM itself is never imported.
Completions go in and out as token ids (``return_token_ids``, of which older servers than 0.10.2 know nothing). All that
a model's ``generation_config.json`` would change without a word, such as top-p, is set in every request; the model's
own end of text ends a completion only where it is among the stop tokens. Before ``min_tokens`` the server forbids it in
any case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.tokens.connections import Connections, ServerError

NEUTRAL = {  # whatever the model's own settings are
    "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "ignore_eos": True, "return_token_ids": True, "return_tokens_as_token_ids": True,
}  # fmt: skip


@dataclass(frozen=True)
class Card:
    """What a server has under one name.

    Attributes:
        root: where it was read from.
        adapter: whether it is an adapter of another model.
        context: tokens of prompt and completion, at most; None where that is not told.
    """

    root: str
    adapter: bool
    context: int | None


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn: from the whole vocabulary.

    Attributes:
        n_tokens: size of the vocabulary.
        max_tokens: of a completion, the stop token included.
        min_tokens: before a stop token is allowed.
        stop_ids: tokens that end a completion; the first stands for all.
    """

    n_tokens: int
    max_tokens: int
    min_tokens: int
    stop_ids: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """Tokens, a stop token included unless the length limit was reached, and the log-probability of each."""

    tokens: list[int]
    log_probs: list[float]


class Server:
    """A vLLM server at an address; may be called from several threads.

    Where the environment variable ``VLLM_API_KEY`` is set, it is sent along.

    Args:
        url: as in ``http://localhost:8000``.

    Raises:
        ValueError: if the address is none.
    """

    def __init__(self, url: str) -> None:
        self._connections = Connections(url, key="VLLM_API_KEY")

    @property
    def retried(self) -> int:
        """Requests that were repeated."""
        return self._connections.retried

    def models(self, limit: float) -> dict[str, Card]:
        """What it serves, by name; asked once, for at most ``limit`` seconds.

        Raises:
            ServerError: if it is not there, or no such server.
        """
        path = "/v1/models"
        answer = self._connections.call("GET", path, None, limit, tries=1)
        try:
            cards = answer["data"]
            return {
                card["id"]: Card(card.get("root") or "", bool(card.get("parent")), card.get("max_model_len"))
                for card in cards
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise self._odd(path, f"expected a list of models ({error!r})", answer) from error

    def load(self, name: str, path: Path, limit: float) -> None:
        """Have it read an adapter from a folder, which it needs to see under the same path."""
        try:
            self._connections.call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)}, limit)
        except ServerError as error:
            if error.status == 400 and name in self.models(limit):
                return  # an earlier try came through, and the answer to it was lost
            if error.status is None:
                raise
            raise ServerError(
                f"{error}; start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, --enable-lora "
                f"and a --max-lora-rank of at least policy.lora_rank, where it can read {path}",
                error.status,
            ) from error

    def unload(self, name: str, limit: float) -> None:
        """Have it forget an adapter; tried once."""
        self._connections.call("POST", "/v1/unload_lora_adapter", {"lora_name": name}, limit, tries=1)

    def complete(
        self, model: str, prompt: Sequence[int], n: int, sampling: Sampling, temperature: float, seed: int, limit: float
    ) -> list[Completion]:
        """``n`` completions of a prompt, drawn independently.

        Log-probabilities are the server's. With several stop tokens, that of the first is of them all together.

        Raises:
            ServerError: if it does not give them as they were asked for.
        """
        path = "/v1/completions"
        body = {
            **NEUTRAL, "model": model, "prompt": list(prompt), "n": n, "temperature": temperature, "seed": seed,
            "max_tokens": sampling.max_tokens, "min_tokens": sampling.min_tokens, "logprobs": 0,
            "stop_token_ids": list(sampling.stop_ids),
        }  # fmt: skip
        if len(sampling.stop_ids) > 1:
            body["logprob_token_ids"] = list(sampling.stop_ids)
        answer = self._connections.call("POST", path, body, limit)
        try:
            choices = answer["choices"]
            if len(choices) != n:
                raise _Unfit(f"expected {n} completions, got {len(choices)}")
            return [_completion(choice, sampling) for choice in choices]
        except (_Unfit, KeyError, TypeError, AttributeError, IndexError) as error:
            told = str(error) if isinstance(error, _Unfit) else f"expected completions ({error!r})"
            raise self._odd(path, told, answer) from error

    def tells_what_is_drawn_from(self, model: str, prompt: Sequence[int], limit: float) -> bool:
        """Whether log-probabilities are those of the distribution drawn from, with temperature and forbidden tokens.

        Otherwise they are the network's own, as without ``--logprobs-mode processed_logprobs``. The distance of the
        likeliest two tokens tells: it is halved at temperature 2.
        """
        path, gaps = "/v1/completions", list[float]()
        for temperature in (1.0, 2.0):
            body = {**NEUTRAL, "model": model, "prompt": list(prompt), "max_tokens": 1, "logprobs": 2}
            answer = self._connections.call("POST", path, {**body, "temperature": temperature, "seed": 0}, limit)
            try:
                first, second, *_ = sorted(answer["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
                gaps.append(first - second)
            except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
                raise self._odd(path, f"expected the likeliest tokens ({error!r})", answer) from error
        return abs(gaps[1] - gaps[0] / 2) < abs(gaps[1] - gaps[0])

    def close(self) -> None:
        """Break off all requests; those that come later are tried once."""
        self._connections.close()

    def _odd(self, path: str, problem: str, answer: Any) -> ServerError:
        told = json.dumps(answer)[:300]
        return ServerError(f"{self._connections.url}{path}: {problem}; is it vLLM 0.10.2 or newer? it answered {told}")


class _Unfit(Exception):
    """What is wrong with a completion."""


def _completion(choice: Any, sampling: Sampling) -> Completion:
    """A completion as the server tells it, checked."""
    tokens, told, reason = choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"]
    if tokens is None or len(tokens) != len(told) or not 0 < len(tokens) <= sampling.max_tokens:
        raise _Unfit(
            f"expected from 1 to {sampling.max_tokens} token ids, each with a log-probability, got "
            f"{'none' if tokens is None else len(tokens)} and {len(told)}"
        )
    if any(type(token) is not int or not 0 <= token < sampling.n_tokens for token in tokens):
        raise _Unfit(f"expected tokens from 0 to {sampling.n_tokens - 1}, got {tokens}: it serves another model")
    if not all(isinstance(x, (int, float)) and math.isfinite(x) and x <= 1e-3 for x in told):
        raise _Unfit(f"expected finite log-probabilities, got {told}: see the server's --logprobs-mode")
    stops = [place for place, token in enumerate(tokens) if token in sampling.stop_ids]
    ended = "stop" if stops else "length"
    last = len(tokens) - 1 if stops else sampling.max_tokens - 1
    if reason != ended or stops != [last] * len(stops) or last < sampling.min_tokens or last != len(tokens) - 1:
        raise _Unfit(
            f"expected a completion with one of the stop tokens {list(sampling.stop_ids)} at its end, after "
            f"{sampling.min_tokens} others, or {sampling.max_tokens} tokens without, got {tokens} with "
            f"finish_reason={reason!r} and stop_reason={choice.get('stop_reason')!r}"
        )
    log_probs = [float(x) for x in told]
    first, *others = sampling.stop_ids
    if stops and others:
        among = choice["logprobs"]["top_logprobs"][last]
        each = [among[f"token_id:{stop}"] for stop in sampling.stop_ids]
        log_probs[last] = max(each) + math.log(math.fsum(math.exp(x - max(each)) for x in each))
    return Completion([*tokens[:last], first] if stops else tokens, log_probs)
