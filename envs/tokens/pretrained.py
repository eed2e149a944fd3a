"""Pretrained causal language models, their tokenizers, and adapters to train them by.

A model is read in float32 from safetensors and refused if it is not what it is taken for: if weights are missing,
which would be drawn at random without a word, or if what it says at a place depends on later tokens, so that its
probabilities of tokens do not multiply to that of a sequence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from envs.tokens.smollm2 import folder, package

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.configuration_utils import PreTrainedConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.*", "*.model", "*.tiktoken", "tekken.json")
INSTEAD = "or give a folder that holds config.json, *.safetensors and a tokenizer instead, e.g. env.model=/path/to/it"


def causal_model(source: str) -> PreTrainedModel:
    """A pretrained causal language model in float32 on the CPU, in evaluation mode.

    Args:
        source: name of a model on the Hugging Face hub, a folder as ``save_pretrained`` writes it, or ``smollm2``
            for the model of :mod:`envs.tokens.smollm2`. No code that comes with a model is run.

    Raises:
        ImportError: if a package is missing.
        FileNotFoundError: if the hub cannot be reached or does not have it, or the folder or a file in it is missing.
        ValueError: if it is no causal language model, or its weights are damaged or do not fit its configuration.
    """
    transformers = package("transformers")
    place = _place(source)
    config = _config(transformers, place)
    if isinstance(place, Path) and not any(place.glob("*.safetensors")):
        raise FileNotFoundError(
            f"{place}: expected weights in *.safetensors, and there are none; write them by the model's save_pretrained"
        )
    model = _read(transformers, place, config)
    _require_causal(model, source)
    return model


def configuration(source: str) -> PreTrainedConfig:
    """The configuration of a pretrained model, without its weights; arguments and errors as of :func:`causal_model`."""
    return _config(package("transformers"), _place(source))


def tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a pretrained model.

    Args:
        source: as for :func:`causal_model`.

    Raises:
        ImportError: if a package is missing.
        FileNotFoundError: if the hub cannot be reached or does not have it, or the folder or its tokenizer is missing.
        ValueError: if the files are there and hold no tokenizer that can be read.
    """
    transformers = package("transformers")
    place = _place(source)
    if isinstance(place, Path) and not any(any(place.glob(name)) for name in TOKENIZER_FILES):
        raise FileNotFoundError(  # for some kinds of model an empty tokenizer would be made up instead
            f"{place}: expected a tokenizer, such as tokenizer.json, and there is none; copy the model's there"
        )
    try:
        return transformers.AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except OSError as error:
        raise _unreadable(place, error) from error
    except Exception as error:  # the reader of tokenizer.json raises bare exceptions
        raise ValueError(
            f"{source}: its tokenizer cannot be read ({_first_line(error)}); copy the model's tokenizer there again"
        ) from error


