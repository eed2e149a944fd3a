"""Handwritten digits: images as the ends of a diffusion process, rewarded by a classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from envs.diffusion.classifier import CLASSES, classifier
from envs.diffusion.environment import Diffusion, Points
from envs.diffusion.painting import paint_images
from envs.diffusion.targets import Target

SETS: dict[str, tuple[int, ...]] = {
    "all": tuple(range(CLASSES)),
    "even": (0, 2, 4, 6, 8),
    "odd": (1, 3, 5, 7, 9),
}
SHOWN = 128  # images in a picture


@dataclass(frozen=True)
class Images:
    """A data set.

    Attributes:
        pixels: values in [−1, 1], ink high, float ``[N, H, W]``.
        label: which digit each image is, long ``[N]``.
    """

    pixels: Tensor
    label: Tensor

    def __post_init__(self) -> None:
        if self.pixels.ndim != 3 or self.label.shape != self.pixels.shape[:1]:
            raise ValueError(
                f"Images: expected pixels [N, H, W] and labels [N], got {list(self.pixels.shape)} and "
                f"{list(self.label.shape)}"
            )


def small_digits() -> Images:
    """The 1 797 digits of 8 × 8 pixels that scikit-learn brings (Alpaydin and Kaynak 1998, doi:10.24432/C50P49).

    Raises:
        ImportError: without the extra ``digits``.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "env.data=digits needs scikit-learn, which brings the images: pip install 'fgfn[digits]'"
        ) from error
    found: Any = load_digits()
    pixels = torch.tensor(found.images, dtype=torch.get_default_dtype()) / 8 - 1
    return Images(pixels, torch.tensor(found.target, dtype=torch.long))


def mnist(root: Path | None) -> Images:
    """The 60 000 training images of MNIST of 28 × 28 pixels, from a folder of torchvision.

    Raises:
        ValueError, ImportError, FileNotFoundError: without a folder, without torchvision, or without the files.
    """
    if root is None:
        raise ValueError("env.data=mnist needs the folder that torchvision keeps MNIST in: give env.root=…")
    try:
        from torchvision.datasets import MNIST  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("env.data=mnist needs torchvision: pip install torchvision") from error
    try:
        found: Any = MNIST(root=str(root), train=True, download=False)
    except RuntimeError as error:
        raise FileNotFoundError(
            f"there is no MNIST in {root}; fetch it with torchvision.datasets.MNIST({str(root)!r}, download=True), or "
            "use env.data=digits, which needs no network"
        ) from error
    return Images(found.data.to(torch.get_default_dtype()) / 127.5 - 1, found.targets.long())


class Digits(Target):
    """R(x) = p(class in a set | image x) by a classifier; with all classes R = 1.

    Args:
        images: the data set.
        classes: the set.
        cache: folder for classifiers; default, the user's.

    Raises:
        ValueError: if the set is empty or holds something that is no digit.
    """

    def __init__(self, images: Images, classes: Sequence[int] = SETS["all"], cache: Path | None = None):
        wrong = [c for c in classes if c not in range(CLASSES)]
        if wrong or not classes:
            raise ValueError(
                f"Digits: classes must be digits from 0 to 9 (or one of {', '.join(SETS)}), at least one, got {classes}"
            )
        self.images, self.classes = images, sorted(set(classes))
        self.shape = (images.pixels.shape[1], images.pixels.shape[2])
        self.dim = self.shape[0] * self.shape[1]
        flat = images.pixels.flatten(1)
        self.classifier = classifier(flat, images.label, 0, cache)
        self.judge = classifier(flat, images.label, 1, cache)  # which training does not see

    def log_density(self, x: Tensor, label: Tensor) -> Tensor:
        if len(self.classes) == CLASSES:
            return 0 * x.sum(1)
        return self.classifier(x)[:, self.classes].logsumexp(1)

    def judged(self, x: Tensor) -> Tensor:
        """The class of each image ``[N, D]`` by a classifier that the reward does not know, long ``[N]``."""
        return self.judge(x).argmax(1)

    def summary(self, x: Tensor, label: Tensor) -> Mapping[str, float]:
        """``on_target``: share of the classes asked for; ``class_entropy``: of their histogram, over its maximum."""
        counts = torch.bincount(self.judged(x), minlength=CLASSES)[self.classes]
        return {"on_target": float(counts.sum()) / len(x), "class_entropy": evenness(counts)}

    def paint(self, figure: Any, x: Tensor, exact: Tensor | None) -> None:
        paint_images(figure, x[:SHOWN].view(-1, *self.images.pixels.shape[1:]).clamp(-1, 1))


def evenness(counts: Tensor) -> float:
    """Entropy of a histogram ``[C]`` over its maximum log C; 1 if there is but one class, 0 of nothing."""
    if len(counts) == 1 or int(counts.sum()) == 0:
        return float(len(counts) == 1)
    p = counts.double() / counts.sum()
    return float(torch.special.entr(p).sum()) / math.log(len(counts))


def digits(
    data: Literal["digits", "mnist"] = "digits",
    root: Path | None = None,
    classes: str | int | Sequence[int] = "all",
    steps: int = 12,
    cache: Path | None = None,
) -> Diffusion:
    """Diffusion that ends in images of digits.

    Args:
        data: ``digits`` (8 × 8, scikit-learn) or ``mnist`` (28 × 28, torchvision).
        root: folder of MNIST.
        classes: what is asked for: ``all``, ``even``, ``odd``, a digit, or several.
        steps: T.
        cache: folder for the classifiers; default, the user's.

    Raises:
        ValueError, ImportError, FileNotFoundError: if the data cannot be had, or nothing sensible is asked for.
    """
    if data not in ("digits", "mnist"):
        raise ValueError(f"digits: data must be digits or mnist, got {data!r}")
    if isinstance(classes, str) and classes not in SETS:
        raise ValueError(
            f"digits: classes must be one of {', '.join(SETS)}, a digit or a list of them, got {classes!r}"
        )
    chosen = SETS[classes] if isinstance(classes, str) else [classes] if isinstance(classes, int) else classes
    images = small_digits() if data == "digits" else mnist(root)
    return Diffusion(Digits(images, chosen, cache), steps)


def real_images(env: Diffusion) -> Points:
    """The images of the classes that are asked for, as data (``sampler=data``).

    Raises:
        ValueError: if the ends are no digits.
    """
    target = env.target
    if not isinstance(target, Digits):
        raise ValueError(f"real_images needs env=digits, and this ends in {type(target).__name__}")
    kept = torch.isin(target.images.label, torch.tensor(target.classes))
    return env.ends(target.images.pixels[kept].flatten(1))
