"""LoRA adapters, with peft, which is imported only for them."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from retcon.config.schema import ALL_LINEAR, LoraSection
from retcon.core.errors import CheckpointError, MissingExtra, RecipeError, nearest
from retcon.core.installing import how_to_install
from retcon.core.seeds import derive
from retcon.models.loading import UNUSABLE, empty_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
NAME = "default"  # peft's, of a model's only adapter
_BARE, _BARE_IN = ("out_proj", "conv1d"), ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Layers whose weights Mamba's kernels take without their adapters, so that peft refuses them, and the models."""


class Adapter:
    """Low-rank adapters (arXiv 2106.09685), added to `model` in place.

    A linear layer W x becomes W x + (α / r) B A x, and only A (r, in), random from `seed`, and B (out, r), zeros at
    first, are trained. Raises MissingExtra without peft.
    """

    def __init__(self, model: PreTrainedModel, section: LoraSection, *, seed: int) -> None:
        peft = _peft()
        from transformers.pytorch_utils import Conv1D

        kind = model.config.model_type
        config = peft.LoraConfig(
            r=section.rank,
            lora_alpha=section.alpha,
            lora_dropout=section.dropout,
            target_modules=ALL_LINEAR if ALL_LINEAR in section.targets else list(section.targets),
            exclude_modules=list(_BARE) if ALL_LINEAR in section.targets and kind in _BARE_IN else None,
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft 0.21 uses deprecated attributes of transformers 5, and warns of its own rank patterns for experts.
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "The following .*_pattern keys", RuntimeWarning)
            torch.manual_seed(derive("lora", seed))
            self._model = peft.get_peft_model(model, config, low_cpu_mem_usage=model.device.type == "meta")
        self._model.eval()
        self.rank = section.rank

    def save(self, folder: Path) -> None:
        """Write the adapters into `folder` in peft's format, for `PeftModel.from_pretrained`."""
        tensors = _peft().get_peft_model_state_dict(self._model, save_embedding_layers=False)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
        config = copy.copy(self._model.peft_config[NAME])
        config.inference_mode = True
        for key in ("target_modules", "target_parameters"):  # sets, whose order differs between runs
            if found := getattr(config, key):
                setattr(config, key, sorted(found))
        config.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load adapters that `save` wrote. Raises CheckpointError if they cannot be read or do not fit."""
        peft = _peft()
        try:
            tensors = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / WEIGHTS} cannot be read: {error}") from error
        wanted = peft.get_peft_model_state_dict(self._model, save_embedding_layers=False)
        if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in wanted.items()}:
            raise CheckpointError(f"{folder / WEIGHTS} holds adapters of other layers or another rank")
        peft.set_peft_model_state_dict(self._model, tensors)

    def layers(self) -> Iterator[tuple[str, Any, nn.Parameter]]:
        """Yield (name, peft's module, adapted weight W). Modules of experts are nested, one for each tensor."""
        for name, module in self._model.get_base_model().named_modules():
            if hasattr(module, "get_delta_weight"):
                yield name, module, module.get_param() if _is_tensor(module) else module.get_base_layer().weight

    def plain(self, memo: dict[int, object]) -> PreTrainedModel:
        """Copy the model without adapters. memo: replacements of the model's parameters, by id."""
        model: PreTrainedModel = copy.deepcopy(self._model, memo).unload()
        return model


def merged_weight(layer: Any, weight: nn.Parameter) -> Tensor:
    """Return W + (α / r) B A of an adapted layer."""
    merged: Tensor = weight + layer.get_delta_weight(NAME)
    return merged


def check_lora(section: LoraSection, config: PretrainedConfig, *, served: bool = False) -> None:
    """Check that adapters can be trained and merged, on the meta device.

    served: whether vLLM servers will load them. Raises MissingExtra without peft, RecipeError for targets that the
    model lacks, that peft cannot adapt or that share a weight, and what `empty_model` does.
    """
    if section.rank == 0:
        return
    from transformers.pytorch_utils import Conv1D

    model, kind = empty_model(config), config.model_type
    # Without the output layer: it may share the embedding's weight, and could not be merged.
    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    known = f"{ALL_LINEAR}, {', '.join(sorted(names))}"
    for target in section.targets:
        if target not in {*names, ALL_LINEAR}:
            raise RecipeError(
                f"lora.targets: {kind} has no linear layer {target!r}{nearest(target, names)}; there are: {known}"
            )
    where = "layers"
    try:
        adapter = Adapter(model, section, seed=0)
        places = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
        for where, layer, weight in adapter.layers():  # noqa: B007 - named in the error
            if places[id(weight)] > 1:
                raise ValueError("its weight is another layer's too, and adapters of one could not be merged")
            if not _is_tensor(layer):  # some routers are linear layers with other outputs
                layer(torch.empty(1, layer.in_features, device="meta"))
            elif served:
                raise ValueError("servers get no adapters of tensors; engine.lora=false sends them merged weights")
    except UNUSABLE as error:
        cure = f"{'lora.dropout=0 or ' * bool(section.dropout)}other lora.targets, of {known}"
        raise RecipeError(f"lora: {where} of {kind} cannot be adapted: {error}; set {cure}") from error


def _is_tensor(layer: nn.Module) -> bool:
    """Whether peft adapts a tensor of a module that is not a layer, such as experts."""
    return hasattr(layer, "get_param")


def _peft() -> ModuleType:
    try:
        return import_module("peft")
    except ImportError as error:
        raise MissingExtra(f"lora.rank above 0 needs {error.name}: {how_to_install('train')}") from error
