#!/usr/bin/env python
"""What this machine can do at most with one thread, measured: bytes read from memory, and matrix products.

    python benchmarks/roofline.py [float32|bfloat16]

A step of decoding cannot take less CPU time than `Roof.step`: the linear layers read every weight once and multiply
it once a row, whichever takes longer; attention reads all keys and values.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from parts.measure import machine
from transformers import PreTrainedModel

READ, SIDE = 2**28, 2048
"""Bytes that are read, far more than a cache holds, and the side of the matrices."""


@dataclass(frozen=True, slots=True)
class Roof:
    """bytes: read from memory, and flops: of products in dtype, in a CPU-second of one thread."""

    bytes: float
    flops: float
    dtype: torch.dtype

    def step(self, model: PreTrainedModel, rows: int, length: float) -> float:
        """Return a decoding step's least CPU-seconds. It decodes `rows` tokens, each after `length` others."""
        config = model.config
        weights = sum(p.numel() for p in model.parameters())  # tied ones once, as the output layer reads them
        kept = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
        size = self.dtype.itemsize
        read = size * weights / self.bytes
        return max(read, 2 * weights * rows / self.flops) + size * kept * rows * length / self.bytes

    def feed(self, model: PreTrainedModel, tokens: int) -> float:
        """Return the least CPU-seconds of a prefill of `tokens` without logits."""
        embedding = model.get_input_embeddings().weight
        weights = sum(p.numel() for p in model.parameters()) - embedding.numel()
        return 2 * weights * tokens / self.flops


def measure_roof(dtype: torch.dtype = torch.float32) -> Roof:
    """The best of several tries; products by torch's own library and by oneDNN, whichever is quicker."""
    data, (a, b) = torch.ones(READ // 4), torch.randn(2, SIDE, SIDE).to(dtype)
    ways = [lambda: a @ b]
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        packed = torch.ops.mkldnn._reorder_linear_weight(b, None)
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], ""))
    return Roof(READ / least(data.sum), 2 * SIDE**3 / min(map(least, ways)), dtype)


def least(run: Callable[[], object], tries: int = 7) -> float:
    """CPU-seconds of the quickest of several runs."""
    took = []
    for _ in range(tries):
        began = time.process_time()
        run()
        took.append(time.process_time() - began)
    return min(took)


if __name__ == "__main__":
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "float32"
    roof = measure_roof(getattr(torch, name))
    print(f"{machine()}\n{roof.bytes / 1e9:.1f} GB/s read, {roof.flops / 1e9:.0f} GFLOP/s in {name}, one thread")
