"""Attention over a packed row (see `packing`), for transformers' attention interface.

Keys and values that a group of query heads has in common are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from retcon.engine.local.slabs import attend_by_products, prefers_products
from retcon.train.kernels.packing import Bucket, Packing, Prefix

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "retcon_packed"
HALF = torch.bfloat16, torch.float16
SHORT = 1024
"""Most keys for which bfloat16 attends by products on a CPU: torch's fused kernel takes up to five times as long, but
keeps nothing for the backward, and wins from 2,048 on."""


class _Take(torch.autograd.Function):
    """x[index] with a backward that writes, where torch's adds row by row: `kept` of `index` are distinct (None: all);
    the others, padding, have no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, kept: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, kept)
        ctx.shape = x.shape
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        index, kept = ctx.saved_tensors
        if kept is not None:
            index, grad = index[kept], grad.index_select(0, kept)
        return grad.new_zeros(ctx.shape).index_copy_(0, index, grad), None, None


def packed_attention(
    module: nn.Module,  # noqa: ARG001 - transformers passes it
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - likewise
    *,
    packing: Packing,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend over a packed row: query (1, H, N, D); key, value (1, KV, N, D), H a multiple of KV → (1, N, H, D).

    attention_mask: not used. Other keyword arguments are either part of `packing`, or ruled out by
    `forward.why_not_packed`.
    """
    kind = query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    q, k, v = (x[0].transpose(0, 1).to(dtype) for x in (query, key, value))  # (N, heads, D)
    sizes = [bucket.stop - bucket.start for bucket in packing.buckets]
    parts = zip(q.split(sizes), k.split(sizes), v.split(sizes), strict=True)
    out = [
        _bucket_attention(bucket, part, (k, v), scale=scaling, drop=dropout)
        for bucket, part in zip(packing.buckets, parts, strict=True)
    ]
    return (torch.cat(out) if len(out) > 1 else out[0])[None], None


def _bucket_attention(
    bucket: Bucket, own: Sequence[Tensor], every: Sequence[Tensor], *, scale: float | None, drop: float
) -> Tensor:
    """Attend in one bucket. own: q, k, v of its n tokens, (n, heads, D). every: k, v of all tokens → (n, heads, D)."""
    if bucket.index is not None:
        own = [_Take.apply(x, bucket.index, bucket.kept) for x in own]
    q, k, v = (x.unflatten(0, (bucket.rows, bucket.width)) for x in own)
    prefix = bucket.prefix
    if prefix is not None:
        shared = (_prefix_states(x, prefix).unflatten(0, (prefix.count, -1)) for x in every)
        k, v = (torch.cat([x.index_select(0, prefix.rows), y], 1) for x, y in zip(shared, (k, v), strict=True))
    mask = None if prefix is None else prefix.mask
    out = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scale=scale, drop=drop)
    flat = out.transpose(1, 2).flatten(0, 1)
    return flat if bucket.kept is None else _Take.apply(flat, bucket.kept, None)


def _prefix_states(x: Tensor, prefix: Prefix) -> Tensor:
    """Return the x of all ids in the rows' prefixes. Padding among them has no gradient, as no row sees it."""
    if prefix.distinct:
        taken: Tensor = _Take.apply(x, prefix.index, prefix.kept)
        return taken
    return x.index_select(0, prefix.index)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float | None, drop: float = 0.0) -> Tensor:
    """Return softmax(q kᵀ · scale + mask) v. q: (B, H, T, D); k, v: (B, KV, L, D) → (B, H, T, D).

    mask: (B or 1, 1, T, L), of q's dtype; None: causal, with T = L. scale: None for 1/√D.
    """
    if prefers_products(q) and k.shape[2] <= SHORT and not drop:
        return attend_by_products(q, k, v, mask, q.shape[-1] ** -0.5 if scale is None else scale)
    groups = q.shape[1] // k.shape[1]
    if q.device.type == "cuda" and groups > 1 and (mask is not None or q.dtype not in HALF):
        # With a mask, or in float32, only the slowest of CUDA's kernels knows of groups: it keeps all scores.
        k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
        groups = 1
    return functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, dropout_p=drop, enable_gqa=groups > 1
    )


@contextmanager
def use_packed_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let the model attend by `packed_attention` for a block."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    before = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
