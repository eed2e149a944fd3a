"""Causal language models of a few thousand weights, prompts of unequal length, and what each text read alone gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    Olmo2Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from envs.tokens.environment import Sequences, Tokens
from gfn.trajectories import Trajectories

VOCABULARY = 12
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "max_position_embeddings": 64}


def made(config: Any, seed: int = 0, spread: float = 0.5) -> PreTrainedModel:
    """A model with weights far from zero, so that what it says depends on all it has read."""
    model = AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, spread, generator=generator)
    return model


def of(kind: type[Any], spread: float = 0.5, **own: Any) -> Callable[..., PreTrainedModel]:
    """Makes models of one family; settings and ``seed`` may be given."""

    def make(seed: int = 0, **settings: Any) -> PreTrainedModel:
        return made(kind(**{"vocab_size": VOCABULARY, **SIZES, **HEADS, **SPECIAL, **own, **settings}), seed, spread)

    return make


def gpt2(seed: int = 0, **settings: Any) -> PreTrainedModel:
    """Learned positions, and dropout of 0.1 wherever there can be some, as its configuration has by itself."""
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return made(GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 2, **settings}), seed, 0.3)


llama = of(LlamaConfig)
FAMILIES: dict[str, Callable[..., PreTrainedModel]] = {
    "llama": llama,
    "llama, tied": of(LlamaConfig, tie_word_embeddings=True),
    "qwen2": of(Qwen2Config, 0.4),
    "qwen3": of(Qwen3Config, head_dim=8),
    "olmo2": of(Olmo2Config),
    "gpt2": gpt2,
    "gemma2": of(Gemma2Config, 0.2, **GEMMA, sliding_window=3, final_logit_softcapping=2.0, attn_logit_softcapping=1.0),
    "gemma3": of(Gemma3TextConfig, 0.2, **GEMMA, sliding_window=3),
}


@dataclass(frozen=True)
class Chat:
    """Prompts of unequal length; a completion is worth the share of even tokens in it."""

    prompts: Sequence[Sequence[int]] = ((3,), (4, 5, 6, 7, 8, 9), (9, 3, 10), (5, 2))
    stop_ids: tuple[int, ...] = (2,)
    n_tokens: int = VOCABULARY

    def reward(self, prompts: Sequence[int], completions: Sequence[Sequence[int]]) -> Any:
        return np.array([sum(v % 2 == 0 for v in y) / (1 + len(y)) for y in completions], dtype=np.float64)

    def text(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))


def completing(max_tokens: int = 5, min_tokens: int = 0, **settings: Any) -> Tokens:
    """Completions of the prompts of :class:`Chat`."""
    return Tokens(Chat(**settings), max_tokens=max_tokens, min_tokens=min_tokens)


def read_alone(env: Tokens, model: Any, t: Trajectories[Sequences], temperature: float = 1.0) -> Tensor:
    """Log-probability of every step, each text read by itself, without cache or padding, in one pass; ``[N]``."""
    actions = t.actions.split(t.lengths.tolist())
    prompts = [list(env.task.prompts[prompt]) for prompt in t.initial.prompt.tolist()]
    return torch.cat([said(env, model, x, y.tolist(), temperature) for x, y in zip(prompts, actions, strict=True)])


def said(env: Tokens, model: Any, prompt: list[int], written: list[int], temperature: float = 1.0) -> Tensor:
    """Log-probability of each token written after a prompt, by softmax and by hand; ``[T]``."""
    logits = model(input_ids=torch.tensor([prompt + written[:-1]])).logits[0, len(prompt) - 1 :]
    rows = list[Tensor]()
    for place, token in enumerate(written):
        p = (logits[place] / temperature).softmax(0)
        stop = sum(p[i] for i in env.task.stop_ids)
        others = sum(p[i] for i in range(len(p)) if i not in env.task.stop_ids)
        if place < env.min_tokens:
            rows.append(p[token] / others)
        else:
            rows.append(stop if token == env.stop else p[token])
    return torch.stack(rows).log()
