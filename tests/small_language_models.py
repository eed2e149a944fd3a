"""A folder with a language model of a few thousand weights and its tokenizer, of single characters."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = ["</s>", "\n", " ", *string.digits, *string.ascii_lowercase, "+", "=", "?"]


def write_model(folder: Path, seed: int = 0) -> Path:
    """Save a Llama with random weights and its tokenizer into a folder."""
    engine = Tokenizer(models.WordLevel({name: i for i, name in enumerate(CHARACTERS)}, unk_token="?"))
    engine.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="</s>", unk_token="?")
    tokenizer.chat_template = "{% for m in messages %}q{{ m['content'] }}a{% endfor %}"
    config = LlamaConfig(
        vocab_size=len(CHARACTERS), hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=256, bos_token_id=None, eos_token_id=0, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, 0.0, 0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def vowels(completion: str, answer: str) -> float:
    """A verifier that likes vowels."""
    return float(sum(completion.count(letter) for letter in "aeiou"))


def answers(completion: str, answer: str) -> float:
    """A verifier that likes characters of the answer."""
    return float(sum(completion.count(character) for character in set(answer)))


def write_questions(path: Path, first: int = 0) -> Path:
    """Four problems as lines of JSON, with the columns of several data sets."""
    rows = [
        {
            "question": f"{i} + {i} =",
            "answer": f"{i} #### {2 * i}",
            "problem": f"{i} =",
            "solution": rf"z \boxed{{{i}}}",
        }
        for i in range(first, first + 4)
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path
