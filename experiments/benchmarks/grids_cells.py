"""What is measured on hypergrids: cells, and the trained policies that every side begins with."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path

from envs.hypergrid import Classic, Hypergrid
from experiments.benchmarks.grids_runs import BACKWARD, COMMON, NEVER, R0, Cell, unwatched, weights
from experiments.benchmarks.workers.turns import write
from experiments.build import build
from gfn.samplers import OnPolicy
from gfn.training import never

PIECE, PIECES, NEAR = 300, 10, 0.03  # a policy is trained in pieces of so many updates, until lengths are so near
SAMPLED = 1024  # trajectories whose length is taken
EVERYTHING = "8x2+8x4+20x4+64x2:16+256+4096:learned+uniform"


def parsed(text: str) -> list[Cell]:
    """Cells from a text such as ``8x4+20x4:16+256:learned,64x2:16:uniform``: with + between values, all of them.

    Raises:
        ValueError: if it is no such text.
    """
    cells = list[Cell]()
    for part in text.split(","):
        grids, batches, backwards = ([field.split("+") for field in part.split(":")] + [[], [], []])[:3]
        for grid, batch, backward in product(grids, batches, backwards):
            side, _, ndim = grid.partition("x")
            if not (side.isdecimal() and ndim.isdecimal() and batch.isdecimal() and backward in BACKWARD):
                raise ValueError(f"cells: expected such as 8x4+20x4:16+256:learned+uniform, got {part!r}")
            cells.append(Cell(int(side), int(ndim), int(batch), backward))
        if not (grids and batches and backwards):
            raise ValueError(f"cells: expected grids, batches and kinds of P_B, as in 8x4:16:learned, got {part!r}")
    return list(dict.fromkeys(cells))


def target_length(side: int, ndim: int) -> float:
    """Mean number of steps of trajectories to samples of R/Z, stopping included."""
    states = Hypergrid(side, ndim, Classic(r0=R0)).enumerate()
    coords = states.coords[~states.stopped]
    reward = Classic(r0=R0)(coords, side)
    return float((reward * (coords.sum(1) + 1)).sum() / reward.sum())


def trained(side: int, ndim: int, folder: Path) -> Path:
    """The weights of a policy whose trajectories are about as long as those to samples of the target.

    It is trained by trajectory balance on exact samples, which takes few updates, and kept in ``folder``.

    Raises:
        RuntimeError: if lengths do not come near.
    """
    path = folder / f"{side}x{ndim}.npz"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    wanted = target_length(side, ndim)
    with tempfile.TemporaryDirectory() as scratch:
        run = build(unwatched(_overrides(side, ndim)), Path(scratch), never)
        sampled = 0.0
        for _ in range(PIECES):
            run.trainer.steps += PIECE
            run.trainer.run()
            sampled = float(OnPolicy(run.parts["env"], run.parts["policy"], SAMPLED)(0).lengths.double().mean())
            if abs(sampled / wanted - 1) < NEAR:
                write(path, weights(run))
                return path
    raise RuntimeError(
        f"after {PIECE * PIECES} updates trajectories on {side}x{ndim} have {sampled:.1f} steps on average, "
        f"those to samples of the target {wanted:.1f}"
    )


def _overrides(side: int, ndim: int) -> list[str]:
    return [
        *COMMON,
        *("backward=learned", "sampler=target", "sampler.batch_size=64"),
        *(f"env.side={side}", f"env.ndim={ndim}", f"env.reward.r0={R0}"),
        *("trainer.steps=0", f"trainer.save_every={NEVER}"),
    ]
