#!/usr/bin/env python
"""CPU-seconds to start a local engine over a model of SmolLM2-135M's shape.

    python benchmarks/starting.py [float32|bfloat16]

`comparison` is the part in which the decoder's log-probs are compared with those of the model's own forward.
"""

from __future__ import annotations

import sys

import torch
from parts.measure import machine
from roofline import least
from transformers import LlamaConfig, LlamaForCausalLM

from retcon.engine.local.attention import record_shapes
from retcon.engine.local.decoder import TRIED_IDS, FusedDecoder, compare
from retcon.engine.local.engine import LocalEngine

MAX_LEN = 2048

if __name__ == "__main__":
    torch.set_num_threads(1)
    dtype = sys.argv[1] if len(sys.argv) > 1 else "float32"
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to(getattr(torch, dtype))
    with torch.inference_mode():
        kept = record_shapes(model)
        decoder = FusedDecoder(model, kept, MAX_LEN)
        comparison = least(lambda: compare(decoder, model, TRIED_IDS))
    whole = least(lambda: LocalEngine(model, max_len=MAX_LEN))
    print(f"{machine()}\n{dtype}: engine {whole:.2f}, comparison {comparison:.2f} CPU-s")
