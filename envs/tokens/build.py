"""Sequences of tokens and their policies from settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from envs.tokens import pretrained
from envs.tokens.environment import Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.problems import Problem, Problems
from envs.tokens.verified import Verified
from envs.tokens.verifiers import Verifier


def problems(
    model: str,
    source: Sequence[Problem],
    verifier: Verifier,
    stops: Sequence[str | int] | None = None,
    max_tokens: int = 64,
    min_tokens: int = 0,
    temperature: float = 1.0,
    cut_reward: float = 0.0,
    template: str = "{prompt}",
    chat: bool = False,
    workers: int = 0,
    time_limit: float = 10.0,
    retries: int = 1,
    on_failure: float | Literal["mask"] | None = None,
) -> Tokens:
    """Completions of problems in words by a pretrained language model.

    Args:
        model: see :func:`envs.tokens.pretrained.causal_model`; here for its tokenizer and the size of its vocabulary.
        source: the problems, such as from :mod:`envs.tokens.sources`.
        verifier: r of a completion, given the answer; see :mod:`envs.tokens.verifiers`.
        stops: see :func:`envs.tokens.pretrained.stop_ids`.
        max_tokens, min_tokens, temperature, cut_reward: see :class:`envs.tokens.environment.Tokens`.
        template, chat: see :class:`envs.tokens.problems.Problems`.
        workers, time_limit, retries, on_failure: see :class:`envs.tokens.verified.Verified`.

    Raises:
        ValueError, FileNotFoundError, ImportError: if the parts cannot be had or do not fit one another.
    """
    tokenizer: Any = pretrained.tokenizer(model)
    config = pretrained.configuration(model)
    context = pretrained.context_length(config)
    task = Problems(
        problems=source,
        tokenizer=tokenizer,
        verified=Verified(verifier, workers, time_limit, retries, on_failure),
        stop_ids=pretrained.stop_ids(tokenizer, stops),
        n_tokens=config.get_text_config().vocab_size,
        template=template,
        chat=chat,
        max_prompt_tokens=None if context is None else context - max_tokens,
    )
    return Tokens(task, max_tokens, min_tokens, temperature, cut_reward)


def language_model(
    env: Tokens,
    model: str,
    temperature: float = 1.0,
    lora_rank: int = 16,
    lora_alpha: float = 32.0,
    lora_targets: str | Sequence[str] = "all-linear",
) -> LanguageModel:
    """A pretrained language model as the policy, with low-rank adapters or all of its weights to train.

    Args:
        env: whose prompts are completed.
        model: see :func:`envs.tokens.pretrained.causal_model`.
        temperature: see :class:`envs.tokens.language_model.LanguageModel`.
        lora_rank: of the adapters; 0 trains all weights.
        lora_alpha, lora_targets: see :func:`envs.tokens.pretrained.with_lora`.

    Raises:
        ValueError, FileNotFoundError, ImportError: if there is no such model, or it does not fit the environment.
    """
    loaded = pretrained.causal_model(model)
    if isinstance(env.task, Problems):
        pretrained.require_match(pretrained.tokenizer(model), loaded)
    adapted = pretrained.with_lora(loaded, lora_rank, lora_alpha, lora_targets) if lora_rank else loaded
    return LanguageModel(env, adapted, temperature)
