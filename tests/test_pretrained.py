"""Pretrained language models: what is read is what was written or is refused, and adapters leave the rest as it is."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    GPT2Config,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTModel,
    XLNetConfig,
)

from envs.tokens.pretrained import causal_model, context_length, require_match, stop_ids, tokenizer, with_lora

SMALL: dict[str, Any] = {"vocab_size": 32, "max_position_embeddings": 64}
WORDS = ["[UNK]", "</s>", "a", "b", "\n"]


def llama(**settings: Any) -> PreTrainedModel:
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    return made(LlamaConfig(**{**SMALL, **sizes, "num_key_value_heads": 1, "pad_token_id": 0, **settings}))


def gpt2(**settings: Any) -> PreTrainedModel:
    sizes = {"vocab_size": 32, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return made(GPT2Config(**{**sizes, "bos_token_id": 1, "eos_token_id": 1, **settings}))


def made(config: Any) -> PreTrainedModel:
    """A model with weights far from zero, so that what it says depends on all of them."""
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


def words(size: int = len(WORDS), **settings: Any) -> PreTrainedTokenizerFast:
    names = [*WORDS, *(f"word{i}" for i in range(len(WORDS), size))]
    engine = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    return PreTrainedTokenizerFast(tokenizer_object=engine, **{"unk_token": "[UNK]", "eos_token": "</s>", **settings})


TEXT = torch.tensor([[2, 3, 5, 7, 11], [1, 31, 8, 8, 0]])


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TEXT).logits


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    llama().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("make", [llama, gpt2, lambda: llama(tie_word_embeddings=True)])
def test_models_are_read_as_they_were_written(make: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path)
    read = causal_model(str(tmp_path))
    assert not read.training
    assert read.device.type == "cpu"
    assert read.config._attn_implementation == "sdpa"
    assert torch.equal(logits(read), logits(model))


def test_weights_of_less_precision_are_computed_with_in_float32(tmp_path: Path) -> None:
    model = llama().to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    read = causal_model(str(tmp_path))
    assert {p.dtype for p in read.parameters()} == {torch.float32}
    rounded = model.state_dict()
    assert all(torch.equal(value, rounded[name].float()) for name, value in read.state_dict().items())


def test_several_files_of_weights_are_one_model(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert torch.equal(logits(causal_model(str(tmp_path))), logits(model))
    files[1].unlink()
    with pytest.raises(ValueError, match=rf"{tmp_path}: cannot be read .*{files[1].name}.* copy it there again"):
        causal_model(str(tmp_path))


def test_a_folder_must_hold_a_model(saved: Path) -> None:
    weights = saved / "model.safetensors"
    torch.save({}, saved / "pytorch_model.bin")  # never read: unpickling it could run anything
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"expected weights in \*.safetensors, .* save_pretrained"):
        causal_model(str(saved))
    (saved / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected config.json, and there is none; give what save_pretrained"):
        causal_model(str(saved))


@pytest.mark.parametrize("length", [0, 4, 100, -1])
def test_damaged_weights_are_refused(length: int, saved: Path) -> None:
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(ValueError, match=r"damaged weights \(.+\); delete them and get them again"):
        causal_model(str(saved))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": 3}, r"the weights lack 9 of .* model.layers.2.input_layernorm.weight; give files"),
        ({"vocab_size": 40}, r"the weights do not fit config.json \(.*\); give files that were saved together"),
        ({"model_type": "new"}, r"transformers 5\.\d+\.\d+ cannot use its config.json .*; give a causal language"),
    ],
)
def test_weights_and_configuration_must_fit(change: dict[str, Any], message: str, saved: Path) -> None:
    config = saved / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(ValueError, match=message):
        causal_model(str(saved))


def test_a_configuration_that_is_no_json_is_refused(saved: Path) -> None:
    (saved / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot be read as a model .* copy it there again"):
        causal_model(str(saved))


def test_code_of_a_model_is_not_run(saved: Path) -> None:
    code = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"
    (saved / "code.py").write_text(code)
    names = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model", "AutoTokenizer": ["code.T", None]}
    (saved / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": names}))
    (saved / "tokenizer_config.json").write_text(json.dumps({"auto_map": names}))
    (saved / "tokenizer.json").touch()
    for read in (causal_model, tokenizer):
        with pytest.raises(ValueError, match=r"again|no code of its own"):
            read(str(saved))
    assert not (saved / "ran").exists()


def test_models_that_look_ahead_are_refused(tmp_path: Path) -> None:
    """BERT is loaded as a language model, and as one only if told to be a decoder; XLNet is none at all."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    for decoder in (True, False):
        made(BertConfig(**SMALL, **sizes, is_decoder=decoder)).save_pretrained(tmp_path / str(decoder))
    assert type(causal_model(str(tmp_path / "True"))).__name__ == "BertLMHeadModel"
    AutoModelForCausalLM.from_config(
        XLNetConfig(vocab_size=32, d_model=16, n_layer=1, n_head=2, d_inner=16)
    ).save_pretrained(tmp_path / "xlnet")
    for name in ("False", "xlnet"):
        with pytest.raises(ValueError, match=r"expected a causal language model, and what .* depends on later tokens"):
            causal_model(str(tmp_path / name))