def require_match(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Refuse a tokenizer with tokens that a model has no embedding of; the model may have more of them.

    Raises:
        ValueError: naming the number of tokens of both.
    """
    embedding: Any = model.get_input_embeddings()
    given, known = _vocabulary_size(tokenizer), len(embedding.weight)
    if given > known:
        raise ValueError(
            f"tokenizer and model do not belong together: the tokenizer has {given} tokens and the model an embedding "
            f"of {known}; give both from the same place"
        )


def with_lora(
    model: PreTrainedModel, rank: int = 16, alpha: float = 32.0, targets: str | Sequence[str] = "all-linear"
) -> PeftModel:
    """A model with low-rank adapters as its only trained parameters; without them it is what it was.

    To each target W ``[out, in]`` is added alpha/rank · BA, with A ``[rank, in]`` at random and B ``[out, rank]`` zero
    at first (Hu et al. 2021, arXiv:2106.09685), no dropout and no biases. Under ``disable_adapter()`` the result is the
    given model exactly, so that one copy of the weights serves as policy and as reference. That is why the embedding
    and the output head, which often share their weights, cannot be adapted.

    Args:
        model: becomes part of the result, its own layers wrapped and frozen.
        rank: of each adapter.
        alpha: scale of the adapters, relative to rank.
        targets: ``"all-linear"``, or names of linear layers, each the last part of a path (``"q_proj"``) or more of it.

    Raises:
        ImportError: if a package is missing.
        ValueError: if a number is out of its range, a target is no linear layer, an embedding or the output head, or
            the model has adapters already.
    """
    peft = package("peft")
    if rank < 1 or not 0 < alpha < float("inf"):
        raise ValueError(f"LoRA: needs rank >= 1 and 0 < alpha < inf, got {rank=} {alpha=}")
    if any("lora_" in name for name, _ in model.named_parameters()):
        raise ValueError("LoRA: the model has adapters already; read it anew with causal_model")
    names = [targets] if isinstance(targets, str) else list(targets)
    conv1d = package("transformers.pytorch_utils").Conv1D
    if names != ["all-linear"]:
        _require_linear(model, names, conv1d)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules="all-linear" if names == ["all-linear"] else names,
        fan_in_fan_out=any(isinstance(module, conv1d) for module in model.modules()),  # GPT-2 keeps W transposed
    )
    return peft.get_peft_model(model, settings).eval()


def stop_ids(tokenizer: PreTrainedTokenizerBase, stops: Sequence[str | int] | None) -> tuple[int, ...]:
    """Tokens that end a completion, each once.

    Args:
        stops: ids of tokens, or texts that are one token each, such as ``"\\n"``; None for the tokenizer's own end of
            a sequence.

    Raises:
        ValueError: if there are none, an id is outside the vocabulary, or a text is not one token.
    """
    if stops is None:
        if not isinstance(tokenizer.eos_token_id, int):
            raise ValueError(
                'stops: the tokenizer has no token for the end of a sequence; name one, e.g. stops=["\\n"]'
            )
        return (tokenizer.eos_token_id,)
    given = [stops] if isinstance(stops, str | int) else list(stops)
    if not given:
        raise ValueError("stops: expected at least one token that ends a completion, got none; null is the tokenizer's")
    return tuple(dict.fromkeys(_stop_id(tokenizer, stop) for stop in given))


def context_length(model: PreTrainedModel | PreTrainedConfig) -> int | None:
    """How many tokens a model, or one of this configuration, can read at most; None if it sets no limit."""
    config: Any = getattr(model, "config", model)
    for name in ("max_position_embeddings", "n_positions"):
        length = getattr(config.get_text_config(), name, None)
        if isinstance(length, int) and length > 0:
            return length
    return None


def _place(source: str) -> Path | str:
    """The folder that a source names, or a name on the hub."""
    if source == "smollm2":
        return folder()
    path = Path(source).expanduser()
    if source and path.is_dir():
        return path
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source, re.ASCII):
        raise FileNotFoundError(f"{source}: expected a folder, and there is none; check env.model, {INSTEAD}")
    return source


def _config(transformers: Any, place: Path | str) -> PreTrainedConfig:
    if isinstance(place, Path) and not (place / "config.json").is_file():
        raise FileNotFoundError(f"{place}: expected config.json, and there is none; give what save_pretrained wrote")
    try:
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=False)
    except OSError as error:
        raise _unreadable(place, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place}: transformers {transformers.__version__} cannot use its config.json ({_first_line(error)}); give "
            "a causal language model that needs no code of its own"
        ) from error
    if type(config) not in transformers.AutoModelForCausalLM._model_mapping:
        raise ValueError(
            f"{place}: expected a causal language model, got the configuration {type(config).__name__}; give one such "
            "as Llama, Qwen or GPT-2"
        )
    return config


def _read(transformers: Any, place: Path | str, config: PreTrainedConfig) -> PreTrainedModel:
    """The model of a configuration, with every weight read from files."""
    damaged: type[Exception] = package("safetensors").SafetensorError
    try:
        options = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True}
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            place, config=config, dtype=torch.float32, **options
        )
    except OSError as error:
        raise _unreadable(place, error) from error
    except damaged as error:
        raise ValueError(f"{place}: damaged weights ({_first_line(error)}); delete them and get them again") from error
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"{place}: the weights do not fit config.json ({_first_line(error)}); give files that were saved together"
        ) from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(
            f"{place}: the weights lack {len(missing)} of what config.json asks for, such as {missing[0]}; give files "
            "that were saved together"
        )
    return model.eval()


@torch.no_grad()
def _require_causal(model: PreTrainedModel, source: str) -> None:
    """Refuse a model that looks ahead, as BERT does, which may be loaded as a language model just the same."""
    tokens = torch.zeros(2, 4, dtype=torch.long)
    tokens[1, -1] = 1
    logits = model(input_ids=tokens).logits
    if (logits[0, :-1] - logits[1, :-1]).abs().max() > 1e-5 * logits.abs().max():
        raise ValueError(
            f"{source}: expected a causal language model, and what {type(model).__name__} says at a place depends on "
            "later tokens; give one such as Llama, Qwen or GPT-2"
        )


def _unreadable(place: Path | str, error: OSError) -> OSError | ValueError:
    if isinstance(place, Path):
        return ValueError(f"{place}: cannot be read as a model ({_first_line(error)}); copy it there again")
    return FileNotFoundError(
        f"{place}: cannot be had from the Hugging Face hub ({_first_line(error)}); check its name, that it has "
        f"safetensors, and the connection, {INSTEAD}"
    )


def _first_line(error: Exception) -> str:
    """What an error says first, so that it fits into a sentence."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".:") if lines else type(error).__name__


def _vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id of a token, for ids may have gaps."""
    return max(tokenizer.get_vocab().values(), default=-1) + 1


def _require_linear(model: PreTrainedModel, names: Sequence[str], conv1d: type[nn.Module]) -> None:
    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    linear = {
        path: module
        for path, module in modules.items()
        if isinstance(module, (nn.Linear, conv1d)) and module is not head
    }
    known = ", ".join(sorted({path.rpartition(".")[2] for path in linear})[:12])
    if not names:
        raise ValueError(f"LoRA: expected at least one target, got none; there are {known}")
    for name in names:
        found = [path for path in modules if path == name or path.endswith(f".{name}")]
        if any(isinstance(modules[path], nn.Embedding) or modules[path] is head for path in found):
            raise ValueError(
                f"LoRA: {name} is an embedding or the output head, and without adapters the model has to be the "
                f"reference; choose among the linear layers, such as {known}"
            )
        if not found or not all(path in linear for path in found):
            raise ValueError(f"LoRA: {name!r} is no linear layer of this model; there are {known}")


def _stop_id(tokenizer: PreTrainedTokenizerBase, stop: str | int) -> int:
    size = _vocabulary_size(tokenizer)
    if isinstance(stop, int):
        if not 0 <= stop < size:
            raise ValueError(f"stops: {stop} is outside the vocabulary of {size} tokens; give one from 0 to {size - 1}")
        return stop
    ids: Any = tokenizer.encode(stop, add_special_tokens=False)
    if len(ids) != 1:
        raise ValueError(
            f"stops: {stop!r} is {len(ids)} tokens, and only token ids can stop a completion, since a stop of several "
            "tokens has no probability of its own; give one token or its id"
        )
    if ids[0] == tokenizer.unk_token_id and stop != tokenizer.unk_token:
        raise ValueError(f"stops: {stop!r} is unknown to the tokenizer; give one of its tokens or an id")
    return ids[0]
