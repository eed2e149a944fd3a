"""Parts of asynchronous training by themselves: what is sent to searchers, the hub, and the settings of Ray."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gfn.distributed import Engine, Hub, InProcess, Ray, Searcher, SearchError
from gfn.distributed.hub import Weights
from gfn.distributed.searcher import Changing
from gfn.exploration import NoExploration
from tests.composing import built
from tests.small_language_models import write_model
from tests.stored import grid

ENV = grid()


class Half(nn.Module):
    """A module with weights that are trained, others that are not, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.randn(3, 2).bfloat16())
        self.single = nn.Parameter(torch.randn(()))
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("mask", torch.tensor([True, False]))


def alike(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_only_what_changes_is_sent() -> None:
    one = Half()
    other: Any = Searcher(ENV, copy.deepcopy(one), NoExploration(), 2, 0)  # type: ignore[arg-type]
    changing = Changing(one)
    assert list(changing.arrays()) == ["trained", "single"]
    with torch.no_grad():
        one.trained.mul_(3)
        one.single.add_(1)
        one.count += 1
        one.mask = torch.tensor([False, True])
    sent = changing.arrays()
    assert {name: array.nbytes for name, array in sent.items()} == {"trained": 12, "single": 4, "count": 8, "mask": 2}
    for array in sent.values():
        array.flags.writeable = False
    assert not alike(other.policy, one)
    other.load(sent)
    assert alike(other.policy, one)
    with torch.no_grad():
        one.single.zero_()
    assert other.policy.single != 0, "it has weights of its own"


def test_of_a_language_model_the_adapters_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GFN_TRUST", "tests")
    problems = ["env=problems", f"env.model={write_model(tmp_path / 'model')}", "policy.lora_rank=2"]
    verifier = ["env.verifier=tests.small_language_models.vowels", "env.stops=[a,e]", "logger=quiet"]
    policy = built(tmp_path, *problems, *verifier, "sampler=asynchronous", "sampler.batch_size=4").parts["policy"]
    sent = Changing(policy).arrays()
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert sent.keys() == trained
    assert all("lora" in name for name in sent)
    assert len(trained) < len(list(policy.parameters()))


@pytest.mark.parametrize("fixed_lag", [False, True])
def test_what_is_made_again_has_the_newest_weights_unless_the_lag_is_fixed(fixed_lag: bool) -> None:
    hub = Hub(2, fixed_lag=fixed_lag)
    assert hub.lease("a", 0.0) is None, "there are no weights yet"
    hub.advance([], Weights(0))
    jobs = [hub.lease(who, 0.0) for who in "ab"]
    assert [(job.number, job.weights.version) for job in jobs if job is not None] == [(0, 0), (1, 0)]
    assert hub.put("a", 0, {"from": "a"}, 0.0)
    assert not hub.put("b", 0, {"from": "b"}, 0.0)
    assert hub.take(1) == {0: {"from": "a"}}
    hub.lose("b", "it left")
    hub.advance([0], Weights(5))
    jobs = [hub.lease("c", 0.0) for _ in range(3)]
    assert [(job.number, job.weights.version) for job in jobs if job] == [(1, 0 if fixed_lag else 5), (2, 5)]
    assert hub.state_dict() == {
        "ledger": {"next": 3, "consumed": 1, "done": [], "expired": 1, "duplicates": 1},
        "groups": {},
    }


def test_a_group_that_kills_its_searchers_ends_the_run() -> None:
    hub = Hub(2)
    hub.advance([], Weights(0))
    for attempt in range(5):
        assert hub.lease(f"number {attempt}", 0.0) is not None
        hub.lose(f"number {attempt}", f"number {attempt} broke down")
    assert hub.error is None
    assert hub.lease("last", 0.0) is None
    message = "group 0 was given to searchers 5 times and did not come, the last time because number 4 broke down"
    with pytest.raises(SearchError, match=message):
        hub.ready(1)
    hub.fail(ValueError("later"))
    with pytest.raises(SearchError, match=message):
        hub.ready(1)


def test_messages_of_the_hub() -> None:
    hub = Hub(2)
    hub.advance([], Weights(0))
    hub.lease("a", 3.0)
    assert hub.status(5.0) == (
        "1 groups given out, 0 trained on, 0 waiting; being made: 0 with a; to be made again: []; 0 leases expired, "
        "0 duplicates; heard of: a 2 s ago; last loss: none was lost"
    )
    with pytest.raises(SearchError, match="the next 2 groups are not all there: 1 groups given out"):
        hub.take(2)
    assert not hub.wait_for_group(0.01)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"searchers": 0}, "searchers=0"),
        ({"cpus": 0}, "cpus=0"),
        ({"gpus": -1.0}, r"gpus=-1\.0"),
        ({"time_limit": 0.0}, r"time_limit=0\.0"),
        ({"timeout": 0.0}, r"timeout=0\.0"),
        ({"object_store_memory": 1000}, "object_store_memory must be at least 78643200 bytes, got 1000"),
    ],
)
def test_settings_of_ray_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ray(**settings)


def test_ray_is_an_extra_that_nobody_else_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    read = "import sys, gfn.distributed as d; d.Ray(); d.InProcess(); assert 'ray' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", read], check=False).returncode == 0
    monkeypatch.setattr("gfn.distributed.ray_engine.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'fgfn\[ray\]'"):
        Ray()


def test_engines_have_one_interface() -> None:
    engines: list[Engine] = [InProcess(), Ray()]
    for engine in engines:
        engine.close()
