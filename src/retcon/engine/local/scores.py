"""Attention of many queries by plain matrix products, for bfloat16 on CPUs, where torch's fused kernel is slow.

For 64 to 2,048 tokens it takes two to four times as long.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

BLOCK = 128
"""Queries of a row at a time: their scores stay in the cache, and of later keys little is computed in vain."""
SCORES = 2**20
"""Scores at a time, of several rows where they are short."""


def quicker(x: Tensor) -> bool:
    """Whether products are quicker than torch's fused attention for tensors like x."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16


def attend_by_products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(q kᵀ · scale + mask) v. q: (B, H, T, D); k: (B, KV, L, D); v: (B, KV, L, E) → (B, H, T, E).

    mask: (B or 1, 1, T, L), of q's dtype; None: causal, with T = L. Scores have q's dtype; the softmax is computed in
    float32.
    """
    some = max(1, SCORES // (q.shape[1] * BLOCK * k.shape[2]))
    if len(q) <= some:
        return _attend(q, k, v, mask, scale)
    masks = [mask] * -(-len(q) // some) if mask is None or len(mask) == 1 else mask.split(some)
    return torch.cat([_attend(*x, scale) for x in zip(q.split(some), k.split(some), v.split(some), masks, strict=True)])


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    batch, heads, width, size = q.shape
    shared, keys = k.shape[1:3]
    groups = heads // shared
    q = q * scale
    parts = []
    for first in range(0, width, BLOCK):
        last = min(first + BLOCK, width)
        count, seen = last - first, last if mask is None else keys
        queries = q[:, :, first:last].reshape(batch * shared, groups * count, size)
        some_k, some_v = (x[:, :, :seen].reshape(batch * shared, seen, x.shape[-1]) for x in (k, v))
        scores = torch.bmm(queries, some_k.transpose(1, 2)).view(batch, shared, groups, count, seen)
        if mask is None:
            scores[..., first:].add_(_later(q.dtype)[:count, :count])
        else:
            scores.add_(mask[:, :, None, first:last])
        weights = scores.softmax(-1).view(batch * shared, groups * count, seen)
        parts.append(torch.bmm(weights, some_v).view(batch, heads, count, -1))
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


@cache
def _later(dtype: torch.dtype) -> Tensor:
    """(BLOCK, BLOCK): what hides from each query the keys after its own."""
    return torch.full((BLOCK, BLOCK), -torch.inf, dtype=dtype).triu_(1)
