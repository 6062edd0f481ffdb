"""Which mechanisms a recipe switches on, and which of them never acted in a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retcon.config.schema import SECTIONS, Recipe
from retcon.config.stages import stages_of
from retcon.core.texts import counted
from retcon.runs.metrics import Metrics


def mechanisms_of(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    """`Section.mechanisms` of the keys that a recipe switches on, by key and value (`rl.dual_clip=3.0`)."""
    return {
        f"{name}.{key}={str(value).lower() if value is True else value}": mechanism
        for name in SECTIONS
        for key, mechanism in getattr(recipe, name).mechanisms.items()
        if (value := getattr(getattr(recipe, name), key)) and value not in ("none", "keep", "own")
    }


def idle_mechanisms(recipe: Recipe, steps: Sequence[Metrics]) -> list[str]:
    """A sentence for each mechanism that never acted in a run; steps without its metrics do not count."""
    acted: dict[tuple[str, str], list[bool]] = {}
    for stage in stages_of(recipe):
        for key, (never, *metrics) in mechanisms_of(stage.recipe).items():
            lines = [line for line in steps if (line.get("stage") or 1) == stage.number and line.keys() & metrics]
            acted.setdefault((key, never), []).extend(any(line.get(name) for name in metrics) for line in lines)
    return [
        f"{key} never acted in {counted(len(found), 'step')}: {never}"
        for (key, never), found in acted.items()
        if found and not any(found)
    ]
