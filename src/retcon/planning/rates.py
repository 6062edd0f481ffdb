"""Learning rates far above those that models of a size are trained with: told before work starts. No torch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import RateWarning
from retcon.runs.manifest import RunKind

LARGE = 50_000_000
"""Parameters from which a model is warned for. The defaults are for the packaged one, which has 0.7 M: ten steps of SFT
at 4e-3 leave a model of 135 M no English (`benchmarks/studies/rates.py`)."""
ADAPTERS = 10
"""How many times the rate of all weights adapters bear, about."""


@dataclass(frozen=True, slots=True)
class Usual:
    """most: the rate from which there is a warning. take: one that is on the safe side. known: who has which."""

    most: float
    take: float
    known: str


USUAL: Mapping[RunKind, Usual] = {
    "sft": Usual(5e-4, 1e-5, "rstar2-14b/sft has 5e-6, smollm2/cold_start (135 M) 4e-4"),
    "dpo": Usual(2e-5, 1e-6, "its paper, arXiv 2305.18290, has 1e-6"),
    "rl": Usual(2e-5, 2e-6, "the recipes of papers on 3 to 32 B have 1e-6 to 2e-6, smollm2/saar (135 M) 1e-5"),
}


def parameters_of(folder: Path) -> int:
    """Of the model in a folder, by the shapes that its weights in safetensors have; 0 where it has none."""
    count = 0
    for file in folder.glob("model*.safetensors"):
        unread = (OSError, ValueError, LookupError, TypeError, RecursionError)  # the run will say so
        with suppress(*unread), file.open("rb") as opened:
            length = min(int.from_bytes(opened.read(8), "little"), file.stat().st_size)
            tensors = dict(json.loads(opened.read(length)))
            count += sum(prod(about["shape"]) for name, about in tensors.items() if name != "__metadata__")
    return count


def warn_of_rate(kind: RunKind, recipe: Recipe, parameters: int) -> None:
    """Warns (RateWarning) where a model of so many parameters is to be trained at a rate that nobody uses for such."""
    usual, lr = USUAL[kind], getattr(recipe, kind).lr
    times = ADAPTERS if recipe.lora.rank else 1
    if parameters < LARGE or lr <= times * usual.most:
        return
    adapters = f", and adapters bear some {ADAPTERS} times more" if recipe.lora.rank else ""
    warnings.warn(
        f"{kind}.lr = {lr:g} is high enough to ruin a model of {parameters / 1e6:,.0f} M parameters: {usual.known}"
        f"{adapters}; set {kind}.lr={times * usual.take:g}",
        RateWarning,
        stacklevel=2,
    )
