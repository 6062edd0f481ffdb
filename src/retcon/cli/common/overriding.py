"""Overrides that are meant for several recipes: which of them each concerns."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.config.keys import homes
from retcon.config.load import load_recipe
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.stages import stages_of

COLD_SECTIONS = ("run", "model", "compute", "lora", "engine", "task", "rollout", "sandbox", "demos", "sft", "track")
"""Sections whose overrides concern a cold start; by [engine] its demonstrations may be made."""


def refuse_unless_taken(override: str, recipes: Sequence[str]) -> None:
    """Raises RecipeError where the override is wrong, or of a kind that none of the recipes is of."""
    taking = [recipe for recipe in recipes if takes(recipe, override)]
    if not taking and override.startswith("stages."):
        taking = [recipe for recipe in recipes if load_recipe(recipe).stages]
    load_recipe((taking or recipes)[0], [override])


def takes(recipe: str, override: str) -> bool:
    """Whether the override can be of the recipe; it cannot where it sets a key of a kind that the recipe is not of:
    such as SAAR's γ where nothing repairs, or of a stage that it does not have."""
    section, _, key = override.partition("=")[0].strip().partition(".")
    if section == "stages":
        return _of_a_stage(load_recipe(recipe), key)
    if section not in SECTIONS or not (kinds := homes(section, key)):
        return True
    about = getattr(load_recipe(recipe), section)
    return getattr(about, about.chosen_by) in kinds


def _of_a_stage(recipe: Recipe, key: str) -> bool:
    """Whether the recipe has the stage that `name.section.key` is of, and that one a section of such a kind."""
    named, _, rest = key.partition(".")
    section, _, key = rest.partition(".")
    stage = next((one for one in stages_of(recipe) if one.name and named in (one.name, str(one.number))), None)
    if stage is None:
        return False
    kinds = homes(section, key) if section in SECTIONS else []
    about = getattr(stage.recipe, section) if kinds else None
    return about is None or getattr(about, about.chosen_by) in kinds


def of_cold_start(recipe: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that concern a cold start by this recipe, of [engine] only those that can be of it: they are meant
    for the recipes that start from it."""
    engine = of_sections(overrides, ("engine",))
    return [o for o in of_sections(overrides, COLD_SECTIONS) if o not in engine or takes(recipe, o)]


def of_sections(overrides: Sequence[str], sections: Sequence[str]) -> list[str]:
    """The overrides of these sections."""
    return [o for o in overrides if o.partition(".")[0].strip() in sections]
