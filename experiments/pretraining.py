"""Small language models that are trained here, once, and kept in the user's cache.

The base of the ``expr`` task is a Llama of 0.36 M parameters that has seen prompts such as ``33=`` with
answers drawn evenly from all right ones, for so short a time that it is right about one time in three:
a base that is never right gives a reward nothing to find, one that always is nothing to improve.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from envs.tokens.environment import Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.smollm2 import package
from envs.tokens.tasks import Expressions
from gfn.storage import cache_directory

EXPRESSIONS: dict[str, Any] = {
    "width": 96, "inner": 256, "layers": 3, "heads": 4,
    "batch": 128, "lr": 2e-3, "warmup": 100, "seed": 0,
}  # fmt: skip
LONGEST = 9  # tokens of a prompt, an answer and the stop token


def expressions(
    env: Tokens, temperature: float = 1.0, pretraining_steps: int = 480, cache: Path | None = None
) -> LanguageModel:
    """The base language model of the task :class:`envs.tokens.tasks.Expressions`, trained if it is not in the cache.

    Args:
        env: of that task.
        temperature: see :class:`envs.tokens.language_model.LanguageModel`.
        pretraining_steps: updates of its own training; the more, the more often it is right from the start.
        cache: folder to keep it in; default, the user's.

    Raises:
        ValueError: if the environment has another task.
        ImportError: without the extra ``lm``.
    """
    if not isinstance(env.task, Expressions):
        raise ValueError(
            f"policy=expressions is the language model of the task Expressions, and this is {type(env.task).__name__}: "
            "choose policy=language_model policy.model=…, or policy=mlp for a handful of tokens"
        )
    safetensors = package("safetensors.torch")

    model = _untrained()
    recipe = json.dumps({**EXPRESSIONS, "steps": pretraining_steps}, sort_keys=True)
    name = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    path = (cache or cache_directory() / "models") / f"expressions_{name}.safetensors"
    if path.is_file():
        model.load_state_dict(safetensors.load_file(path))
    else:
        print(f"training the language model of expressions, once, for half a minute; it is kept as {path}", flush=True)
        pretrain(model, pretraining_steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{uuid4().hex}.part")
        safetensors.save_file(model.state_dict(), part)
        os.replace(part, path)  # readers see all of it or nothing, however many write at once
    return LanguageModel(env, model, temperature)


def _untrained() -> Any:
    transformers = package("transformers")

    task = Expressions()
    config = transformers.LlamaConfig(
        vocab_size=task.n_tokens, hidden_size=EXPRESSIONS["width"], intermediate_size=EXPRESSIONS["inner"],
        num_hidden_layers=EXPRESSIONS["layers"], num_attention_heads=EXPRESSIONS["heads"],
        max_position_embeddings=64, bos_token_id=None, eos_token_id=task.stop_ids[0], pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(EXPRESSIONS["seed"])
        return transformers.LlamaForCausalLM(config)


def pretrain(model: Any, steps: int) -> None:
    """Maximum likelihood of right answers given their prompts, in place."""
    table, prompt_length, count = _answers()
    generator = torch.Generator().manual_seed(EXPRESSIONS["seed"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=EXPRESSIONS["lr"], weight_decay=0.01)
    warmup = EXPRESSIONS["warmup"]
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
    start = count.cumsum(0) - count
    for _ in range(steps):
        value = torch.randint(len(count), (EXPRESSIONS["batch"],), generator=generator)
        which = (torch.rand(len(value), generator=generator, dtype=torch.float64) * count[value]).long()
        rows = start[value] + which
        tokens = table[rows]
        logits = model(input_ids=tokens[:, :-1].clamp_min(0), use_cache=False).logits
        place = torch.arange(1, tokens.shape[1])
        target = tokens[:, 1:].masked_fill(place < prompt_length[rows].unsqueeze(1), -1)
        loss = cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()


def _answers() -> tuple[Tensor, Tensor, Tensor]:
    """Prompts with answers, −1 after the end, ``[N, LONGEST]``; lengths of prompts ``[N]``; how many each has."""
    task = Expressions(low=0, high=99)
    rows, lengths, count = list[list[int]](), list[int](), list[int]()
    for number, prompt in enumerate(task.prompts):
        answers = task.answers(number)
        rows += [[*prompt, *answer, *task.stop_ids] for answer in answers]
        lengths += [len(prompt)] * len(answers)
        count.append(len(answers))
    padded = [row + [-1] * (LONGEST - len(row)) for row in rows]
    return torch.tensor(padded), torch.tensor(lengths), torch.tensor(count)
