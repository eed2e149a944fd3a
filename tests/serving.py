"""A small language model with adapters, and a sampler of its completions from a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from envs.tokens.environment import Sequences, Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.pretrained import with_lora
from envs.tokens.served import Served
from gfn.distributed import Asynchronous
from gfn.trajectories import Trajectories
from tests.fake_vllm import FakeVLLM
from tests.tiny_models import llama

COMPLETIONS, LOAD = "/v1/completions", "/v1/load_lora_adapter"


def adapted(env: Tokens, temperature: float = 1.0) -> LanguageModel:
    """The model of the server with adapters that matter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return moved(LanguageModel(env, with_lora(llama(), 2), temperature), 1)


@torch.no_grad()
def moved(policy: LanguageModel, seed: int) -> LanguageModel:
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return policy


def sampler(server: FakeVLLM, folder: Path, policy: Any, env: Any, staleness: int = 1, **settings: Any) -> Any:
    """Batches of two groups of three."""
    own = {
        name: settings.pop(name) for name in ("model", "requests", "time_limit", "timeout", "stop") if name in settings
    }
    engine = Served(**{"model": "base", "directory": folder, "url": server.url, "requests": 2, **own})
    return Asynchronous(env, policy, engine, 6, 3, staleness, seed=7, **settings)


def scored(policy: LanguageModel, batch: Trajectories[Sequences]) -> None:
    """What the server said of its completions is what the policy says."""
    with torch.no_grad():
        torch.testing.assert_close(batch.behaviour_log_prob, policy.log_prob(batch), atol=1e-5, rtol=0)
