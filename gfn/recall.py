"""What a network computed while trajectories were drawn, for their gradient, if its weights are still the same."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gfn.trajectories import Trajectories


@dataclass(frozen=True)
class Recall:
    """The hidden layers of a perceptron at every distinct state that some trajectories left.

    Attributes:
        states: these states, U of them.
        place: which of them each step leaves, long ``[N]``.
        inputs: their features, ``[U, F]``.
        hidden: after each layer and its ReLU, ``[U, width]`` each.
        weights: of these layers: weight, bias, weight, ….
        values: of the weights at that time; torch's count of changes leaves out those by fused optimizers.
        of: the trajectories, for which alone this holds.
    """

    states: Any
    place: Tensor
    inputs: Tensor
    hidden: Sequence[Tensor]
    weights: Sequence[Tensor]
    values: Sequence[Tensor]
    of: weakref.ref[Any]

    def features(self) -> Tensor:
        """The last hidden layer, ``[U, width]``, as the function of the weights that it is."""
        return _Recalled.apply(len(self.hidden), self.inputs, *self.hidden, *self.weights)


# By policy, and outside of it, so that nothing of this is copied, pickled or saved with it.
_KEPT: weakref.WeakKeyDictionary[nn.Module, Recall] = weakref.WeakKeyDictionary()


def remember(policy: nn.Module, t: Trajectories[Any], recall: Callable[[weakref.ref[Any]], Recall]) -> None:
    """Keep what the network of a policy computed for these trajectories, until there are others."""
    _KEPT[policy] = recall(weakref.ref(t))


def recalled(policy: nn.Module, t: Trajectories[Any]) -> Recall | None:
    """What is known of these very trajectories, unless a weight has been changed since."""
    kept = _KEPT.get(policy)
    if kept is None or kept.of() is not t:
        return None
    return kept if all(map(torch.equal, kept.weights, kept.values)) else None


class _Recalled(torch.autograd.Function):
    """Layers whose values are known: forward there is nothing to do, backward the usual."""

    @staticmethod
    def forward(ctx: Any, depth: int, *tensors: Tensor) -> Tensor:
        ctx.depth = depth
        ctx.save_for_backward(*tensors[: depth + 1], *tensors[depth + 1 :: 2])
        return tensors[depth].view_as(tensors[depth])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), saved, depth = gradients, ctx.saved_tensors, ctx.depth
        values, weights = saved[: depth + 1], saved[depth + 1 :]
        found: list[Tensor] = []
        for layer in reversed(range(depth)):
            gradient = torch.ops.aten.threshold_backward(gradient, values[layer + 1], 0.0)
            found += [gradient.sum(0), gradient.T @ values[layer]]
            if layer > 0:
                gradient = gradient @ weights[layer]
        return (None,) * (depth + 2) + tuple(reversed(found))
