"""Load the model that a run starts from, and check that it can be trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError
from retcon.models.devices import USES, Placement, Use, place
from retcon.models.loading import load_config, load_model
from retcon.models.locating import SCRATCH, model_folder
from retcon.models.lora import check_lora

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Training computes the logits that it needs from the hidden states and the output layer. Some models scale them.

_MULTIPLIED: Mapping[str, str] = {
    "cohere": "logit_scale", "cohere2": "logit_scale", "cohere2_moe": "logit_scale",
    "falcon_h1": "lm_head_multiplier", "hyperclovax": "logits_scaling",
}  # fmt: skip
_DIVIDED: Mapping[str, str] = dict.fromkeys(
    ("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), "logits_scaling"
)
"""Configuration key of the factor or divisor of logits, by `model_type`."""
TOLERANCE = 1e-4
"""Largest difference of logits by rounding, relative to the largest logit."""
_IDS = 8


def factor(config: PretrainedConfig) -> float:
    """Return what the model multiplies its logits by; 1 if unknown."""
    own = config.get_text_config()
    multiplied, divided = _MULTIPLIED.get(own.model_type, ""), _DIVIDED.get(own.model_type, "")
    return float(getattr(own, multiplied, 1.0) or 1.0) / float(getattr(own, divided, 1.0) or 1.0)


def before_head(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Scale hidden states, (N, d), so that the output layer gives the model's logits."""
    scale = factor(model.config)
    return hidden if scale == 1.0 else hidden * scale


@torch.no_grad()
def check_logits(model: PreTrainedModel, name: object) -> None:
    """Raises CheckpointError if the output layer does not give the model's logits, or they are capped.

    name: of the model, in messages.
    """
    kind = type(model).__name__
    if cap := getattr(model.config.get_text_config(), "final_logit_softcapping", None):
        raise CheckpointError(
            f"{name}: {kind} caps its logits (final_logit_softcapping = {cap}), and such models cannot be trained yet"
        )
    head: Any = model.get_output_embeddings()
    ids = torch.arange(_IDS, device=model.device)[None] % model.config.get_text_config().vocab_size
    expected: Tensor = model(input_ids=ids, use_cache=False).logits
    hidden: Tensor = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    apart = float((head(before_head(model, hidden)) - expected).abs().max() / expected.abs().max())
    if apart > TOLERANCE:
        known = ", ".join(sorted((*_MULTIPLIED, *_DIVIDED)))
        raise CheckpointError(
            f"{name}: the logits of {kind} are not those of its output layer (up to {apart:.2g} of the largest apart), "
            f"and such models cannot be trained yet; factors are known of {known}"
        )


def place_training(recipe: Recipe, folder: Path, uses: Sequence[Use] = USES, *, reference: bool = False) -> Placement:
    """Choose where a training of the model in `folder` computes. uses, reference: see `place`.

    Raises RecipeError for an unavailable device, dtype, attention or adapters, MissingExtra for adapters without peft,
    CheckpointError for a broken configuration.
    """
    config = load_config(folder)
    check_lora(recipe.lora, config, served="rollout_dtype" in uses and getattr(recipe.engine, "lora", False))
    return place(recipe, config, uses, reference=reference)


def move(model: PreTrainedModel, device: str) -> None:
    """Move the model's weights to a device, in place."""
    model.to(torch.device(device))  # type: ignore[arg-type]  # nn.Module.to, wrapped by transformers


def start_model(path: str | Path, seed: int, attention: str | None = None, device: str = "cpu") -> PreTrainedModel:
    """Load the model to start from in float32, in evaluation mode.

    `scratch` is the base model's configuration with fresh weights. attention: see `load_model`. Raises CheckpointError
    as `check_logits` does.
    """
    from transformers import AutoModelForCausalLM

    folder = model_folder(path)
    if str(path) == SCRATCH:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                load_config(folder), attn_implementation=attention
            )
    else:
        model = load_model(folder, attention=attention)
    model.float().eval()
    check_logits(model, folder)
    move(model, device)
    return model


def deepen(source: Path, folder: Path) -> None:
    """Write the model in `source` into `folder` with an idle copy behind each of its layers.

    This is block expansion (LLaMA Pro, arXiv 2401.02415, section 3.2). Raises OSError, SafetensorError.
    """
    made = {}
    for name, value in load_file(source / "model.safetensors").items():
        outer, layer, rest = name.partition("layers.")
        number, _, part = rest.partition(".")
        first = f"{outer}{layer}{2 * int(number)}.{part}" if layer else name
        made[first] = value
        if layer:  # a layer's outputs, which are zero in its idle copy
            idle = part.endswith(("o_proj.weight", "down_proj.weight"))
            made[f"{outer}{layer}{2 * int(number) + 1}.{part}"] = 0 * value if idle else value
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] *= 2
    config["layer_types"] = [kind for kind in config["layer_types"] for _ in range(2)]
    for file in source.iterdir():
        shutil.copyfile(file, folder / file.name)
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
