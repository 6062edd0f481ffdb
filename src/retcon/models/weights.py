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
