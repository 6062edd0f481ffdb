"""Tiny models, as GGUF files and as the Hugging Face folders that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["t h", "th e", "Ġ the", "1 2"]
TOKENS = [*CONTROLS, *LETTERS, "th", "the", "Ġthe", "12"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KINDS: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny(kind: str) -> PreTrainedModel:
    """Two layers of width 32, with random weights and biases, two query heads to a key head."""
    torch.manual_seed(0)
    config, model = KINDS[kind]
    built = model(
        config(
            vocab_size=len(TOKENS),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=128,
            rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
            tie_word_embeddings=kind != "qwen2",
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=2,
        )
    )
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built.eval()


def write_gguf(
    file: Path,
    model: PreTrainedModel,
    *,
    architecture: str | None = None,
    quantised: Sequence[str] = (),
    **fields: Any,
) -> Path:
    """`model` in float32 as llama.cpp's converter writes it. quantised: layers that become Q8_0. fields: metadata to
    set, by name with `__` for dots."""
    gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
    config = model.config
    kind = architecture or config.model_type
    writer = gguf.GGUFWriter(file, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(fields.pop("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(CONTROLS) + [1] * (len(TOKENS) - len(CONTROLS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in fields.items():
        writer.add_string(name.replace("__", "."), value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        part, _, suffix = name.removeprefix("model.layers.").rpartition(".")
        layer, _, inner = part.partition(".")
        place = f"blk.{layer}.{_NAMES[inner]}" if inner in _NAMES else _NAMES[part]
        if inner in quantised:
            kind_of = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"{place}.{suffix}", gguf.quantize(values, kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(f"{place}.{suffix}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
