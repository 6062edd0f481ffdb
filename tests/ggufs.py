"""Tiny models, as GGUF files and as the Hugging Face folders that they stand for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

gguf = pytest.importorskip("gguf", reason="needs the package gguf, of the extra [gguf]")
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["t h", "th e", "Ġ the", "1 2"]
TOKENS = [*CONTROLS, *LETTERS, "th", "the", "Ġthe", "12"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
KINDS: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {"tie_word_embeddings": False}, "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "phi3": {}, "gemma2": {"sliding_window": 8}, "gemma3_text": {"sliding_window": 8},
    "starcoder2": {"use_bias": True}, "nemotron": {"hidden_act": "relu2"}, "stablelm": {},
}  # fmt: skip
"""transformers' kinds of models, each with what its configuration needs besides."""
NAMES = {"qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
"""llama.cpp's names of architectures where they are others."""


def tiny(kind: str, **settings: Any) -> PreTrainedModel:
    """Two layers of width 32, with random weights and biases, two query heads to a key head."""
    torch.manual_seed(0)
    about: dict[str, Any] = {
        "vocab_size": len(TOKENS), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128,
        "rope_theta": 50000.0, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
    }  # fmt: skip
    built: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **about | KINDS[kind] | settings), dtype=torch.float32
    )
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return built.eval()


def _placed(model: PreTrainedModel, kind: str) -> Iterator[tuple[str, Any]]:
    """Names and values in llama.cpp's order, as its converter leaves them."""
    config = model.config
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    places = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):  # rotated pairs are neighbours
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if kind in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
            values = values + 1
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            for part, half in zip(("gate", "up"), np.split(values, 2, axis=1), strict=True):
                yield f"blk.{layer}.ffn_{part}_exps.weight", half
            continue
        place = places.get_name(name, try_suffixes=(".weight", ".bias"))
        assert place is not None, name
        yield place if place.endswith((".weight", ".bias")) else f"{place}.weight", values


def write_gguf(
    file: Path,
    model: PreTrainedModel,
    *,
    architecture: str | None = None,
    quantised: Sequence[str] = (),
    tensors: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Path:
    """`model` in float32 as llama.cpp's converter writes it.

    quantised: llama.cpp's names of layers that become Q8_0. tensors: further ones. fields: metadata to set, by name,
    with `__` for dots.
    """
    config = model.config
    kind = architecture or NAMES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(file, kind)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.hidden_size // config.num_attention_heads)
    rope = getattr(config, "rope_parameters", {})
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    size = config.hidden_size // config.num_attention_heads
    writer.add_rope_dimension_count(int(size * rope.get("partial_rotary_factor", 1)))
    for name in ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps"):
        if (epsilon := getattr(config, name, None)) is not None:
            rms = name == "rms_norm_eps" or kind == "nemotron"
            (writer.add_layer_norm_rms_eps if rms else writer.add_layer_norm_eps)(epsilon)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if experts := getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_tokenizer_model(fields.pop("tokenizer__ggml__model", "gpt2"))
    writer.add_tokenizer_pre(fields.pop("pre", "smollm"))
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(CONTROLS) + [1] * (len(TOKENS) - len(CONTROLS)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, value in fields.items():
        writer.add_key_value(name.replace("__", "."), value, gguf.GGUFValueType.get_type(value))
    for place, values in _placed(model, NAMES.get(config.model_type, config.model_type)):
        if place.split(".")[-2] in quantised:
            kind_of = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(place, gguf.quantize(values, kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(place, np.ascontiguousarray(values))
    for place, values in (tensors or {}).items():
        writer.add_tensor(place, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
