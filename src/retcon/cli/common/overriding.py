"""Overrides that are meant for several recipes: which of them each concerns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retcon.config.keys import homes
from retcon.config.load import Data, load_recipe, with_kinds
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.section import Chosen
from retcon.core.errors import RecipeError

COLD_SECTIONS = ("run", "model", "compute", "lora", "engine", "task", "rollout", "sandbox", "demos", "sft", "track")
"""Sections whose overrides concern a cold start; by [engine] its demonstrations may be made."""


def taken(recipe: str, overrides: Sequence[str], given: Sequence[str] = ()) -> list[str]:
    """The overrides that can be of the recipe; one cannot where it sets a key of a kind that neither the recipe nor an
    override chooses: such as SAAR's γ where nothing repairs, or of a stage that it does not have. given: overrides that
    it has beside these."""
    data = with_kinds(recipe, [*given, *overrides])
    return [override for override in overrides if _takes(data, override)]


def refuse_untaken(overrides: Sequence[str], takers: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Raises RecipeError for an override that is taken nowhere because it is wrong, or of another kind. takers: each
    recipe with what it takes."""
    for override in overrides:
        if any(override in own for _, own in takers):
            continue
        staged = override.startswith("stages.")
        # The default of a section that a recipe leaves out may be of the kind that has the key.
        for recipe, own in [one for one in takers if staged and load_recipe(one[0]).stages] or takers:
            load_recipe(recipe, [*own, override])


def of_cold_start(recipe: str, overrides: Sequence[str]) -> list[str]:
    """The overrides that concern a cold start by this recipe, and can be of it."""
    return taken(recipe, of_sections(overrides, COLD_SECTIONS))


def of_sections(overrides: Sequence[str], sections: Iterable[str]) -> list[str]:
    """The overrides of these sections, or of the one key that a name has after its section's (`evaluate.seed`)."""
    named = set(sections)
    return [o for o in overrides if not named.isdisjoint((o.partition(".")[0].strip(), o.partition("=")[0].strip()))]


def names_demos(recipe: Recipe, overrides: Sequence[str]) -> bool:
    """Whether somebody said what demonstrations are made of: not where the recipe names every section, as a report
    writes it, and [demos] is the default. overrides: those of `recipe`."""
    named = recipe.model_fields_set
    written_out = named >= SECTIONS.keys() and recipe.demos == Recipe().demos
    return bool(of_sections(overrides, ["demos"])) or ("demos" in named and not written_out)


def _takes(data: Data, override: str) -> bool:
    section, _, key = override.partition("=")[0].strip().partition(".")
    layers = [data]
    if section == "stages":
        named, _, rest = key.partition(".")
        stages = enumerate(data.get("stages", ()), start=1)
        stage = next((one for number, one in stages if named in (one.get("name"), str(number))), None)
        if stage is None:
            return False
        section, _, key = rest.partition(".")
        layers.append(stage)
    about = SECTIONS.get(section)
    if about is None or not issubclass(about, Chosen) or not homes(section, key):
        return True
    try:
        return key in about.kind_in({k: v for layer in layers for k, v in layer.get(section, {}).items()}).model_fields
    except RecipeError:  # which whoever reads the recipe tells
        return True
