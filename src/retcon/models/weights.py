"""Whether the weights of a model folder are there, before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path

from retcon.core.texts import counted

INDEX = ".index.json"
WEIGHTS = ("model.safetensors", "model.safetensors" + INDEX, "pytorch_model.bin", "pytorch_model.bin" + INDEX)
"""In the order in which transformers looks for them."""


def lacking(folder: Path) -> str:
    """What to say of a folder without weights, or without all files that its index names; empty where they are there.
    An index that cannot be read is left to whoever loads it."""
    found = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        return f"has no weights: none of {', '.join(WEIGHTS)}"
    if not found.name.endswith(INDEX):
        return ""
    try:
        named = sorted({str(name) for name in json.loads(found.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    missing = [name for name in named if not (folder / name).is_file()]
    if not missing:
        return ""
    return f"lacks {counted(len(missing), 'file')} of the {len(named)} with its weights, such as {missing[0]}"
