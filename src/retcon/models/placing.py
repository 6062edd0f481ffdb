"""The model that a run starts from, its placement and its logits."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from retcon.config.schema import Recipe
from retcon.core.errors import CheckpointError, ComputeWarning, reraise_as
from retcon.models.devices import HELD, HELD_FROZEN, REFERENCE, USES, Placement, Use, choose, crowding, look_at_machine
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
_IDS, LARGE = 8, 100.0
"""Tokens of a comparison, and what their hidden states are multiplied by to show caps."""


def logit_scale(config: PretrainedConfig) -> float:
    """Return what the model multiplies its logits by; 1 if unknown."""
    own = config.get_text_config()
    multiplied, divided = _MULTIPLIED.get(own.model_type, ""), _DIVIDED.get(own.model_type, "")
    return float(getattr(own, multiplied, 1.0) or 1.0) / float(getattr(own, divided, 1.0) or 1.0)


class _States:
    """Stand in for what a model's layers return: hidden states, and None for all else."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: object) -> Tensor | tuple[()]:
        return self.last_hidden_state if index == 0 else ()


def backbone_of(model: PreTrainedModel) -> nn.Module:
    """Return the part that makes hidden states; Llama 4 and Mllama misname theirs in `base_model_prefix`."""
    found: nn.Module = model.base_model
    return getattr(model, "model", model) if found is model else found


class OwnHead(nn.Module):
    """A model's own output head, caps included: (N, d) to (N, V)."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._model = ref(model)  # no submodule, and kept no longer than it is used

    def forward(self, hidden: Tensor) -> Tensor:
        model = self._model()
        assert model is not None
        base = backbone_of(model)
        before = vars(base).get("forward")
        base.forward = lambda *_, **__: _States(hidden[None])
        try:
            ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            logits: Tensor = model(input_ids=ids, use_cache=False).logits
        finally:
            del base.forward
            if before is not None:
                base.forward = before
        return logits[0]


_HEADS: WeakKeyDictionary[PreTrainedModel, OwnHead | None] = WeakKeyDictionary()
"""None: the output layer."""


def output_head(model: PreTrainedModel) -> tuple[nn.Module, float]:
    """Return the module from hidden states to logits, and their factor. Raises CheckpointError."""
    if model not in _HEADS:
        check_logits(model, "the model")
    own = _HEADS.get(model)
    return (model.get_output_embeddings(), logit_scale(model.config)) if own is None else (own, 1.0)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode for a block: no dropout draws random numbers."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def check_logits(model: PreTrainedModel, name: object) -> None:
    """Check that logits follow from the last hidden states; remember the head.

    name: of the model, in messages. Raises CheckpointError if they are no function of the last hidden states.
    """
    kind, own = type(model).__name__, OwnHead(model)
    head, scale = model.get_output_embeddings(), logit_scale(model.config)
    ids = torch.arange(_IDS, device=model.device)[None] % model.config.get_text_config().vocab_size
    with eval_mode(model):
        expected: Tensor = model(input_ids=ids, use_cache=False).logits[0]
        if not bool(expected.isfinite().all()):
            return  # it has diverged, which the step's loss will report
        with reraise_as(CheckpointError, f"{name}: training {kind} by its last hidden states"):
            hidden: Tensor = backbone_of(model)(input_ids=ids, use_cache=False).last_hidden_state[0]
            large = LARGE * hidden  # which shows caps
            fits = getattr(head, "in_features", hidden.shape[-1]) == hidden.shape[-1]  # RemBERT's takes wider ones
            simple = head is not None and fits and _error(head(scale * hidden), expected) <= TOLERANCE
        try:
            apart = _error(own(hidden), expected)
            more = apart <= TOLERANCE and not (simple and _error(head(scale * large), own(large)) <= TOLERANCE)
        except (AttributeError, TypeError, ValueError, IndexError, RuntimeError):  # its forward needs more than states
            apart, more = inf, False
    if not (simple or more):
        raise CheckpointError(
            f"{name}: the logits of {kind} are not made of its last hidden states (up to {apart:.2g} of the largest "
            "apart), and such models cannot be trained"
        )
    _HEADS[model] = own if more else None


def _error(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    return float((found - expected).abs().max() / expected.abs().max())


def place_model(
    recipe: Recipe, config: PretrainedConfig, uses: Sequence[Use] = USES, *, reference: bool = False
) -> Placement:
    """Choose a recipe's placement on this machine for a model's `config`.

    uses: what hints are given for. reference: whether there is a reference model too. Raises RecipeError as `choose`
    does. Warns (ComputeWarning) of too many threads and sandbox workers.
    """
    machine = look_at_machine()
    workers = 0 if recipe.sandbox.url else recipe.sandbox.workers
    if crowd := crowding(recipe.run.threads, workers, machine.cores):
        warnings.warn(crowd, ComputeWarning, stacklevel=2)
    each = (HELD_FROZEN if recipe.lora.rank else HELD) + REFERENCE * reference
    return choose(recipe.compute, config, machine, threads=recipe.run.threads, uses=uses, held=each)


def place_training(recipe: Recipe, folder: Path, uses: Sequence[Use] = USES, *, reference: bool = False) -> Placement:
    """Choose the placement to train the model in `folder`. uses, reference: see `place_model`.

    Raises RecipeError for an unavailable device, dtype, attention or adapters, MissingExtra for adapters without peft,
    CheckpointError for a broken configuration.
    """
    config = load_config(folder)
    check_lora(recipe.lora, config, served="rollout_dtype" in uses and getattr(recipe.engine, "lora", False))
    return place_model(recipe, config, uses, reference=reference)


def move_model(model: PreTrainedModel, device: str) -> None:
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
    move_model(model, device)
    return model


def expand_blocks(source: Path, folder: Path) -> None:
    """Write a model with an idle copy behind each layer into `folder`.

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
