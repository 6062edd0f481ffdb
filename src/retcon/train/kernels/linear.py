"""Linear layers in float32 on a CPU by oneDNN, where torch calls MKL, which takes twice as long on AMD's Zen 5 (up to
a quarter longer on Zen 4).

On Intel's it is the other way round for large layers: gradients of weights take oneDNN 1.3 to 3 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from retcon.models.devices import cpu_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AVAILABLE: Final = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
)
"""Whether this torch has oneDNN's linear layer for this CPU. A property of the machine: a run repeats on it."""
MKL_AT_HOME: Final = "Intel" in cpu_name()
LARGE = 300_000
"""Weights of a layer from which torch's own products are the quicker ones on Intel's CPUs. Below, there is less between
the two, and what small models learn stays the same bits."""


@contextmanager
def quick_linears(model: PreTrainedModel) -> Iterator[None]:
    """Within, the linear layers of `model` that are quicker so are computed by `product`, forwards and backwards."""
    plain = (m for m in model.modules() if type(m) is nn.Linear and "forward" not in vars(m))
    layers = [m for m in plain if AVAILABLE and product_for(m.weight) is product]
    for layer in layers:
        vars(layer)["forward"] = partial(_linear, layer)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["forward"]


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    if not _eligible(x, layer.weight):
        return functional.linear(x, layer.weight, layer.bias)
    found: Tensor = _Linear.apply(x, layer.weight, layer.bias)
    return found


def _eligible(x: Tensor, weight: Tensor) -> bool:
    on_cpu = x.device.type == weight.device.type == "cpu" and AVAILABLE
    return on_cpu and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def product_for(weight: Tensor, at_home: bool = MKL_AT_HOME) -> Callable[..., Tensor]:
    """The quicker product for a layer of such a weight, and for its gradients: `product` or torch's own. at_home:
    whether the CPU is one for which MKL is made."""
    return functional.linear if at_home and weight.numel() >= LARGE else product


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias by oneDNN where it can: x (…, i), weight (o, i) or such a view, bias (o,) → (…, o)."""
    if not _eligible(x, weight):
        return functional.linear(x, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        flat = grad.flatten(0, -2)
        return (
            product(grad, weight.t()) if wanted[0] else None,
            product(flat.t(), x.flatten(0, -2).t()) if wanted[1] else None,
            flat.sum(0) if wanted[2] else None,
        )
