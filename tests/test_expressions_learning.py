"""A language model of its own learns the exact target of a task whose right answers are all known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.composing import built


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "rate"), [(0.0, 3e-4), (0.5, 1e-3), (1.0, 1e-3)])
def test_a_language_model_comes_near_its_exact_target(alpha: float, rate: float, tmp_path: Path, cache: Path) -> None:
    """150 updates on 128 completions each: right answers, their distribution, and log Z.

    At the start the KL to the target is 1.6 nats, the total variation 0.62, and a third of the answers right. Three
    seeds ended at 0.56–0.86 nats, 0.29–0.39, and 0.70–0.77 right.
    """
    run = built(
        tmp_path, "experiment=tokens/expressions", f"divergence.alpha={alpha}", "trainer.steps=150",
        f"trainer.lr=cosine:{rate}:{rate / 50}", "evaluator.every=150", f"policy.cache={cache}", "logger=quiet",
    )  # fmt: skip
    before = run.parts["evaluator"](0)
    report = run.trainer.run()
    assert report is not None
    assert report.evaluation is not None
    after = report.evaluation
    assert before["kl_prior"] == 0
    assert before["kl_model_target"] > 1.2
    assert before["tv_coarse"] > 0.55
    assert 0.25 < before["exceptions_mass"] < 0.45
    assert after["kl_model_target"] < 1.1
    assert after["tv_coarse"] < 0.45
    assert after["exceptions_mass"] > 0.62
    assert after["unique_right"] > before["unique_right"] + 4
    assert abs(after["log_z_importance"] - after["log_z_exact"]) < 0.3
