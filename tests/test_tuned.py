"""Priors of digits and what is tuned from them: the two commands, the report, and what is said about mistakes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments import runs
from experiments.reports import digits as report
from experiments.schema import ConfigError
from gfn.checkpoint import newest
from tests.composing import built
from tests.small_digits import CACHE, write_prior

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FGFN_TEST_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("envs.diffusion.classifier.UPDATES", 20)
        yield


@pytest.fixture(scope="module")
def prior(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prior(tmp_path_factory.mktemp("runs") / "prior")


def small(prior: Path) -> list[str]:
    chosen = ["experiment=digits/even", CACHE, "env.steps=3", f"policy.run={prior}", "sampler.batch_size=8"]
    chosen += ["policy.guidance=0"]
    return [*chosen, "trainer.steps=2", "evaluator.n_samples=16", "logger=quiet", "logger.metrics.every=1"]


def test_tuning_begins_with_the_prior_and_leaves_it_as_it_was(prior: Path, tmp_path: Path) -> None:
    found = newest(prior / "checkpoints")
    assert found is not None
    stored = {name.removeprefix("policy."): x for name, x in found[1]["objective"].items() if name.startswith("policy")}
    run = built(tmp_path, *small(prior), "trainer.lr=0.1")
    policy, backward = run.parts["policy"], run.parts["backward"]
    assert policy.state_dict().keys() == stored.keys()
    assert all(policy.state_dict()[name].equal(x) for name, x in stored.items())
    run.trainer.run()
    assert not all(policy.state_dict()[name].equal(x) for name, x in stored.items())
    assert all(backward.policy.state_dict()[name].equal(x) for name, x in stored.items())


def test_guidance_is_a_start_that_is_learned(prior: Path, tmp_path: Path) -> None:
    run = built(tmp_path, *small(prior), "policy.guidance=0.5", "trainer.lr=0.1")
    assert run.parts["policy"].weight.tolist() == [0.5] * 3
    run.trainer.run()
    assert run.parts["policy"].weight.tolist() != [0.5] * 3
    plain = run.parts["backward"].policy.state_dict().keys()  # the prior is not guided
    assert run.parts["policy"].policy.state_dict().keys() == plain


def test_report_draws_and_counts(prior: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "SAMPLES", 32)
    for seed, alpha in ((0, 0.0), (1, 0.0), (0, 1.0)):
        directory = tmp_path / f"a{alpha:g}_{seed}"
        overrides = [*small(prior), f"divergence.alpha={alpha}", f"seed={seed}", "trainer.save_every=1"]
        directory.mkdir()
        run = built(directory, *overrides)
        runs.prepare(run, directory, [])
        run.trainer.run()
    assert report.main([f"{tmp_path}/a*", f"out={tmp_path}/report"]) == 0
    assert {p.name for p in (tmp_path / "report").iterdir()} == {"digits.md", "digits.png", "digits_samples.png"}
    rows = (tmp_path / "report" / "digits.md").read_text().splitlines()
    assert [row.split("|")[1:3] for row in rows[2:]] == [[" alpha = 0.0 ", " 2 "], [" alpha = 1.0 ", " 1 "]]
    drawn = report.draw_samples(tmp_path / "a0_0")
    assert drawn.classes == [0, 2, 4, 6, 8]
    assert drawn.prior is not None
    assert int(drawn.counts.sum()) <= 32
    assert drawn.images.shape[1:] == (8, 8)


def test_report_says_what_it_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main([f"{tmp_path}/nothing*"]) == 1
    assert "no run directories were given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.steps=4"], "was made for images of 8 × 8 pixels in 3 steps with 1 label, and this is images of 8 × 8"),
        (["policy.run=nowhere"], "a prior of digits is trained by: gfn-train experiment=digits/prior run=nowhere"),
        (["env.classes=prime"], "env: digits: classes must be one of all, even, odd"),
        (["env.data=mnist"], "env: env.data=mnist needs the folder"),
        (["env.steps=1"], "env: Diffusion: steps must be at least 2"),
    ],
)
def test_mistakes_are_told_before_training(overrides: list[str], message: str, prior: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        built(tmp_path, *small(prior), *overrides)


def test_checkpoint_of_another_network_is_refused(prior: Path, tmp_path: Path) -> None:
    other = write_prior(tmp_path / "other")
    config = (other / "config.yaml").read_text().replace("width: 8", "width: 16")
    (other / "config.yaml").write_text(config)
    with pytest.raises(ConfigError, match=r"the checkpoint in .*other does not fit the network of its config.yaml"):
        built(tmp_path / "run", *small(other))


def test_a_single_digit_and_several_may_be_asked_for(prior: Path, tmp_path: Path) -> None:
    for chosen, classes in (("7", [7]), ("[1,3]", [1, 3])):
        env = built(tmp_path, *small(prior), f"env.classes={chosen}").parts["env"]
        assert env.target.classes == classes
        assert env.log_reward(env.ends(torch.zeros(2, 64))).shape == (2,)
