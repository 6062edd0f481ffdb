"""Overrides that are meant for several recipes: which of them each concerns."""

from __future__ import annotations

from collections.abc import Sequence

from retcon.config.keys import homes
from retcon.config.load import load_recipe
from retcon.config.schema import SECTIONS
from retcon.config.shipped import find_recipe


def refuse_unless_taken(override: str, recipes: Sequence[str]) -> None:
    """Raises RecipeError where the override is wrong, or of a kind that none of the recipes is of."""
    taking = [recipe for recipe in recipes if takes(recipe, override)]
    load_recipe(find_recipe((taking or recipes)[0]), [override])


def takes(recipe: str, override: str) -> bool:
    """Whether the override can be of the recipe; it cannot where it sets a key of a kind that the recipe is not of:
    such as SAAR's γ where nothing repairs."""
    section, _, key = override.partition("=")[0].strip().partition(".")
    if section not in SECTIONS or not (kinds := homes(section, key)):
        return True
    about = getattr(load_recipe(find_recipe(recipe)), section)
    return getattr(about, about.chosen_by) in kinds


def of_sections(overrides: Sequence[str], sections: Sequence[str]) -> list[str]:
    """The overrides of these sections."""
    return [o for o in overrides if o.partition(".")[0].strip() in sections]
