"""The model that a run starts from: the base model in the package, a new one, or any that `locate` finds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from retcon.config.schema import Recipe
from retcon.models.devices import USES, Placement, Use, place
from retcon.models.loading import load_config, load_model
from retcon.models.locating import BASE, SCRATCH, locate
from retcon.models.logits import check_logits
from retcon.models.lora import check_lora

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
