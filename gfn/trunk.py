"""The perceptron that policies and flows put their heads on."""

from __future__ import annotations

from itertools import pairwise
from typing import Generic, TypeVar, cast

from torch import Tensor, nn

from gfn.environment import DiscreteEnvironment
from gfn.states import States

S = TypeVar("S", bound=States)
LARGEST = 2**28  # weights of a layer, a gibibyte


class Trunk(nn.Module, Generic[S]):
    """Multilayer perceptron from ``env.encode`` to ``width`` features, shared by any number of heads.

    Raises:
        ValueError: unless ``width`` and ``depth`` are at least 1, and the first layer of a size that fits.
    """

    def __init__(self, env: DiscreteEnvironment[S], width: int, depth: int):
        super().__init__()
        if width < 1 or depth < 1:
            raise ValueError(f"Trunk: width and depth must be at least 1, got width={width} depth={depth}")
        if env.n_features * width > LARGEST:
            raise ValueError(
                f"Trunk: {env.n_features} features of {type(env).__name__} times width={width} are more than {LARGEST} "
                "weights; choose networks made for it, and with objective=ppo a baseline without one "
                "(objective.baseline=group objective.value=null)"
            )
        self.encode = env.encode
        self.width = width
        sizes = [env.n_features] + [width] * depth
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, states: S) -> Tensor:
        """Features of each state, ``[N, width]``."""
        first = cast(nn.Linear, cast(nn.Sequential, self.layers[0])[0])
        return self.layers(self.encode(states).to(first.weight.dtype))

    def followed_by(self, head: nn.Linear) -> list[Tensor]:
        """Weight, bias, weight, … of the trunk and a head."""
        linear = [layer for layer in self.layers.modules() if isinstance(layer, nn.Linear)]
        return [x for layer in (*linear, head) for x in (layer.weight, layer.bias)]