def test_models_without_text_are_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    ViTModel(ViTConfig(image_size=32, **sizes)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected a causal language model, got the configuration ViTConfig; give one"):
        causal_model(str(tmp_path))


@pytest.mark.parametrize("read", [causal_model, tokenizer])
def test_what_is_neither_here_nor_on_the_hub(
    read: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    instead = r"give a folder that holds config.json, \*.safetensors and a tokenizer instead, e.g. env.model=/path"
    with pytest.raises(
        FileNotFoundError, match=rf"^nobody/nothing: cannot be had from the Hugging Face hub.*{instead}"
    ):
        read("nobody/nothing")
    for path in (str(tmp_path / "none"), "./none", "~/none/of/these", "none/of/these", ""):
        with pytest.raises(FileNotFoundError, match=rf"^{path}: expected a folder, and there is none; .*{instead}"):
            read(path)


@pytest.mark.parametrize("missing", ["transformers", "safetensors", "peft"])
def test_a_missing_package_is_named_with_its_extra(missing: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "transformers": lambda: tokenizer(str(saved)),
        "safetensors": lambda: causal_model(str(saved)),
        "peft": lambda: with_lora(llama()),
    }
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf"need more packages \(.*{missing}.*\): pip install 'fgfn\[lm\]'"):
        calls[missing]()


def test_tokenizers_are_read_as_they_were_written(tmp_path: Path) -> None:
    words().save_pretrained(tmp_path)
    read = tokenizer(str(tmp_path))
    assert read.get_vocab() == {name: i for i, name in enumerate(WORDS)}
    assert read.encode("b a \n") == [3, 2, 4]
    assert read.decode([2, 3]) == "a b"
    assert read.eos_token_id == 1


def test_a_folder_must_hold_a_tokenizer(saved: Path) -> None:
    for model in (gpt2(), llama()):  # for GPT-2 transformers makes an empty one up
        model.save_pretrained(saved)
        with pytest.raises(FileNotFoundError, match=r"expected a tokenizer, such as tokenizer.json, and there is none"):
            tokenizer(str(saved))
    (saved / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"its tokenizer cannot be read .* copy the model's tokenizer there again"):
        tokenizer(str(saved))


def test_tokens_without_an_embedding_are_refused() -> None:
    require_match(words(32), llama())
    require_match(words(7), llama())
    with pytest.raises(
        ValueError, match="the tokenizer has 33 tokens and the model an embedding of 32; give both from"
    ):
        require_match(words(33), llama())
    gap = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 32}, unk_token="a")))
    with pytest.raises(ValueError, match=r"33 tokens .* embedding of 32"):
        require_match(gap, llama())


def linear_layers(model: torch.nn.Module, name: str) -> list[Any]:
    return [module for path, module in model.named_modules() if path.endswith(f".{name}")]


@pytest.mark.parametrize(
    ("make", "targets", "shapes"),
    [
        (llama, "all-linear", [(16, 16), (16, 8), (16, 8), (16, 16), (16, 24), (16, 24), (24, 16)]),
        (lambda: llama(tie_word_embeddings=True), ["q_proj", "mlp.down_proj"], [(16, 16), (24, 16)]),
        (gpt2, "all-linear", [(16, 48), (16, 16), (16, 64), (64, 16)]),
        (gpt2, "c_attn", [(16, 48)]),
    ],
)
def test_only_adapters_are_trained(make: Callable[[], PreTrainedModel], targets: Any, shapes: list[Any]) -> None:
    """At the start, and without adapters after a step too, the model says exactly what it said."""
    model = make()
    before, weights = logits(model), deepcopy(model.state_dict())
    adapted = with_lora(model, rank=3, alpha=6.0, targets=targets)
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    assert sum(p.numel() for p in trained.values()) == 2 * sum(3 * (i + o) for i, o in shapes)
    assert not adapted.training
    assert torch.equal(logits(adapted), before)
    adapted(input_ids=TEXT).logits.square().mean().backward()
    torch.optim.AdamW(adapted.parameters(), lr=0.1).step()
    assert not torch.allclose(logits(adapted), before, atol=1e-3)
    with adapted.disable_adapter():
        assert torch.equal(logits(adapted), before)
    unchanged = {name.replace(".base_layer", ""): value for name, value in model.state_dict().items()}
    assert all(torch.equal(unchanged[name], value) for name, value in weights.items())


