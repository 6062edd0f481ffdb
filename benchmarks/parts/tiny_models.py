"""Tiny random models of all of transformers' causal architectures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

VOCAB, LAYERS, MOST = 128, 2, 5_000_000
SIZES: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "embedding_size", "embedding_dim"), 32),
    **dict.fromkeys(("d_inner", "intermediate_size", "ffn_dim", "n_inner", "d_ff", "dff", "ffn_hidden_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "inner_dim", "lru_width", "attention_hidden_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_blocks"), LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_head_dim", "index_head_dim", "swa_head_dim", "linear_key_head_dim"), 8),
    **dict.fromkeys(("linear_value_head_dim", "mamba_head_dim", "mamba_d_head", "kv_channels"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "index_n_heads"), 4),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "o_lora_rank", "rotary_dim"), 16),
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups", "n_group", "topk_group"), 1),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"), 1),
    **dict.fromkeys(("sliding_window", "attention_window_size", "attention_chunk_size", "window_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "context_length"), 256),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB),
    "num_key_value_heads": 2, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "mamba_d_ssm": 64,
    "mamba_expand": 2, "time_step_rank": 4, "mamba_dt_rank": 4, "word_embed_proj_dim": 32, "index_topk": 64,
    "n_shared_experts": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
"""What each size becomes, by the names that configurations give it."""
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_head_dim": 16},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "reformer": {"axial_pos_embds": False},
    "roc_bert": {"enable_pronunciation": False, "enable_shape": False},
    "xmod": {"default_language": "en_XX"},
}
"""What else some architectures need, by `model_type`."""


def shrink(config_class: type[PretrainedConfig]) -> PretrainedConfig:
    """Return the smallest configuration of the class with all layer kinds. Raises what the class raises."""
    text = config_class().get_text_config(decoder=True)
    return type(text)(**_sizes(text))


def _sizes(config: PretrainedConfig) -> dict[str, Any]:
    known = {name: value for name, value in config.to_dict().items() if not name.startswith("_")}
    taken = inspect.signature(type(config).__init__).parameters
    sizes: dict[str, Any] = {}
    for name in (set(known) | set(taken) | set(getattr(config, "attribute_map", {}))) & set(SIZES):
        value = known.get(name) if name in known else _value(config, name)
        if isinstance(value, int) and not isinstance(value, bool):
            fixed = name in ("vocab_size", "max_position_embeddings")
            sizes[name] = SIZES[name] if fixed else min(SIZES[name], value)
    for number, name in enumerate(("bos_token_id", "pad_token_id", "eos_token_id")):
        if name in known or name in taken:
            sizes[name] = None if known.get(name) is None else number
    if "is_decoder" in known or "is_decoder" in taken:
        sizes["is_decoder"] = True
    if kinds := _layer_kinds(known):
        for count in [n for n in sizes if SIZES.get(n) == LAYERS and "layer" in n]:
            sizes[count] = len(kinds)
        sizes |= {name: kinds for name in LAYER_KINDS if name in known}
    if known.get("num_key_value_heads") == known.get("num_attention_heads", 0):
        sizes["num_key_value_heads"] = 4
    return sizes | SPECIAL.get(config.model_type, {})


def _value(config: PretrainedConfig, name: str) -> object:
    try:
        return getattr(config, name, None)
    except Exception:  # noqa: BLE001 - of layers that differ in it
        return None


LAYER_KINDS = ("layer_types", "layers_block_type", "block_types")


def _layer_kinds(known: Mapping[str, Any]) -> list[str]:
    """One of each kind of layer, in order, two at least."""
    kinds: list[str] = next((known[name] for name in LAYER_KINDS if known.get(name)), [])
    each = list(dict.fromkeys(kinds))
    return each * LAYERS if len(each) == 1 else each


def make(key: str) -> PreTrainedModel:
    """Make a tiny causal LM whose output depends on the whole context.

    Raises ValueError where it would have more than MOST parameters, and what its classes raise.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config, model_class = shrink(CONFIG_MAPPING[key]), getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[key])
    if type(config) in transformers.AutoModelForCausalLM._model_mapping:  # of a composite one, the text model's own
        model_class = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    with torch.device("meta"):
        parameters = sum(p.numel() for p in model_class._from_config(config).parameters())
    if parameters > MOST:
        raise ValueError(f"{parameters / 1e6:,.0f} M parameters")
    torch.manual_seed(0)
    model: PreTrainedModel = model_class._from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model
