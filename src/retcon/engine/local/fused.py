"""Fused forward of common model families, with fewer and quicker operations.

It computes what transformers' modules compute, from fused weights (queries, keys and values in one product; gate and up
in another), which leaves a GPU half the kernels to start, and packs for oneDNN on CPUs. There its products in float32
are up to twice as quick as torch's own on CPUs that are not Intel's; in bfloat16 packing makes products of a few rows
up to twice as quick on CPUs that have instructions for it. The price is a second copy of the linear layers, on a GPU of
the fused ones, made anew when the weights change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, silu

from retcon.engine.local.attention import ForwardPlan
from retcon.engine.local.slabs import free_memory
from retcon.models.devices import cpu_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ONEDNN: Final = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this torch has oneDNN's linear layer over packed weights."""
PACKED: Final = {torch.float32: ONEDNN, torch.bfloat16: ONEDNN and torch.ops.mkldnn._is_mkldnn_bf16_supported()}
"""Whether oneDNN takes weights of a dtype on this CPU."""
MKL_SLOW: Final = torch.backends.cpu.get_cpu_capability() == "AVX512" and "Intel" not in cpu_name()
"""Whether MKL's products in float32 take twice as long as oneDNN's."""
SMALL: Final = 2**17 if torch.backends.mkl.is_available() and not MKL_SLOW else 0
"""Weights of a product in float32 up to which torch's own, by MKL, is quicker with one thread: it costs a fifth to
call. With more threads its result for a row depends on the batch, up to 27 rows with 16 threads."""
TOGETHER = 512
"""Tokens whose widest states are computed together on a CPU: more leave the cache, and need new pages each time. A
forward of more tokens has a multiple of 128, so that no few are left over."""
DEVICES = ("cpu", "cuda")
SIDE_BY_SIDE = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
"""Layers whose weights are copied."""


class Product:
    """Fused linear layers of one input: x (N, in) → (N, sum of out)."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self._layers = layers
        self._weight, self._packed = torch.empty(0), False
        self._bias: Tensor | None = None
        self.refresh()

    def refresh(self) -> None:
        biases = [layer.bias.detach() for layer in self._layers if layer.bias is not None]
        weight = concatenate([layer.weight.detach() for layer in self._layers], None if self._packed else self._weight)
        self._bias = concatenate(biases, self._bias) if biases else None
        small = weight.dtype is torch.float32 and weight.numel() <= SMALL and torch.get_num_threads() == 1
        self._packed = weight.device.type == "cpu" and PACKED.get(weight.dtype, False) and not small
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self._packed else weight

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        return sum(layer.out_features for layer in self._layers), self._layers[0].in_features

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return found
        return linear(x, self._weight, self._bias)


class Norm:
    """RMS norm (arXiv 1910.07467) of x (..., D): weight · x / √(mean(x²) + ε).

    heads: number of its heads, x (..., heads, D); several such norms, each with its own, are computed together.
    """

    def __init__(self, *parts: tuple[Any, int | None]) -> None:
        self._parts = parts
        self._weight = torch.empty(0)
        self.refresh()

    def refresh(self) -> None:
        first, heads = self._parts[0]
        weights = [norm.weight.detach() if n is None else norm.weight.detach().expand(n, -1) for norm, n in self._parts]
        self._epsilon: float = first.variance_epsilon
        self._weight = weights[0] if heads is None else concatenate(weights, self._weight)
        size = self._weight.shape[-1]
        self._size = (size,)
        # In float32 as x · (weight · √D) / √(Σx² + D · ε), which is four operations where torch's own are six.
        apart = self._weight.device.type == "cpu" and self._weight.dtype is torch.float32
        self._least = torch.tensor((size * self._epsilon) ** 0.5) if apart else None
        self._scaled = self._weight * size**0.5 if apart else self._weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._least is None:
            if self._weight.ndim == 1:
                return rms_norm(x, self._size, self._weight, self._epsilon)
            return rms_norm(x, self._size, None, self._epsilon) * self._weight
        return x.div(torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot(self._least)).mul_(self._scaled)


def concatenate(parts: list[Tensor], before: Tensor | None) -> Tensor:
    """Concatenate parts, in the memory of `before` where it fits: recorded graphs read it there (see `graphs`). A
    single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    with torch.inference_mode():  # where what was made in it may be written to
        if before is None or (before.shape, before.dtype, before.device) != (shape, parts[0].dtype, parts[0].device):
            return torch.cat(parts)
        return torch.cat(parts, out=before)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. heads, shared: H and KV."""

    index: int
    heads: int
    shared: int
    size: int
    scale: float
    norm: Norm
    inputs: Product
    head_norm: Norm | None
    output: Product
    mlp_norm: Norm
    gate_up: Product
    down: Product

    def __call__(self, x: Tensor, plan: ForwardPlan, cos: Tensor, sin: Tensor) -> Tensor:
        count = self.heads + self.shared
        parts = [self.inputs(self.norm(some)) for some in _split(x)]
        states = (torch.cat(parts) if len(parts) > 1 else parts[0]).view(len(x), count + self.shared, self.size)
        rotated = states[:, :count]
        if self.head_norm is not None:
            rotated = self.head_norm(rotated)
        # sin has the sign of rotate_half in it
        rotated = torch.addcmul(rotated * cos, rotated.roll(self.size // 2, -1), sin)
        attended = plan.attend(
            self.index, rotated[:, : self.heads], rotated[:, self.heads :], states[:, count:], self.scale
        )
        x = x.add_(self.output(attended.reshape(len(x), -1)))
        for some in _split(x):
            gate_up = self.gate_up(self.mlp_norm(some))
            width = gate_up.shape[-1] // 2
            some.add_(self.down(silu(gate_up[:, :width]).mul_(gate_up[:, width:])))
        return x


class FusedForward:
    """Fused forward of a model of FAMILIES (see `why_unsupported`).

    Call `refresh` after a change of the weights. head: the output layer.
    """

    def __init__(self, model: PreTrainedModel, max_len: int) -> None:
        inner: Any = model.model
        self._embedding: Tensor = inner.embed_tokens.weight
        self._norm = Norm((inner.norm, None))
        self.head = Product([model.lm_head])
        self._layers = [_layer(n, module) for n, module in enumerate(inner.layers)]
        positions = torch.arange(max_len, device=model.device)[None]
        cos, sin = inner.rotary_emb(self._embedding, positions)
        half = cos.shape[-1] // 2
        self._cos = cos[0][:, None].contiguous()
        self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None].contiguous()

    def __call__(self, plan: ForwardPlan) -> Tensor:
        """Return the last states, (K, W), of the plan's kept ids, and store its keys and values."""
        x = embedding(plan.ids, self._embedding)
        cos, sin = self._cos.index_select(0, plan.positions), self._sin.index_select(0, plan.positions)
        for layer in self._layers:
            x = layer(x, plan, cos, sin)
        x = x[: len(plan.keep)] if plan.whole else x.index_select(0, plan.keep)
        return self._norm(x)

    @property
    def products(self) -> list[Product]:
        return [self.head, *(p for n in self._layers for p in (n.inputs, n.output, n.gate_up, n.down))]

    def refresh(self) -> None:
        """Lay the weights out anew."""
        for part in (*self.products, self._norm, *(p for n in self._layers for p in (n.norm, n.head_norm, n.mlp_norm))):
            if part is not None:
                part.refresh()