@pytest.mark.parametrize(("make", "name"), [(llama, "q_proj"), (gpt2, "c_attn")])
def test_adapters_add_a_product_of_low_rank(make: Callable[[], PreTrainedModel], name: str) -> None:
    model = make()
    by_hand = deepcopy(model)
    adapted = with_lora(model, rank=2, alpha=3.0, targets=[name])
    for layer, plain in zip(linear_layers(adapted, name), linear_layers(by_hand, name), strict=True):
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        with torch.no_grad():
            b.normal_(0.0, 0.3)
            plain.weight += 1.5 * (b @ a if name == "q_proj" else (b @ a).T)
    torch.testing.assert_close(logits(adapted), logits(by_hand), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank >= 1 and 0 < alpha < inf, got rank=0 alpha=32.0"),
        ({"alpha": 0.0}, "got rank=16 alpha=0.0"),
        ({"alpha": math.nan}, "got rank=16 alpha=nan"),
        ({"targets": "lm_head"}, "lm_head is an embedding or the output head, .* such as down_proj, gate_proj, k_proj"),
        ({"targets": ["q_proj", "embed_tokens"]}, "embed_tokens is an embedding or the output head"),
        ({"targets": ["q_proj", "query"]}, "'query' is no linear layer of this model; there are down_proj, gate_proj"),
        ({"targets": ["mlp"]}, "'mlp' is no linear layer"),
        ({"targets": ["all-linear", "q_proj"]}, "'all-linear' is no linear layer"),
        ({"targets": []}, "LoRA: expected at least one target, got none; there are down_proj"),
    ],
)
def test_adapters_of_anything_else_are_refused(settings: dict[str, Any], message: str) -> None:
    model = llama()
    with pytest.raises(ValueError, match=message):
        with_lora(model, **settings)
    assert all("lora" not in name for name, _ in model.named_parameters())


def test_positions_are_no_targets_and_adapters_come_once() -> None:
    with pytest.raises(ValueError, match="wpe is an embedding or the output head"):
        with_lora(gpt2(), targets=["wpe"])
    model = llama()
    with_lora(model, rank=1)
    with pytest.raises(ValueError, match="has adapters already; read it anew"):
        with_lora(model, rank=1)


def test_stop_tokens() -> None:
    given = words()
    assert stop_ids(given, None) == (1,)
    assert stop_ids(given, ["\n"]) == (4,)
    assert stop_ids(given, "\n") == (4,)
    assert stop_ids(given, [3, "</s>", 0, "b", "[UNK]"]) == (3, 1, 0)


@pytest.mark.parametrize(
    ("stops", "message"),
    [
        ([], "expected at least one token"),
        ([5], "5 is outside the vocabulary of 5 tokens; give one from 0 to 4"),
        ([-1], "-1 is outside the vocabulary"),
        (["a b"], r"'a b' is 2 tokens, and only token ids can stop .* no probability of its own"),
        ([""], "'' is 0 tokens"),
        (["c"], "'c' is unknown to the tokenizer"),
    ],
)
def test_stops_that_are_no_token_are_refused(stops: list[str | int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^stops: {message}"):
        stop_ids(words(), stops)


def test_a_tokenizer_without_an_end_needs_stops() -> None:
    with pytest.raises(ValueError, match=r"no token for the end of a sequence; name one, e.g. stops=\[\"\\n\"\]"):
        stop_ids(words(eos_token=None), None)


def test_context_lengths() -> None:
    assert context_length(llama()) == 64
    assert context_length(gpt2(n_positions=48)) == 48
    assert context_length(LlamaConfig(max_position_embeddings=96)) == 96
    assert context_length(XLNetConfig()) is None
