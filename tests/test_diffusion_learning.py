"""Diffusion samplers learn what is known exactly, from several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gfn.evaluation import Evaluator
from tests.composing import built

pytestmark = pytest.mark.slow
QUIET = ("logger=quiet", "evaluator.every=10000", "evaluator.n_samples=16")


@pytest.mark.parametrize("seed", [0])  # the README has seeds 0 to 5
def test_log_z_of_the_25_gaussians_and_all_modes(seed: int, tmp_path: Path) -> None:
    run = built(tmp_path, "experiment=diffusion/gaussians25", f"seed={seed}", *QUIET)
    run.trainer.run()
    found = Evaluator(run.parts["env"], run.parts["objective"], n_samples=8192, seed=seed)(0)
    assert abs(found["log_z_importance_error"]) < 0.05
    assert found["modes_covered"] == 25
    assert found["elbo"] < 0.0 < found["eubo"] < 1.2


@pytest.mark.parametrize("seed", [0, 1])
def test_log_z_of_every_label(seed: int, tmp_path: Path) -> None:
    run = built(tmp_path, "experiment=diffusion/conditional", f"seed={seed}", *QUIET)
    run.trainer.run()
    found = Evaluator(run.parts["env"], run.parts["objective"], n_samples=16384, conditions=16, seed=seed)(0)
    assert abs(found["log_z_importance_error"]) < 0.05  # the largest of 16 draws of labels
    assert found["importance_ess"] > 0.8
    assert found["elbo"] < found["log_z_exact"] < found["eubo"] < found["log_z_exact"] + 0.2
