"""Root mean square norms (arXiv 1910.07467) in few passes over the data, for the time of an update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@contextmanager
def quick_norms(model: PreTrainedModel) -> Iterator[None]:
    """Within, the norms of `model` that are weight · x / √(mean(x²) + variance_epsilon) are computed here, in float32.

    Written out operation by operation, as transformers has them, they are a tenth of a small model's update on a CPU.
    """
    norms = [m for m in model.modules() if _is_plain(m)]
    for norm in norms:
        vars(norm)["forward"] = partial(_norm, norm)
    try:
        yield
    finally:
        for norm in norms:
            del vars(norm)["forward"]


def _is_plain(module: nn.Module) -> bool:
    """By its name and its parts, and by what it makes of an example: some multiply by 1 + weight."""
    if not type(module).__name__.endswith("RMSNorm") or not hasattr(module, "variance_epsilon"):
        return False
    if "forward" in vars(module) or [name for name, _ in module.named_parameters()] != ["weight"]:
        return False
    weight: Tensor = module.get_parameter("weight")
    with torch.no_grad(), torch.autocast(weight.device.type, enabled=False):
        example = torch.linspace(-2, 3, len(weight), dtype=weight.dtype, device=weight.device)
        return torch.allclose(module(example), _norm(module, example), rtol=1e-3, atol=1e-3)


def _norm(module: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = _RMSNorm.apply(x, module.weight, module.variance_epsilon)
    return found


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.to(weight.dtype)
        scale = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        found: Tensor = (wide * scale).mul_(weight)
        return found

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        normed = x.to(weight.dtype) * scale
        product = (grad * normed).flatten(0, -2)
        mean = torch.mv(product, weight).view(scale.shape).div_(x.shape[-1])
        of_x = torch.addcmul(grad * weight, normed, mean, value=-1).mul_(scale).to(x.dtype)
        return of_x, product.sum(0) if ctx.needs_input_grad[1] else None, None
