"""Copies of a model's weights that are quicker to sample with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

LARGE = 2**24  # weights; fewer stay in the processor's cache, and nothing is gained


class Packed:
    """The linear layers of a model as they are now, laid out for products with few rows, adapters merged in.

    A step of sampling has as many rows as there are sequences, and half its time goes into bringing the weights
    into order for so few. The model's own weights are neither changed nor merged. Making it costs what it saves in
    about ten steps, and another copy of the weights in memory.

    Args:
        model: on the CPU, with weights in float32; layers that are otherwise, or of another kind, stay as they are.
    """

    def __init__(self, model: nn.Module):
        self._forward = {module: _product(weight, bias) for module, weight, bias in _layers(model)}

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Within, the layers of the model compute with these copies, without gradients."""
        for module, forward in self._forward.items():
            module.forward = forward
        try:
            yield
        finally:
            for module in self._forward:
                del module.__dict__["forward"]


def worthwhile(model: nn.Module) -> bool:
    """Whether sampling from a model is quicker with packed weights; no gradients, no autocast."""
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not torch.backends.mkldnn.is_available():
        return False
    return sum(p.numel() for p in model.parameters() if _fits(p)) >= LARGE


def _fits(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu"


def _product(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    packed: Any = torch.ops.mkldnn._reorder_linear_weight(weight)
    return partial(_multiplied, packed, None if bias is None else bias.detach())


def _multiplied(packed: Any, bias: Tensor | None, x: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def _layers(model: Any) -> Iterator[tuple[nn.Module, Tensor, Tensor | None]]:
    """Linear layers with the weights and biases that they act by; of adapted ones, those of the whole."""
    adapted: Any = import_module("peft.tuners.lora").Linear if hasattr(model, "peft_config") else ()
    taken = set[nn.Module]()
    for module in model.modules():
        if module in taken or "forward" in vars(module):
            continue
        if isinstance(module, adapted):
            taken.update(module.modules())
            weight = _merged(module)
            if weight is not None:
                yield module, weight, module.get_base_layer().bias
        elif type(module) is nn.Linear and _fits(module.weight):
            yield module, module.weight.detach(), module.bias


def _merged(layer: Any) -> Tensor | None:
    """The weight of a linear layer with its adapters added, as a copy; None if it is no sum of products."""
    base = layer.get_base_layer()
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    plain = not layer.merged and not layer.lora_variant and not any(layer.lora_bias[name] for name in active)
    if type(base) is not nn.Linear or not _fits(base.weight) or not plain:
        return None
    weight = base.weight.detach()
    if layer.disable_adapters:
        return weight
    for name in active:
        weight = weight + layer.get_delta_weight(name).detach()
    return weight
