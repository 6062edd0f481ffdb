"""Loading a model from a Hugging Face folder, never from the network."""

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


def lacking(folder: Path) -> str:
    """What to say of a folder without weights, or without all files that its index names; empty where they are there.
    An index that cannot be read is left to whoever loads it."""
    found = _loaded(folder)
    if found is None:
        return f"has no weights: none of {', '.join(WEIGHTS)}"
    named = _named(found)
    if missing := [name for name in named if not (folder / name).is_file()]:
        return f"lacks {counted(len(missing), 'file')} of the {len(named)} with its weights, such as {missing[0]}"
    return ""


def ambiguous(folder: Path) -> str:
    """Describe shards beside a single file, which transformers loads instead; empty where there are none."""
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
    """The files that an index names; none of what is no index, or cannot be read."""
    try:
        weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.name.endswith(INDEX) else {}
        return sorted({str(name) for name in weights.values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


SIZES = (
    "vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "n_embd", "n_head", "d_model", "n_heads", "num_heads",  # of GPT-2, MPT, GPT-Neo and their like
)  # fmt: skip
"""Keys of a configuration that are above 0 in each model that has them."""
UNUSABLE = (
    OSError, ValueError, LookupError, RuntimeError, ImportError, ArithmeticError, AttributeError, TypeError,
    AssertionError, SafetensorError, StrictDataclassError,
)  # fmt: skip
"""What transformers raises for a folder that it can make no model of, on purpose or not."""


def load_config(path: str | Path) -> PretrainedConfig:
    """What the model is that `locate` finds. Raises CheckpointError where there is none, it cannot be read, or no model
    has such sizes."""
    from transformers import AutoConfig

    folder = locate(path)
    file = folder / "config.json"
    _refuse_sizes(file)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        config.get_text_config()
    except UNUSABLE as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error
    return config


def positions(config: PretrainedConfig) -> int | None:
    """How many tokens a text may have, None where the model does not say."""
    found: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return found


def _refuse_sizes(file: Path) -> None:
    """Raises CheckpointError for a size that transformers would divide by, or take for a shape, without a word on it.
    Of what is no configuration at all, transformers says what it is."""
    try:
        about = json.loads(file.read_text(encoding="utf-8"))
        sizes = {**about, **about.get("text_config", {})}
    except (OSError, ValueError, TypeError, AttributeError):
        return
    for name in SIZES:
        if isinstance(size := sizes.get(name), int) and size < 1:
            raise CheckpointError(f"{file}: {name} is {size}: it must be above 0")


def empty_model(config: PretrainedConfig) -> PreTrainedModel:
    """The causal LM of a configuration, of shapes without weights. Raises CheckpointError where transformers can make
    none of it."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except UNUSABLE as error:
        file = Path(config.name_or_path or "", "config.json")
        raise CheckpointError(f"{file}: no model can be made of it: {type(error).__name__}: {error}") from error
    return model


def load_model(path: str | Path, dtype: str = "float32", *, attention: str | None = None) -> PreTrainedModel:
    """The causal LM that `locate` finds, in evaluation mode, on the CPU. dtype: a torch dtype's name. attention: an
    implementation's name, None for transformers' own choice.

    Raises CheckpointError where there is none, a file of it is missing or broken, no model can be made of its
    configuration, or its weights are quantised in a way that needs a package which is not here.
    """
    from transformers import AutoModelForCausalLM

    folder = locate(path)
    if said := lacking(folder):
        raise CheckpointError(f"{folder} {said}{how_to_fetch(folder)}")
    if said := ambiguous(folder):
        warnings.warn(f"{folder} {said}", UserWarning, stacklevel=2)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise CheckpointError(f"unknown dtype {dtype!r}{nearest(dtype, ('float32', 'bfloat16', 'float16'))}")
    try:
        with without_bars():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=kind, attn_implementation=attention, local_files_only=True, output_loading_info=True
            )
    except UNUSABLE as error:
        raise CheckpointError(f"the model in {folder} cannot be loaded: {error}") from error
    model: PreTrainedModel = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):  # transformers makes them up, at random
        said = f"the weights in {folder} lack {counted(len(missing), 'tensor')} of the model, such as {missing[0]}"
        if strange := sorted(loaded[1]["unexpected_keys"]):
            said += f", and have {len(strange)} that it has not, such as {strange[0]}: are they another model's?"
        raise CheckpointError(said)
    model.train(False)
    return model


@contextmanager
def without_bars() -> Iterator[None]:
    """Within, transformers shows no progress bars of its own: they break the lines of whoever shows progress."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
