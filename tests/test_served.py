"""Completions from a server: they are what the adapters of their version sample, and passing trouble is survived."""

from __future__ import annotations

import copy
import io
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from envs.tokens.environment import Sequences, Tokens
from envs.tokens.language_model import LanguageModel, reference
from envs.tokens.pretrained import causal_model
from gfn.distributed import SearchError
from gfn.distributed.searcher import seed_of
from gfn.exploration import NoExploration, Tempered
from gfn.objectives import Alpha, DevGrad, Objective
from gfn.training import Trainer
from gfn.trajectories import Trajectories
from tests.composing import built
from tests.fake_vllm import FakeVLLM
from tests.serving import COMPLETIONS, LOAD, adapted, moved, sampler, scored
from tests.small_language_models import write_model
from tests.tiny_models import completing, llama


@pytest.fixture
def server() -> Iterator[FakeVLLM]:
    fake = FakeVLLM(llama())
    yield fake
    fake.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "adapters"


def prompts(env: Tokens, numbers: range) -> list[int]:
    """Those that any engine asks in groups with these numbers, three times each."""
    drawn = [env.reset(1, torch.Generator().manual_seed(seed_of(7, number))).prompt for number in numbers]
    return torch.cat(drawn).repeat_interleave(3).tolist()


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], float, Any]] = {
    "as it is": ({}, {}, 1.0, NoExploration()),
    "several stop tokens": ({}, {"stop_ids": (5, 2, 7)}, 1.0, NoExploration()),
    "all at once": ({"min_tokens": 2}, {"stop_ids": (5, 2)}, 0.8, Tempered(1.5)),
}


@pytest.mark.parametrize(
    ("name", "fixed_lag"),
    [
        case if case == ("all at once", True) else pytest.param(*case, marks=pytest.mark.slow)
        for case in itertools.product(SETTINGS, [False, True])
    ],
)
def test_groups_are_what_the_adapters_of_their_version_sample(
    name: str, fixed_lag: bool, server: FakeVLLM, folder: Path
) -> None:
    lengths, task, temperature, exploration = SETTINGS[name]
    env = completing(**lengths, **task)
    policy = adapted(env, temperature)
    drawn = sampler(server, folder, policy, env, 2, fixed_lag=fixed_lag, exploration=exploration)
    versions, made = list[LanguageModel](), list[Trajectories[Sequences]]()
    heat = temperature * (1.5 if name == "all at once" else 1.0)
    for step in range(4):
        versions.append(LanguageModel(env, copy.deepcopy(policy.model), heat))
        batch = drawn(step)
        assert batch.final.prompt.tolist() == prompts(env, range(2 * step, 2 * step + 2))
        assert batch.group.tolist() == [0, 0, 0, 1, 1, 1]
        assert all(max(0, step - 2) <= version <= step for version in batch.policy_version.tolist())
        if fixed_lag:
            assert batch.policy_version.tolist() == [max(0, step - 2)] * 6
        made.append(batch)
        moved(policy, step + 2)
    for batch in made:
        torch.testing.assert_close(batch.log_reward, env.log_reward(batch.final))
        assert env.is_terminal(batch.final).all()
        for version, rows in ((v, batch.policy_version == v) for v in batch.policy_version.unique().tolist()):
            part = batch[rows]
            with torch.no_grad():
                scored = versions[version].log_prob(part)
                torch.testing.assert_close(part.behaviour_log_prob, scored, atol=1e-5, rtol=0)
                if version > 0:  # versions differ by more than that
                    assert (versions[version - 1].log_prob(part) - scored).abs().max() > 1e-2
    later = torch.cat([batch.policy_version for batch in made]).tolist()
    assert later == sorted(later)
    assert len({tuple(row.tolist()) for batch in made for row in batch.final.tokens}) > 8
    names = {path.name for path in folder.iterdir()}
    assert names == set(server.adapters), "what is not used any more is removed"
    assert {int(name.split("-")[1][1:]) for name in names} <= ({0, 1, 2, 3} if fixed_lag else {2, 3})
    drawn.close()
    assert server.adapters == {}
    assert not folder.exists()


def trainer(server: FakeVLLM, folder: Path, steps: int) -> Trainer[Sequences]:
    env = completing()
    policy = adapted(env)
    objective = Objective(policy, reference(policy), Alpha(0.5), DevGrad())
    return Trainer(objective, sampler(server, folder, policy, env), steps=steps, lr=0.01)


def test_training_moves_the_policy_and_goes_on_where_it_was_interrupted(server: FakeVLLM, folder: Path) -> None:
    first = trainer(server, folder, 2)
    before = copy.deepcopy(first.state_dict()["objective"])
    first.run()
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    assert any(not torch.equal(x, y) for x, y in zip(_tensors(before), _tensors(first.state_dict()), strict=False))
    first.sampler.close()
    saved.seek(0)
    second = trainer(server, folder, 3)
    second.load_state_dict(torch.load(saved, weights_only=True))
    second.run()
    ledger = second.sampler.hub.ledger
    assert ledger.consumed + len(second.sampler._taken) == 6
    assert second.sampler.settings(3)["lag_max"] <= 1
    second.sampler.close()
    assert server.adapters == {}


