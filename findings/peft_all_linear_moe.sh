#!/usr/bin/env bash
# peft x transformers 5: what `target_modules="all-linear"` adapts in a mixture of experts.
#
# One would guess: every torch.nn.Linear but the output layer, in each model, as peft's documentation of LoraConfig says.
# What happens: for models that transformers converts to fused experts "like qwen2_moe", peft replaces the names gate_proj,
# up_proj, down_proj and gate of the targets by the fused parameters. So in DeepSeek-V3 the nn.Linear layers of the first,
# dense, layer and of the shared experts lose their adapters, and the routed experts and the router, which are no
# nn.Linear, get some; Qwen3-MoE gets the latter; Qwen2-MoE itself, whose name that mapping has, gets none of them. peft
# warns that it ignored the ranks of gate_up_proj, and has used them (twice r).
# Why it matters: a training merges, counts or serves other weights than those that learnt, and two models "with LoRA on
# all linear layers" are not trained alike.
# Source: peft/utils/transformers_weight_conversion.py (_convert_peft_config_moe, _resolve_string_target_modules).
# Exits non-zero where any of this has changed.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q "peft==0.21.2" "transformers==5.24.0" "torch==2.13.0" >&2
"$dir/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import importlib.metadata as meta
import warnings

import peft
import torch
from transformers import AutoConfig, AutoModelForCausalLM

print(*(f"{name} {meta.version(name)}" for name in ("peft", "transformers", "torch")))
SIZES = dict(vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=2, moe_intermediate_size=24, num_experts_per_tok=2)
MODELS = {
    "qwen2_moe": dict(num_experts=4, shared_expert_intermediate_size=24),
    "qwen3_moe": dict(num_experts=4),
    "deepseek_v3": dict(n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
                        kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8),
}
found = {}
for kind, more in MODELS.items():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **more))
    head = model.get_output_embeddings()
    linear = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = peft.LoraConfig(r=3, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(model, config).get_base_model()
    layers = {n: m for n, m in adapted.named_modules() if hasattr(m, "get_delta_weight")}
    left = sorted(n.removeprefix("model.layers.") for n in linear - layers.keys())
    tensors = {f"{n.removeprefix('model.layers.').removesuffix('.base_layer')}.{m.parameter_name}": m.r["default"]
               for n, m in layers.items() if hasattr(m, "parameter_name")}
    ignored = any("rank_pattern" in str(one.message) and "ignored" in str(one.message) for one in caught)
    found[kind] = (left, tensors, ignored)
    print(f"{kind}: nn.Linear without adapters: {left}; tensors with adapters, and their rank: {tensors}; "
          f"warned that ranks were ignored: {ignored}")
assert found["qwen2_moe"] == ([], {}, False)
assert found["qwen3_moe"][0] == [] and found["qwen3_moe"][1]["0.mlp.experts.gate_up_proj"] == 6 and found["qwen3_moe"][2]
assert found["deepseek_v3"][0] == [f"{where}.{name}_proj" for where in ("0.mlp", "1.mlp.shared_experts")
                                   for name in ("down", "gate", "up")]
assert found["deepseek_v3"][1] == {"1.mlp.experts.down_proj": 3, "1.mlp.experts.gate_up_proj": 6, "1.mlp.gate.weight": 3}
PY
