"""What is compared: recipes, under names, with the overrides that concern each; and whether they can be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retcon.cli.arguments import READS, of_cold_start, refuse_untaken, taken
from retcon.config.load import find_recipe, load_recipe
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError
from retcon.core.texts import counted
from retcon.runs.manifest import differing

MEASURED_ALIKE = ("task", "evaluate")
"""Sections that say what arms are measured on."""
CONDITIONS = (
    ("repair", "none", "every arm is measured with purification off, and besides with it on"),
    ("faults", 0.0, "every arm is measured without faults, and besides with those of --faults"),
)
"""Keys of [evaluate] that say how arms are measured, the values of the first evaluation, and what there is instead."""
COLD = ("model", "task", "demos", "sft")
"""Sections that arms which share a cold start must have in common."""
UNTRAINED = ("base", "base-deep", "scratch")
"""Values of model.path that know no tools: such a model needs a cold start."""
TAKEN = ("cold_start", "logs", "cold start")
"""Folders of a comparison that are no arm's, and the name of a job that is none's."""
TOLD = 4
"""Keys that a message names at most."""
CURVE_POINTS = 8
"""Evaluations of a training on held-out problems, where the recipes do not say how many."""


@dataclass(frozen=True, slots=True)
class Arm:
    """name: in tables and folders. recipe: as it was given, a file or the name of a shipped one. overrides: those that
    concern it. settings: the recipe with them. text: of the recipe's file, where that is written once work begins.
    start: name of the start that it shares with the other arms of that name; "" for the command's."""

    name: str
    recipe: str
    overrides: tuple[str, ...]
    settings: Recipe
    text: str | None = None
    start: str = ""

    def changed(self, *overrides: str) -> Arm:
        """The arm with further overrides. Raises RecipeError."""
        return arm_of(self.name, self.recipe, (*self.overrides, *overrides), self.text, self.start)


def arm_of(name: str, recipe: str, overrides: Sequence[str], text: str | None = None, start: str = "") -> Arm:
    """text: of the recipe's file, where that is not written yet. Raises RecipeError for an unknown recipe, with the
    nearest, and for an override that is wrong or that no job reads."""
    settings = load_recipe(recipe, overrides, text=text, reads=READS["compare"])
    return Arm(name, recipe, tuple(overrides), settings, text, start)


def read_arms(words: Sequence[str], there: Sequence[str] = (), cold: str | None = None) -> list[Arm]:
    """The words after `retcon compare`: two recipes or more, and overrides, each for the recipes that it can be of.
    there: as of `named`. cold: the recipe of a cold start of its own, which may be the only one to take some.

    Raises RecipeError for fewer recipes, for one that is unknown or wrong, for two that are the same, and for those
    that are not measured on the same problems.
    """
    recipes = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if len(recipes) < 2:
        raise RecipeError(
            "name two recipes or more; one alone is trained by `retcon train` (`retcon recipes` lists all)"
        )
    names = named(recipes, there)
    for recipe in recipes:
        find_recipe(recipe)
    own = {recipe: taken(recipe, overrides) for recipe in recipes}
    refuse_untaken(overrides, [*own.items(), *([(cold, of_cold_start(cold, overrides))] if cold else ())])
    arms = [arm_of(names[recipe], recipe, own[recipe]) for recipe in recipes]
    arms = [with_curve(arm, arms[0]) for arm in arms]
    refuse_incomparable(arms)
    return arms


def refuse_incomparable(arms: Sequence[Arm]) -> None:
    """Raises RecipeError where two arms are the same, or one is not measured on the first one's problems, or says
    under which of the conditions that all are measured under."""
    for number, arm in enumerate(arms):
        _refuse_conditions(arm)
        for other in arms[:number]:
            if _but_for_steps(arm) == _but_for_steps(other):
                but = " but rl.steps, which are matched" * (arm.settings.rl.steps != other.settings.rl.steps)
                both = f"{other.recipe} and {arm.recipe}"
                if other.recipe == arm.recipe:  # of a reproduction, which overrides have made alike
                    both = f"the arms {other.name} and {arm.name}, of {arm.recipe},"
                raise RecipeError(f"{both} are the same recipe here: nothing distinguishes them{but}")
        _refuse_apart(arms[0], arm, MEASURED_ALIKE, "measured on the same problems")


