#!/usr/bin/env bash
# transformers' cache x recurrent models: a history that is continued by several ids at once.
#
# One would guess: a model's own cache, handed back with the next ids, gives the logits of one forward over all of them, by
# however many ids it is continued. So it is with attention, and with Mamba2, Qwen3-Next and LFM2 (for Mamba2 and the hybrids
# with its layers this was mended in transformers' pull requests 46084 and 46741, May and June 2026).
# What happens: Mamba, Falcon-Mamba and Jamba use the cached state only where exactly one id comes; of two or more, the
# recurrent state begins at zero again. There is no error and no warning; the cache's length is right; generate() is right,
# which goes on by one id. Log-probs differ by whole nats.
# Why it matters: in a rollout with tools each observation is several ids on a kept cache, and so are a shared prompt's
# continuations and a draft's verification. Sampled and scored log-probs are then those of a model that forgot the history.
# Source: models/{mamba,falcon_mamba,jamba}/modeling_*.py: `if recurrent_state is not None and seq_len == 1`, else the scan
# without an initial state.
# Exits non-zero where any of this has changed.
set -eu
dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install -q "transformers==5.23.0" "torch==2.13.0" >&2
"$dir/venv/bin/python" -W ignore - 2>/dev/null <<'PY'
import importlib.metadata as meta

import torch
from transformers import AutoConfig, AutoModelForCausalLM

print(*(f"{name} {meta.version(name)}" for name in ("transformers", "torch")))
ATTENTION = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
MODELS = {
    "llama": ATTENTION,
    "mamba2": dict(state_size=8, num_heads=8, head_dim=8, n_groups=1),
    "lfm2": dict(layer_types=["conv", "full_attention"], **ATTENTION),
    "mamba": dict(state_size=8),
    "falcon_mamba": dict(state_size=8),
    "jamba": dict(attn_layer_period=2, attn_layer_offset=1, num_experts=2, mamba_d_state=8, **ATTENTION),
}
WRONG = {"mamba", "falcon_mamba", "jamba"}
for kind, more in MODELS.items():
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=64, hidden_size=32, num_hidden_layers=2, pad_token_id=0, bos_token_id=1,
                                  eos_token_id=2, **more)
    model = AutoModelForCausalLM.from_config(config).eval()
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.3)
    ids = torch.randint(3, 64, (1, 16))

    def continued(parts):
        kept, logits = {}, []
        for part in ids.split(parts, dim=1):
            out = model(input_ids=part, use_cache=True, **kept)
            name = next(n for n in ("past_key_values", "cache_params") if out.get(n) is not None)
            kept = {name: out[name]}
            logits.append(out.logits)
        return torch.cat(logits, dim=1).log_softmax(-1)

    with torch.inference_mode():
        whole = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
        one = (continued([8] + [1] * 8) - whole).abs().max().item()
        several = (continued([8, 8]) - whole).abs().max().item()
    print(f"{kind}: largest difference of log-probs from one forward: by one id {one:.4f}, by eight {several:.4f} nats")
    assert one < 1e-3, kind
    assert (several > 0.1) == (kind in WRONG), kind
PY
