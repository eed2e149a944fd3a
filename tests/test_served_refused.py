"""Servers that will not do, answers that cannot be used and trouble without end: each ends the run with its reason."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.tokens import connections
from envs.tokens.environment import Tokens
from envs.tokens.language_model import LanguageModel
from envs.tokens.served import Served
from envs.tokens.server import Sampling, Server
from gfn.distributed import Asynchronous, Interrupted, SearchError
from gfn.environment import RewardError
from gfn.exploration import EpsilonUniform, Tempered
from tests.fake_vllm import FakeVLLM
from tests.serving import COMPLETIONS, LOAD, adapted, sampler
from tests.stored import grid, network
from tests.tiny_models import completing, llama


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    fake = FakeVLLM(llama())
    yield fake
    fake.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "adapters"


def choice(answer: Any) -> Any:
    return answer["choices"][0]


def tampered(**changes: Any) -> Callable[[Any], Any]:
    """An answer whose first completion differs."""

    def change(answer: Any) -> Any:
        choice(answer).update(changes)
        return answer

    return change


def tokens(*ids: int, reason: str, log_prob: float = -1.0) -> Callable[[Any], Any]:
    told = {"token_logprobs": [log_prob] * len(ids), "top_logprobs": [{}] * len(ids)}
    return tampered(token_ids=list(ids), logprobs=told, finish_reason=reason)


ANSWERS: dict[str, tuple[Any, str]] = {
    "text": (lambda _: "<html>a gateway", r"expected completions .*is it vLLM 0.10.2 or newer\? .*a gateway"),
    "no choices": (lambda _: {"choices": None}, "expected completions"),
    "too few": (lambda answer: {"choices": answer["choices"][:1]}, "expected 3 completions, got 1"),
    "no ids": (tampered(token_ids=None), "each with a log-probability, got none"),
    "no log-probabilities": (tampered(logprobs=None), "expected completions"),
    "too long": (tokens(3, 3, 3, 3, 3, 3, reason="length"), "expected from 1 to 5 token ids, .* got 6 and 6"),
    "unknown token": (tokens(3, 99, 2, reason="stop"), r"tokens from 0 to 11, got \[3, 99, 2\]: .* another model"),
    "NaN": (tokens(3, 2, reason="stop", log_prob=float("nan")), r"finite log-probabilities, got \[nan, nan\]"),
    "logits": (tokens(3, 2, reason="stop", log_prob=2.5), "see the server's --logprobs-mode"),
    "ended early": (tokens(3, 4, reason="length"), r"or 5 tokens without, got \[3, 4\] with finish_reason='length'"),
    "ended by another": (tokens(3, 4, reason="stop"), "finish_reason='stop'"),
    "went on": (tokens(3, 2, 4, 4, 4, reason="length"), r"one of the stop tokens \[2\] at its end"),
    "refused": (400, f"POST http.*{COMPLETIONS}: status 400, out of order"),
    "unauthorised": (401, "status 401, out of order"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_cannot_be_used_is_told(name: str, server: FakeVLLM) -> None:
    answer, message = ANSWERS[name]
    server.trouble(COMPLETIONS, answer)
    with pytest.raises(SearchError, match=message):
        Server(server.url).complete("base", [3], 3, Sampling(12, 5, 0, (2,)), 1.0, 0, 20.0)
    assert server.count(COMPLETIONS) == 1, "it is not repeated"


def test_such_an_answer_ends_the_run(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    server.trouble(COMPLETIONS, *[ANSWERS["too few"][0]] * 2)
    drawn = sampler(server, folder, adapted(env), env, 0)
    with pytest.raises(SearchError, match="expected 3 completions, got 1"):
        drawn(0)
    assert server.count(COMPLETIONS) <= 2
    drawn.close()


def refuses(fake: FakeVLLM) -> None:
    fake.allows = False


def raw(fake: FakeVLLM) -> None:
    fake.processed = False


SERVERS: dict[str, tuple[Callable[[FakeVLLM], None], dict[str, Any], str]] = {
    "another model": (lambda _: None, {"model": "other"}, "serves base, and not other; .* sampler.engine.model"),
    "short context": (lambda fake: setattr(fake, "context", 9), {}, "up to 11 tokens, and the server takes 9"),
    "no adapters": (refuses, {}, "status 404, Not Found; start the server with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
    "forbidden": (lambda fake: fake.trouble(LOAD, 403), {}, "status 403, out of order; start the server with VLLM_ALL"),
    "cannot": (
        lambda fake: fake.trouble(LOAD, 500, 500),
        {},
        "status 500, out of order, 2 times; start the server with",
    ),
    "sees no folder": (
        lambda fake: fake.trouble(LOAD, 404),
        {},
        r"where it can read .*adapters/policy-v0-",
    ),
    "raw": (raw, {"exploration": Tempered(2.0)}, "start it with --logprobs-mode processed_logprobs"),
    "mute": (lambda fake: fake.trouble("/v1/models", "hang"), {"time_limit": 0.2}, "no answer within 0.2 s; start a s"),
    "no list": (lambda fake: fake.trouble("/v1/models", lambda _: []), {}, "expected a list of models"),
    "explores otherwise": (lambda _: None, {"exploration": EpsilonUniform(0.1)}, "cannot explore by EpsilonUniform"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_that_will_not_do_is_told_at_once(
    name: str, server: FakeVLLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TRIES", 2)
    env = completing()
    change, settings, message = SERVERS[name]
    change(server)
    drawn = sampler(server, folder, adapted(env), env, 0, **settings)
    with pytest.raises(SearchError, match=message):
        drawn(0)
    drawn.close()
    assert server.count(COMPLETIONS) <= 2


def test_a_server_that_is_not_there_is_told_at_once(server: FakeVLLM, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    env = completing()
    drawn = Asynchronous(env, adapted(env), Served("base", folder, address), 6, 3)
    with pytest.raises(SearchError, match=f"{address}/v1/models: ConnectionRefused.*; start a server with `VLLM_ALLOW"):
        drawn(0)


@pytest.mark.parametrize("status", [404, 500])
def test_errors_without_end_end_the_run(
    status: int, server: FakeVLLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "TRIES", 2)
    env = completing()
    drawn = sampler(server, folder, adapted(env), env, 0)
    server.trouble(COMPLETIONS, *[status] * 100)
    told = "status 404, out of order" if status == 404 else "given to searchers 5 times .* status 500, out of order, 2"
    with pytest.raises(SearchError, match=told):
        drawn(0)
    drawn.close()


def test_a_trainer_that_waits_in_vain_is_told_what_for(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    drawn = sampler(server, folder, adapted(env), env, 0, timeout=1.0, requests=1)
    server.trouble(COMPLETIONS, "hang")
    message = r"no group has come for timeout=1 s, and the trainer waits for 2: 1 groups given out.* 0 with request-0"
    with pytest.raises(SearchError, match=message):
        drawn(0)
    drawn.close()


def test_a_trainer_that_waits_may_be_stopped(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    drawn = sampler(server, folder, adapted(env), env, 0, stop=lambda: server.count(COMPLETIONS) > 0)
    server.trouble(COMPLETIONS, "hang", "hang")
    with pytest.raises(Interrupted, match=r"asked to stop while the trainer waits for 2 groups: \d groups given out"):
        drawn(0)
    drawn.close()


def test_a_reward_that_fails_ends_the_run(server: FakeVLLM, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = completing()
    drawn = sampler(server, folder, adapted(env), env, 0)
    monkeypatch.setattr(Tokens, "log_reward", lambda env, states: torch.full((len(states),), torch.nan))
    with pytest.raises(RewardError):
        drawn(0)
    drawn.close()


def test_only_adapters_of_language_models_are_served(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    with pytest.raises(
        SearchError, match=r"trains all of its weights; set policy.lora_rank above 0, or use sampler/en"
    ):
        sampler(server, folder, LanguageModel(env, llama()), env)(0)
    with pytest.raises(SearchError, match="got Hypergrid and MLPPolicy; use env=problems"):
        sampler(server, folder, network(grid()), grid())(0)
    assert server.asked == []


def test_a_folder_that_cannot_be_written_is_told(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    folder.write_text("a file")
    with pytest.raises(SearchError, match=r"adapters cannot be saved: .* by sampler\.engine\.directory"):
        sampler(server, folder, adapted(env), env)(0)


@pytest.mark.parametrize(
    "settings", [{"requests": 0}, {"time_limit": 0.0}, {"timeout": -1.0}, {"url": "localhost:8000"}]
)
def test_settings_out_of_range(settings: dict[str, Any], folder: Path) -> None:
    with pytest.raises(ValueError, match=r"needs requests >= 1|expected an address as in http://"):
        Served(**{"model": "base", "directory": folder, **settings})
