"""The model that a run starts from: the base model in the package, a new one, or any that `locate` finds."""

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
from retcon.models.locating import BASE, SCRATCH, locate
from retcon.models.lora import check_lora

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# What a model makes of its output layer's products before they are its logits, as far as training can follow it.
#
# Training never has all logits, and computes those that it needs from the hidden states and the output layer.

_MULTIPLIED: Mapping[str, str] = {
    "cohere": "logit_scale", "cohere2": "logit_scale", "cohere2_moe": "logit_scale",
    "falcon_h1": "lm_head_multiplier", "hyperclovax": "logits_scaling",
}  # fmt: skip
_DIVIDED: Mapping[str, str] = dict.fromkeys(
    ("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared"), "logits_scaling"
)
"""By `model_type`: the key of what logits are multiplied or divided by."""
TOLERANCE = 1e-4
"""How far logits may be off, relative to the largest: rounding, and no more."""
_IDS = 8


def factor(config: PretrainedConfig) -> float:
    """What the model multiplies its logits by; 1 of one that is not known to."""
    own = config.get_text_config()
    multiplied, divided = _MULTIPLIED.get(own.model_type, ""), _DIVIDED.get(own.model_type, "")
    return float(getattr(own, multiplied, 1.0) or 1.0) / float(getattr(own, divided, 1.0) or 1.0)


def before_head(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The hidden states, (N, d), such that the output layer alone makes the model's logits of them."""
    scale = factor(model.config)
    return hidden if scale == 1.0 else hidden * scale


@torch.no_grad()
def check_logits(model: PreTrainedModel, name: object) -> None:
    """Computes the logits of a few ids both ways. name: of the model, in messages.

    Raises CheckpointError where they differ, or are capped, which small logits do not show.
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


def model_folder(path: str | Path) -> Path:
    """Where configuration and tokenizer of a run's model are: of `scratch` the base model's, else as `locate` finds it.

    Raises CheckpointError, with the nearest name or the command that fetches it, where there is no such model.
    """
    return BASE if str(path) == SCRATCH else locate(path)


def place_training(recipe: Recipe, folder: Path, uses: Sequence[Use] = USES, *, reference: bool = False) -> Placement:
    """Where a training of the model in `folder` computes; all that can be refused before work starts, is. uses,
    reference: as in `place`.

    Raises RecipeError for a device, dtype, attention or adapters that are unavailable, MissingExtra for adapters
    without peft, CheckpointError for a broken configuration.
    """
    config = load_config(folder)
    check_lora(recipe.lora, config, served="rollout_dtype" in uses and getattr(recipe.engine, "lora", False))
    return place(recipe, config, uses, reference=reference)


def move(model: PreTrainedModel, device: str) -> None:
    """Its weights to a device, in place."""
    model.to(torch.device(device))  # type: ignore[arg-type]  # nn.Module.to, wrapped by transformers


def start_model(path: str | Path, seed: int, attention: str | None = None, device: str = "cpu") -> PreTrainedModel:
    """The model to start from, fp32, in evaluation mode. `scratch`: the base model's configuration, fresh weights.
    attention: as in `load_model`.

    Raises CheckpointError for a model whose logits are not those of its output layer, times a factor that is known.
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
    """Write the model in `source`, with an idle copy behind each of its layers, into `folder`: block expansion (LLaMA
    Pro, arXiv 2401.02415, section 3.2). Raises OSError, SafetensorError."""
    made = {}
    for name, value in load_file(source / "model.safetensors").items():
        outer, layer, rest = name.partition("layers.")
        number, _, part = rest.partition(".")
        first = f"{outer}{layer}{2 * int(number)}.{part}" if layer else name
        made[first] = value
        if layer:  # what a layer adds to its input goes through these two
            idle = part.endswith(("o_proj.weight", "down_proj.weight"))
            made[f"{outer}{layer}{2 * int(number) + 1}.{part}"] = 0 * value if idle else value
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["num_hidden_layers"] *= 2
    config["layer_types"] = [kind for kind in config["layer_types"] for _ in range(2)]
    for file in source.iterdir():
        shutil.copyfile(file, folder / file.name)
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