def named(recipes: Sequence[str], there: Sequence[str] = ()) -> dict[str, str]:
    """Recipe to the name that its arm has: the end of its path, as much of it as tells it from the others. there: names
    of a comparison's arms, which the first recipes keep where they are ends of their paths. Raises RecipeError where
    one is named twice."""
    parts = {recipe: Path(recipe.removesuffix(".toml")).parts for recipe in recipes}
    if len(parts) < len(recipes):
        twice = next(recipe for recipe in recipes if recipes.count(recipe) > 1)
        raise RecipeError(f"{twice} is named twice; another variant of it is a recipe file of its own")
    depths = range(1, max(map(len, parts.values())) + 1)
    kept = dict(zip(recipes, there, strict=False))
    if any(name not in {_end(parts[recipe], depth) for depth in depths} for recipe, name in kept.items()):
        kept = {}
    for depth in depths:
        names = {recipe: kept.get(recipe) or _end(own, depth) for recipe, own in parts.items()}
        if len(set(names.values())) == len(recipes):
            return names
    raise RecipeError(f"these are one recipe under several names: {', '.join(recipes)}")


def _end(parts: Sequence[str], depth: int) -> str:
    name = "-".join(part.strip(os.sep) for part in parts[-depth:])
    return f"arm-{name}" if name in TAKEN else name


def refuse_unshared(arms: Sequence[Arm]) -> None:
    """Raises RecipeError where the arms' own sections do not give one model for all, or one cold start where the first
    one's model needs one."""
    cold = arms[0].settings.model.path in UNTRAINED
    sections = COLD if cold else ("model",)
    advice = f" {'Name one cold start for all (--cold-start), or' if cold else 'Or name'} a model (--from)"
    for arm in arms[1:]:
        _refuse_apart(arms[0], arm, sections, "started alike", advice)


def refuse_other_models(cold: Arm, arms: Sequence[Arm]) -> None:
    """Raises RecipeError where an arm is of another model than the cold start, or is talked to in another way."""
    for arm in arms:
        _refuse_apart(cold, arm, ("model",), "started alike")


def _refuse_conditions(arm: Arm) -> None:
    """The plan says them: what is called `purification off` would be on."""
    for key, plain, instead in CONDITIONS:
        if (value := getattr(arm.settings.evaluate, key)) != plain:
            raise RecipeError(
                f"{arm.recipe}: evaluate.{key} = {value!r}, but {instead}, whatever a recipe says. Leave the key out, "
                f"or set evaluate.{key}={plain} on the command line"
            )


def _but_for_steps(arm: Arm) -> dict[str, object]:
    """How many there are says what is matched, of which the last stage has what is left; seeds are those of the
    comparison, and what an arm starts from is all arms'."""
    told = arm.settings.model_dump(exclude={"run", "demos", "sft", "dpo"})
    for section in (told["rl"], *told.get("stages", ())[-1:]):
        del section["steps"]
    return told


def _refuse_apart(one: Arm, other: Arm, sections: Sequence[str], what: str, advice: str = "") -> None:
    old, new = (
        {name: section for name, section in arm.settings.model_dump(mode="json").items() if name in sections}
        for arm in (one, other)
    )
    if changed := sorted(differing(old, new), key=lambda told: " was None" in told):  # keys of one kind last
        more = f"; and {counted(len(changed) - TOLD, 'key')} more" if len(changed) > TOLD else ""
        raise RecipeError(
            f"{one.recipe} and {other.recipe} cannot be {what}: from the first to the second, "
            f"{'; '.join(changed[:TOLD])}{more}. Set the same for all on the command line, such as "
            f"{changed[0].partition(' ')[0]}=….{advice}"
        )


def with_curve(arm: Arm, first: Arm) -> Arm:
    """The arm with evaluations on the way, as many as a curve of the first one's steps has, unless it says itself."""
    if "every" in arm.settings.evaluate.model_fields_set:
        return arm
    return arm.changed(f"evaluate.every={max(1, first.settings.rl.steps // CURVE_POINTS)}")
