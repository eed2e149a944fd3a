"""Small things a user might bring: an environment, a reward, a generator, a loss."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from envs.hypergrid import GridStates, Hypergrid

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def code_block(opening: str) -> str:
    """The Python block of the project's README that begins with ``opening``."""
    start = README.index("```python\n" + opening) + len("```python\n")
    return README[start : README.index("```", start)]


_namespace: dict[str, object] = {"__name__": __name__}
exec(code_block('"""Choose k of n items'), _namespace)
Subsets = _namespace["Subsets"]


def bumps(coords: Tensor) -> Tensor:
    return 1.0 + coords.double().sum(-1)


def generator(u: Tensor) -> Tensor:
    return u * u.log() - u + 1


def loss(delta: Tensor) -> Tensor:
    return delta.cosh() - 1


def slopes(coords: Tensor) -> Tensor:
    return 1.0 + coords.double()[:, 0]


def diagonal(env: Hypergrid) -> GridStates:
    """Terminal states on the diagonal."""
    coords = torch.arange(env.side).unsqueeze(1).expand(-1, env.ndim)
    return GridStates(coords, torch.ones(env.side, dtype=torch.bool))


def quadratic(delta: Tensor) -> Tensor:
    return 0.5 * delta.square()


def other_generator(u: Tensor) -> Tensor:
    return u - 1 - u.log()


def carbons(smiles: str) -> float:
    """Number of aromatic carbons of a molecule."""
    return float(smiles.count("c"))


def nitrogens(smiles: str) -> float:
    """Number of nitrogens of a molecule, aromatic or not."""
    return float(smiles.lower().count("n"))


def picky(smiles: str) -> float:
    """Refuses molecules with an oxygen."""
    if "O" in smiles:
        raise ValueError("oxygen")
    return 1.0


def bowl(x: torch.Tensor) -> torch.Tensor:
    """Log-density of a standard normal, but for its log Z."""
    return -0.5 * x.square().sum(1)


def steep_bowl(x: torch.Tensor) -> torch.Tensor:
    """That of a narrower one."""
    return -2.0 * x.square().sum(1)
