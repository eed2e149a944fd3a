"""A handful of made-up images of digits, and priors of them that are trained for two steps."""

from __future__ import annotations

from pathlib import Path

import torch
from omegaconf import OmegaConf

from envs.diffusion.digits import Images
from tests.composing import built, composed

CACHE = "env.cache=${oc.env:FGFN_TEST_CACHE}"
SMALL_PRIOR = ("experiment=digits/prior", "env.steps=3", "policy.width=8", "evaluator.n_samples=16", "logger=quiet")


def bars(n: int = 60) -> Images:
    """Images of 4 × 4 pixels: digit d lights the pixels d and d + 1, a little more or less."""
    label = torch.arange(n) % 10
    pixels = torch.full((n, 16), -1.0)
    rows = torch.arange(n)
    pixels[rows, label] = 1.0
    pixels[rows, label + 1] = 1.0 - 0.5 * (rows // 10 % 2)
    return Images(pixels.view(n, 4, 4), label)


def write_prior(directory: Path, *overrides: str) -> Path:
    """A run directory with a prior that two steps have trained."""
    chosen = (*SMALL_PRIOR, CACHE, "trainer.steps=2", *overrides)
    built(directory, *chosen).trainer.run()
    config = composed(*chosen, run=str(directory))
    (directory / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True), encoding="utf-8")
    return directory
