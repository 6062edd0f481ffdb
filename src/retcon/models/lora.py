"""LoRA: adapters that are trained in place of a model's weights, with peft, which is imported when there are any."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from retcon.config.schema import ALL_LINEAR, LoraSection
from retcon.core.errors import CheckpointError, MissingExtra, RecipeError, nearest
from retcon.core.installing import how_to_install
from retcon.core.seeds import derive
from retcon.models.loading import empty_model

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
NAME = "default"  # peft's, of a model's only adapter


class Adapter:
    """Low-rank adapters (arXiv 2106.09685) in `model`, which is changed: a linear layer W x becomes
    W x + (α / r) B A x, and A (r, in) and B (out, r) alone are trained. B begins as zeros, A at random from `seed`.

    Raises MissingExtra without peft.
    """

    def __init__(self, model: PreTrainedModel, section: LoraSection, *, seed: int) -> None:
        peft = _peft()
        from transformers.pytorch_utils import Conv1D

        config = peft.LoraConfig(
            r=section.rank,
            lora_alpha=section.alpha,
            lora_dropout=section.dropout,
            target_modules=ALL_LINEAR if ALL_LINEAR in section.targets else list(section.targets),
            fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # peft 0.21 asks transformers 5 for attributes that are on their way out.
            warnings.simplefilter("ignore", FutureWarning)
            torch.manual_seed(derive("lora", seed))
            self._model = peft.get_peft_model(model, config)
        self._model.eval()
        self.rank = section.rank

    def save(self, folder: Path) -> None:
        """The adapters in peft's format, which `PeftModel.from_pretrained` loads, into `folder`."""
        tensors = _peft().get_peft_model_state_dict(self._model, save_embedding_layers=False)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
        config = copy.copy(self._model.peft_config[NAME])
        config.inference_mode = True
        config.target_modules = sorted(config.target_modules)  # a set: its order would differ from run to run
        config.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Take over the adapters that `save` wrote. Raises CheckpointError where they cannot be read or do not fit."""
        peft = _peft()
        try:
            tensors = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder / WEIGHTS} cannot be read: {error}") from error
        wanted = peft.get_peft_model_state_dict(self._model, save_embedding_layers=False)
        if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in wanted.items()}:
            raise CheckpointError(f"{folder / WEIGHTS} holds adapters of other layers or another rank")
        peft.set_peft_model_state_dict(self._model, tensors)

    def layers(self) -> Iterator[tuple[str, nn.Module]]:
        """(name in the plain model, module) of every layer that is adapted."""
        for name, module in self._model.get_base_model().named_modules():
            if hasattr(module, "get_delta_weight"):
                yield name, module

    def plain(self, memo: dict[int, object]) -> PreTrainedModel:
        """A copy of the model without adapters. memo: parameters by id that stand for those of the model."""
        model: PreTrainedModel = copy.deepcopy(self._model, memo).unload()
        return model


def merged_weight(layer: nn.Module) -> Tensor:
    """W + (α / r) B A of an adapted layer, as it lies in the plain one."""
    weight: Tensor = layer.get_base_layer().weight + layer.get_delta_weight(NAME)  # type: ignore[operator]
    return weight


def check_lora(section: LoraSection, config: PretrainedConfig) -> None:
    """Raises MissingExtra without peft, RecipeError for targets that the model has not, and what `empty_model` does;
    nothing where rank is 0."""
    if section.rank == 0:
        return
    _peft()
    from transformers.pytorch_utils import Conv1D

    model = empty_model(config)
    # The output layer is left out: it may be the embedding too, which no merge could change for one of them alone.
    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not model.get_output_embeddings()
    }
    for target in section.targets:
        if target not in {*names, ALL_LINEAR}:
            raise RecipeError(
                f"lora.targets: {config.model_type} has no linear layer {target!r}{nearest(target, names)}; "
                f"there are: {ALL_LINEAR}, {', '.join(sorted(names))}"
            )


def _peft() -> ModuleType:
    try:
        import peft
    except ImportError as error:
        raise MissingExtra(f"lora.rank above 0 needs {error.name}: {how_to_install('train')}") from error
    module: ModuleType = peft
    return module