def _tensors(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return list(itertools.chain.from_iterable(map(_tensors, values)))


def test_passing_trouble_is_survived_and_counted(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    policy = adapted(env)
    drawn = sampler(server, folder, policy, env, 0, time_limit=20.0)
    server.trouble(COMPLETIONS, 500, "cut", 503)
    server.trouble(LOAD, 500, "cut")  # the second time it is loaded, and nothing said
    scored(policy, drawn(0))
    told = drawn.settings(0)
    assert (told["requests_retried"], told["requests_lost"], told["adapters_reloaded"]) == (5, 0, 0)
    drawn.close()


def test_a_restart_that_forgets_the_adapters_is_survived(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    policy = adapted(env)
    drawn = sampler(server, folder, policy, env, 0)
    server.trouble(LOAD, lambda said: server.adapters.clear() or said)
    scored(policy, drawn(0))
    told = drawn.settings(0)
    assert (told["requests_retried"], told["requests_lost"], told["adapters_reloaded"]) == (0, 0, 1)
    drawn.close()


def test_a_request_that_hangs_is_given_up_and_its_group_made_again(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    policy = adapted(env)
    drawn = sampler(server, folder, policy, env, 0, time_limit=3.0)
    server.trouble(COMPLETIONS, "hang")
    scored(policy, drawn(0))
    assert (drawn.settings(0)["requests_lost"], drawn.settings(0)["leases_expired"]) == (1, 1)
    drawn.close()


def test_closing_breaks_requests_off_and_what_a_killed_run_left_is_removed(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    killed = sampler(server, folder, adapted(env), env, 0)
    killed(0)
    ours = set(server.adapters)
    server.trouble(COMPLETIONS, "hang", "hang")
    taken, killed._taken = killed._taken, []
    killed.hub.advance(taken, killed.engine.publish(1))
    while server.count(COMPLETIONS) < 4:
        time.sleep(0.01)
    began = time.monotonic()
    killed.engine._now.adapters._names.clear()  # as if it could not clean up
    killed.close()
    assert time.monotonic() - began < 5
    assert ours < set(server.adapters)
    other = sampler(server, folder, adapted(env), env, 0)
    other(0)
    assert len(server.adapters) == 1
    assert not ours & set(server.adapters)
    assert len(list(folder.iterdir())) == 1
    other.close()


def test_without_need_the_kind_of_log_probabilities_is_not_asked_for(server: FakeVLLM, folder: Path) -> None:
    env, server.processed = completing(), False
    drawn = sampler(server, folder, adapted(env), env, 0)
    scored(drawn.searcher.policy, drawn(0))
    assert server.count(COMPLETIONS) == 2
    drawn.close()


@pytest.mark.slow
def test_the_config_trains_and_keeps_its_adapters_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    model = write_model(tmp_path / "model")
    server = FakeVLLM(causal_model(str(model)), str(model), 256, eos=0)
    chosen = ["env=problems", f"env.model={model}", "env.stops=[a,e]", "policy.lora_rank=2", "evaluator.n_samples=8"]
    chosen += ["env.verifier=tests.small_language_models.vowels", "evaluator.conditions=2", "sampler=asynchronous"]
    chosen += [
        "sampler/engine=vllm",
        f"sampler.engine.url={server.url}",
        "sampler.batch_size=8",
        "sampler.group_size=4",
    ]
    run = built(tmp_path / "run", *chosen, "trainer.steps=2", "logger=quiet", "evaluator.every=2")
    report = run.trainer.run()
    assert report is not None
    assert (report.step, report.metrics["requests_lost"]) == (2, 0)
    assert {Path(root).parent for root in server.adapters.values()} == {tmp_path / "run" / "adapters"}
    run.parts["sampler"].close()
    assert server.adapters == {}
    server.close()


def test_several_groups_may_share_a_number(server: FakeVLLM, folder: Path) -> None:
    env = completing()
    policy = adapted(env)
    drawn = sampler(server, folder, policy, env, 0, lease_size=6)
    batch = drawn(0)
    starts = env.reset(2, torch.Generator().manual_seed(seed_of(7, 0)))
    assert batch.final.prompt.tolist() == starts.prompt.repeat_interleave(3).tolist()
    assert batch.group.tolist() == [0, 0, 0, 1, 1, 1]
    seeds = [asked["seed"] for path, asked in server.asked if path == COMPLETIONS]
    assert len(set(seeds)) == len(seeds) == 2
    scored(policy, batch)
    drawn.close()


def test_requests_are_in_flight_at_once_and_each_has_its_key(
    server: FakeVLLM, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    env = completing()
    drawn = sampler(server, folder, adapted(env), env, 1, requests=4, timeout=1.0)
    server.trouble(COMPLETIONS, *["hang"] * 4)
    with pytest.raises(SearchError, match="no group has come"):
        drawn(0)
    while server.count(COMPLETIONS) < 4:
        time.sleep(0.01)
    assert server.keys == {"Bearer sesame"}
    drawn.close()
