"""A model of twice the layers, which computes what the one that it is made of computes until it is trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.numpy import load_file, save_file


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
