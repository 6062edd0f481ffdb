#!/usr/bin/env bash
# One would guess: after model.save_pretrained(folder) the folder holds that model, whichever public loader reads it.
# What happens: where the folder already held the model as one file, and it is now saved in shards, transformers writes the
# shards and their index and leaves model.safetensors as it was. Its own from_pretrained then loads the old file, without
# a word; huggingface_hub's load_torch_model goes by the index and loads the new one (and so does vLLM, which drops every
# *.safetensors that the index does not name: filter_duplicate_safetensors_files in its weight_utils.py).
# Why it matters: the trainer (transformers) and the server that samples for it (vLLM) then have different weights, and the
# log-probs of the rollouts are another policy's. Source: transformers' modeling_utils.py, save_pretrained removes only
# shards of the same name pattern, and from_pretrained looks for the single file first.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.11}" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet install \
    torch==2.13.0 transformers==5.24.0 huggingface_hub==2.4.0 safetensors==0.8.0
cd "$folder"
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PY' 2>/dev/null
import os

import huggingface_hub
import torch
import transformers
from huggingface_hub import load_torch_model
from transformers import AutoModelForCausalLM, LlamaConfig

print(f"transformers {transformers.__version__}, huggingface_hub {huggingface_hub.__version__}")
config = LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
model = AutoModelForCausalLM.from_config(config)
model.save_pretrained("model")
old = model.lm_head.weight.detach().clone()
with torch.no_grad():
    model.lm_head.weight.add_(1)
model.save_pretrained("model", max_shard_size="20KB")
new = model.lm_head.weight.detach()
print("files:", *sorted(name for name in os.listdir("model") if "safetensors" in name))


def which(loaded):
    return "new" if torch.equal(loaded.lm_head.weight, new) else "old" if torch.equal(loaded.lm_head.weight, old) else "?"


by_transformers = which(AutoModelForCausalLM.from_pretrained("model"))
by_hub = AutoModelForCausalLM.from_config(config)
load_torch_model(by_hub, "model")
print(f"saved last: new; transformers loads: {by_transformers}; huggingface_hub loads: {which(by_hub)}")
raise SystemExit((by_transformers, which(by_hub)) != ("old", "new"))
PY
