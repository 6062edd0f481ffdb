"""What a run that has begun goes on with though a new one is refused it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from retcon.build import without_harness
from retcon.chat.opening import unheard_thinking
from retcon.chat.registry import AUTO
from retcon.config.schema import Recipe
from retcon.config.stages import Changes
from retcon.runs.manifest import NAME

HARNESS = "harness"
LOG = logging.getLogger(__name__)


def as_told(recipe: Recipe, folder: Path, out: Path) -> Recipe:
    """The recipe as the model in `folder` is told it: without a `model.thinking` that its template does not ask for,
    where the run in `out` began with that, as runs of earlier versions did; this is said. A new run is refused it
    (`open_chat`)."""
    thinking = recipe.model.thinking
    if thinking == "default" or recipe.model.style != AUTO or _began_with(out) != thinking:
        return recipe
    if not (why := unheard_thinking(folder)):
        return recipe
    LOG.warning("%s goes on with model.thinking = '%s', which changes nothing, as %s", out, thinking, why)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"thinking": "default"})})


def without_harnesses(recipe: Recipe) -> Recipe:
    """The recipe of a run that is finished, which asks nothing of its harnesses any more: they may be gone."""
    stages = tuple(
        stage.model_copy(update={"rollout": {key: value for key, value in stage.rollout.items() if key != HARNESS}})
        for stage in recipe.stages
    )
    return without_harness(recipe).model_copy(update={"stages": stages})


def as_written(settled: Recipe, recipe: Recipe) -> Recipe:
    """A settled recipe with what these leave out of `recipe`: as the run's manifest has it."""
    rollout = settled.rollout.model_copy(update={HARNESS: recipe.rollout.harness})
    stages = tuple(
        one.model_copy(update={"rollout": {**one.rollout, **_own(stage.rollout)}})
        for one, stage in zip(settled.stages, recipe.stages, strict=True)
    )
    return settled.model_copy(update={"model": recipe.model, "rollout": rollout, "stages": stages})


def _own(changes: Changes) -> Changes:
    return {HARNESS: changes[HARNESS]} if HARNESS in changes else {}


def _began_with(out: Path) -> object:
    """The run's `model.thinking`, None where there is none; what is broken there `open_run` says."""
    try:
        return json.loads((Path(out) / NAME).read_text(encoding="utf-8"))["recipe"]["model"]["thinking"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
