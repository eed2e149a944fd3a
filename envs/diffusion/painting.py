"""Pictures of samples; matplotlib is imported by whoever gives the figure."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def paint_points(figure: Any, x: Tensor, exact: Tensor | None, reach: float) -> None:
    """The first two coordinates of samples ``[N, D]``, and of exact ones beside them."""
    shown = [("sampled", x)] if exact is None else [("sampled", x), ("exact", exact)]
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for axis, (title, points) in zip(axes, shown, strict=True):
        axis.scatter(*points[:, :2].cpu().T.numpy(), s=4, alpha=0.5, edgecolors="none")
        axis.set(title=title, xlim=(-reach, reach), ylim=(-reach, reach), xlabel="x0", ylabel="x1", aspect="equal")


def paint_images(figure: Any, images: Tensor) -> None:
    """Images ``[N, H, W]`` with values in [−1, 1] as a grid of dark on white."""
    axis = figure.subplots()
    axis.imshow(-sheet(images).cpu().numpy(), cmap="gray", vmin=-1, vmax=1)
    axis.set_axis_off()


def sheet(images: Tensor, columns: int = 16) -> Tensor:
    """Images ``[N, H, W]`` side by side in rows, with a line of −1 after each: ``[rows (H + 1), columns (W + 1)]``."""
    height, width = images.shape[1:]
    rows = -(-len(images) // columns)
    whole = images.new_full((rows * (height + 1), columns * (width + 1)), -1.0)
    for i, image in enumerate(images):
        top, left = i // columns * (height + 1), i % columns * (width + 1)
        whole[top : top + height, left : left + width] = image
    return whole
