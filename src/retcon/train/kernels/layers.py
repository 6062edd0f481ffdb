"""Quick CPU layers: float32 linear layers by oneDNN, RMS norms, checkpointing.

torch calls MKL, which takes twice as long on AMD's Zen 5 (up to a quarter longer on Zen 4). On Intel's CPUs it is the
other way round for large layers: gradients of weights take oneDNN 1.3 to 3 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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
"""Weights of a layer from which torch's own products are the quicker ones on Intel's CPUs. Below, the two differ less,
and small models keep the bits that they learnt before."""


@contextmanager
def quick_linears(model: PreTrainedModel) -> Iterator[None]:
    """Compute linear layers by `product` for a block, where that is quicker."""
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
    found: Tensor = _Linear.apply(x.flatten(0, -2), layer.weight, layer.bias)
    return found.view(*x.shape[:-1], -1)  # out here, as some models change the result in place


def _eligible(x: Tensor, weight: Tensor) -> bool:
    on_cpu = x.device.type == weight.device.type == "cpu" and AVAILABLE
    return on_cpu and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def product_for(weight: Tensor, at_home: bool = MKL_AT_HOME) -> Callable[..., Tensor]:
    """Return the quicker product for a weight and its gradients: `product` or torch's own. at_home: whether MKL is made
    for this CPU."""
    return functional.linear if at_home and weight.numel() >= LARGE else product


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weightᵀ + bias, by oneDNN if possible: x (…, i), weight (o, i) or such a view, bias (o,) → (…, o)."""
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


@contextmanager
def quick_norms(model: PreTrainedModel) -> Iterator[None]:
    """Compute plain RMS norms in one function for a block, in float32.

    Operation by operation, as in transformers, weight · x / √(mean(x²) + variance_epsilon) is a tenth of a small
    model's update on a CPU.
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
    """Return whether a module is a plain RMS norm, by name, parts and an example: some multiply by 1 + weight."""
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


@contextmanager
def checkpoint_layers(model: PreTrainedModel) -> Iterator[None]:
    """Checkpoint activations for a block: layers keep their inputs alone.

    They are computed again in the backward. transformers does so in layers in training mode, which an update of
    reinforcement learning avoids for dropout: the layers are put into that mode, their modules are not. Raises
    ValueError for a model that transformers cannot checkpoint, or whose layers themselves would then drop out.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(f"{type(model).__name__} has no activation checkpointing: turn compute.checkpointing off")
    if any(not layer.training and _drops_out(layer) for layer in layers):
        raise ValueError(f"{type(model).__name__} has dropout that checkpointing would turn on: set it to 0 in the "
                         "model's config.json, or turn compute.checkpointing off")  # fmt: skip
    modes = [layer.training for layer in layers]
    for layer in layers:
        layer.training, layer.gradient_checkpointing = True, True
        vars(layer)["_gradient_checkpointing_func"] = partial(checkpoint, use_reentrant=False)
    try:
        yield
    finally:
        for layer, mode in zip(layers, modes, strict=True):
            layer.training, layer.gradient_checkpointing = mode, False


def _drops_out(layer: nn.Module) -> bool:
    """Return whether the layer itself has a dropout rate; modules in it keep their mode."""
    return any("dropout" in name and isinstance(value, float) and value > 0 for name, value in vars(layer).items())
