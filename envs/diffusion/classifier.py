"""Classifiers of images, trained once on half of the data and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gfn.storage import cache_directory

WIDTH, BATCH, UPDATES, RATE, NOISE = 128, 64, 400, 2e-3, 0.2
CLASSES = 10


def classifier(images: Tensor, label: Tensor, half: int, cache: Path | None = None) -> nn.Module:
    """From images ``[N, D]`` to log-probabilities of their ten classes, ``[N, 10]``; frozen.

    Args:
        images: with values in [−1, 1], float ``[N, D]``.
        label: their classes, long ``[N]``.
        half: 0 learns from half of the images, chosen at random but always the same, 1 from the others.
        cache: folder to keep it in; default, the user's.
    """
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))[half::2]
    inputs, known = images[rows].float(), label[rows]
    recipe = f"{WIDTH} {BATCH} {UPDATES} {RATE} {NOISE} {half} {torch.get_default_dtype()}".encode()
    name = hashlib.sha256(recipe + inputs.numpy().tobytes() + known.numpy().tobytes()).hexdigest()[:16]
    path = (cache or cache_directory() / "digits") / f"classifier_{name}.pt"
    with torch.random.fork_rng():
        torch.manual_seed(half)
        network = nn.Sequential(
            nn.Linear(images.shape[1], WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, CLASSES), nn.LogSoftmax(1),
        )  # fmt: skip
        if path.is_file():
            network.load_state_dict(torch.load(path, weights_only=True))
        else:
            _train(network, inputs.to(torch.get_default_dtype()), known)
            _keep(network, path)
    return network.requires_grad_(False)


def _train(network: nn.Module, inputs: Tensor, label: Tensor) -> None:
    """Maximum likelihood, with noise on the images so that nearly clean samples are judged well."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=1e-2)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
    for _ in range(UPDATES):
        rows = torch.randint(len(inputs), (BATCH,))
        noise = NOISE * torch.rand(BATCH, 1) * torch.randn(BATCH, inputs.shape[1])
        loss = cross_entropy(network(inputs[rows] + noise), label[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.step()


def _keep(network: nn.Module, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    torch.save(network.state_dict(), part)
    os.replace(part, path)  # readers see all of it or nothing, however many write at once
