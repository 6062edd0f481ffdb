"""A run that is finished is run again without its harnesses, which may be gone."""

from __future__ import annotations

from retcon.build import without_harness
from retcon.config.schema import Recipe
from retcon.config.stages import Changes

HARNESS = "harness"


def without_harnesses(recipe: Recipe) -> Recipe:
    """The recipe, and its stages, of a run that makes no rollouts any more."""
    stages = tuple(
        stage.model_copy(update={"rollout": {key: value for key, value in stage.rollout.items() if key != HARNESS}})
        for stage in recipe.stages
    )
    return without_harness(recipe).model_copy(update={"stages": stages})


def with_harnesses(settled: Recipe, recipe: Recipe) -> Recipe:
    """A settled recipe with the harnesses of `recipe`: as the run's manifest has it."""
    rollout = settled.rollout.model_copy(update={HARNESS: recipe.rollout.harness})
    stages = tuple(
        one.model_copy(update={"rollout": {**one.rollout, **_harness_of(stage.rollout)}})
        for one, stage in zip(settled.stages, recipe.stages, strict=True)
    )
    return settled.model_copy(update={"rollout": rollout, "stages": stages})


def _harness_of(changes: Changes) -> Changes:
    return {HARNESS: changes[HARNESS]} if HARNESS in changes else {}
