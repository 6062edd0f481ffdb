"""Linear layers in float32 on a CPU by oneDNN, where torch would call MKL, which on AMD's leaves AVX-512 unused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

AVAILABLE: Final = (
    torch.backends.mkldnn.is_available()
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and torch.backends.cpu.get_cpu_capability() == "AVX512"
)
"""Whether this torch has oneDNN's linear layer for this CPU. A property of the machine: a run repeats on it."""


class OneDNNLinears(TorchFunctionMode):
    """Within, `functional.linear` of float32 tensors on the CPU is oneDNN's, forwards and backwards."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is functional.linear and not kwargs and _eligible(args[0], args[1]):
            return _Linear.apply(*args, *(None,) * (3 - len(args)))
        return func(*args, **(kwargs or {}))


def _eligible(x: Tensor, weight: Tensor) -> bool:
    on_cpu = x.device.type == weight.device.type == "cpu" and AVAILABLE
    return on_cpu and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias by the quicker library: x (…, i), weight (o, i) or such a view, bias (o,) → (…, o)."""
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