def why_unsupported(model: PreTrainedModel) -> str | None:
    """Return why the model cannot be computed here, None if it can."""
    name = type(model).__name__
    if model.device.type not in DEVICES:
        return f"fused decoding supports CPUs and CUDA, and the model is on {model.device.type}"
    if name not in FAMILIES:
        return f"fused decoding does not support {name}"
    plain = all(type(m) is nn.Linear for n, m in model.named_modules() if n.endswith(("_proj", "lm_head")))
    if not plain:
        return "the model has other modules where linear layers belong"
    return "the model has hooks" if any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()) else None


def needed_memory(model: PreTrainedModel, reserved: int) -> tuple[int, int]:
    """Return the bytes of the weights' copy, and the free bytes. reserved: bytes of a GPU that others have yet to
    allocate; a CPU's need includes some to spare."""
    free = free_memory(model.device)
    if model.device.type == "cpu":
        return 4 * sum(p.numel() * p.element_size() for p in model.parameters()), free
    return copied_parameters(model) * model.dtype.itemsize, free - reserved


def copied_parameters(model: PreTrainedModel) -> int:
    """Count the parameters copied on a GPU; 0 for other families."""
    known = type(model).__name__ in FAMILIES
    parameters = model.named_parameters() if known else ()
    return sum(p.numel() for n, p in parameters if n.rpartition(".")[0].endswith(SIDE_BY_SIDE))


def _layer(index: int, module: Any) -> Layer:
    attention, mlp = module.self_attn, module.mlp
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    size = attention.head_dim
    heads, shared = query.out_features // size, key.out_features // size
    normed = hasattr(attention, "q_norm")
    return Layer(
        index=index,
        heads=heads,
        shared=shared,
        size=size,
        scale=attention.scaling,
        norm=Norm((module.input_layernorm, None)),
        inputs=Product([query, key, value]),
        head_norm=Norm((attention.q_norm, heads), (attention.k_norm, shared)) if normed else None,
        output=Product([attention.o_proj]),
        mlp_norm=Norm((module.post_attention_layernorm, None)),
        gate_up=Product([mlp.gate_proj, mlp.up_proj]),
        down=Product([mlp.down_proj]),
    )


def _split(x: Tensor) -> Sequence[Tensor]:
    """Split x (N, W) into parts of TOGETHER tokens; a GPU takes all at once."""
    return (x,) if len(x) <= TOGETHER or x.device.type != "cpu" else x.split(TOGETHER)
