"""Models from Hugging Face folders, never from the network."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from retcon.core.errors import CheckpointError, nearest
from retcon.core.installing import how_to_fetch
from retcon.core.texts import counted
from retcon.models.locating import locate

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

INDEX = ".index.json"
WEIGHTS = ("model.safetensors", "model.safetensors" + INDEX, "pytorch_model.bin", "pytorch_model.bin" + INDEX)
"""In the order in which transformers looks for them."""


def describe_missing_weights(folder: Path) -> str:
    """Describe missing weights of a folder, or missing files of its index; empty for a complete one."""
    found = _loaded(folder)
    if found is None:
        return f"has no weights: none of {', '.join(WEIGHTS)}"
    named = _named(found)
    if missing := [name for name in named if not (folder / name).is_file()]:
        return f"lacks {counted(len(missing), 'file')} of the {len(named)} with its weights, such as {missing[0]}"
    return ""


def describe_duplicate_weights(folder: Path) -> str:
    """Describe shards beside a single file, which transformers loads instead; empty without such shards."""
    single = _loaded(folder) or folder
    index = single.with_name(single.name + INDEX)
    shards = [name for name in _named(index) if (folder / name).is_file()]
    if not shards:
        return ""
    return (
        f"has its weights twice: {single.name} is loaded, as transformers does, and not the "
        f"{counted(len(shards), 'file')} of {index.name}, which other loaders prefer; remove whichever is stale"
    )


def _loaded(folder: Path) -> Path | None:
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def _named(index: Path) -> list[str]:
    """Files that an index names; none if it cannot be read."""
    try:
        weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.name.endswith(INDEX) else {}
        return sorted({str(name) for name in weights.values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


UNUSABLE = (
    OSError, ValueError, LookupError, RuntimeError, ImportError, ArithmeticError, AttributeError, TypeError,
    AssertionError, SafetensorError, StrictDataclassError,
)  # fmt: skip
"""What transformers raises, on purpose or not, for a folder that it cannot load."""


def load_config(path: str | Path) -> PretrainedConfig:
    """Load the configuration of the model that `locate` finds. Raises CheckpointError."""
    from transformers import AutoConfig

    folder = locate(path)
    file = folder / "config.json"
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        config.get_text_config()
    except UNUSABLE as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    return config


def max_positions(config: PretrainedConfig) -> int | None:
    """Return the configuration's limit of tokens, None if it has no limit."""
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found if found is None or found > 0 else None


def empty_model(config: PretrainedConfig) -> PreTrainedModel:
    """Make a configuration's causal LM on the meta device. Raises CheckpointError."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except UNUSABLE as error:
        file = Path(config.name_or_path or "", "config.json")
        raise CheckpointError(f"{file}: no model can be made of it: {type(error).__name__}: {error}") from error
    return model


def load_model(path: str | Path, dtype: str = "float32", *, attention: str | None = None) -> PreTrainedModel:
    """Load the causal LM that `locate` finds, on the CPU, for evaluation.

    Raises CheckpointError if no model is there, a file is missing or broken, or its quantisation needs another package.

    Args:
        dtype: name of a torch dtype.
        attention: name of an implementation; None: transformers' choice.
    """
    from transformers import AutoModelForCausalLM

    folder = locate(path)
    if fault := describe_missing_weights(folder):
        raise CheckpointError(f"{folder} {fault}{how_to_fetch(folder)}")
    if fault := describe_duplicate_weights(folder):
        warnings.warn(f"{folder} {fault}", UserWarning, stacklevel=2)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise CheckpointError(f"unknown dtype {dtype!r}{nearest(dtype, ('float32', 'bfloat16', 'float16'))}")
    try:
        with without_progress_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=kind, attn_implementation=attention, local_files_only=True, output_loading_info=True
            )
    except UNUSABLE as error:
        raise CheckpointError(f"the model in {folder} cannot be loaded: {error}") from error
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):  # transformers initialises them at random
        fault = f"the weights in {folder} lack {counted(len(missing), 'tensor')} of the model, such as {missing[0]}"
        if strange := sorted(loaded[1]["unexpected_keys"]):
            fault += f", and have {len(strange)} that it has not, such as {strange[0]}: are they another model's?"
        raise CheckpointError(fault)
    model.train(False)
    return model


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars, which would break ours."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
