"""The arms of a reproduction: the paper's variants, on the recipes that stand for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from retcon.cli.common.arguments import split_overrides
from retcon.cli.common.overriding import of_sections, refuse_untaken, taken
from retcon.cli.compare.arms import Arm, arm_of, refuse_incomparable, with_curve
from retcon.config.complaints import complaint
from retcon.config.load import load_recipe
from retcon.config.save import recipe_to_toml
from retcon.config.schema import Recipe
from retcon.config.shipped import find_recipe
from retcon.core.errors import RecipeError, nearest
from retcon.report.papers.registry import PAPERS
from retcon.report.papers.types import Paper, Study, Variant
from retcon.store.alone import alone
from retcon.store.whole import explained, write_whole

SWITCHED = "recipes"
"""Folder for the recipes that are made here, of arms that change their [repair] on the way."""


def find_paper(words: Sequence[str]) -> tuple[Paper, list[str]]:
    """The words after `retcon reproduce`: a paper, and overrides. Raises RecipeError for an unknown paper, with the
    nearest, and for a further word that is no override."""
    name, overrides = split_overrides(words)
    if name not in PAPERS:
        hint = nearest(name, PAPERS) if name else ""
        raise RecipeError(f"no paper '{name or ''}'{hint}: there are {' and '.join(PAPERS)}")
    return PAPERS[name], overrides


def chosen(paper: Paper, only: str | None) -> tuple[Study, ...]:
    """The studies of a list such as `main,gamma`, in the paper's order; all of them where there is none. Raises
    RecipeError for one that the paper does not have."""
    if only is None:
        return paper.studies
    wanted = [word for word in only.replace(" ", "").split(",") if word]
    names = [study.name for study in paper.studies]
    for word in wanted:
        if word not in names:
            raise RecipeError(
                f"--only {word}: {paper.name} has no such study{nearest(word, names)}: {', '.join(names)}"
            )
    if not wanted:
        raise RecipeError(f"--only names no study: {', '.join(names)}")
    return tuple(study for study in paper.studies if study.name in wanted)


def recipes_of(paper: Paper, given: Sequence[str]) -> dict[str, str]:
    """Role to recipe, with those of `ROLE=RECIPE` in place of the miniature's. Raises RecipeError for an unknown role
    or recipe."""
    found = dict(paper.recipes)
    for word in given:
        role, sign, recipe = word.partition("=")
        if role not in found or not sign:
            hint = "" if sign else " is no ROLE=RECIPE"
            raise RecipeError(
                f"--recipe {word}{hint}{nearest(role, found)}: the roles of {paper.name} are {', '.join(found)}"
            )
        found[role] = recipe
    for recipe in found.values():
        find_recipe(recipe)
    return found


def make_arms(
    variants: Sequence[Variant], recipes: Mapping[str, str], overrides: Sequence[str], out: Path
) -> list[Arm]:
    """An arm a variant, in their order; overrides go to all that have the key. Those that switch have recipes in `out`
    that are not written yet. Raises RecipeError where a variant cannot be made of its recipe, or arms cannot be
    compared."""
    takers = [(recipes[v.role], [*v.keys, *_own(v, recipes, overrides)]) for v in variants]
    takers += [(recipes[v.switches_to], _later(v, recipes, overrides)) for v in variants if v.switches_to]
    refuse_untaken(overrides, takers)
    arms = [_arm(variant, recipes, overrides, out) for variant in variants]
    arms = [with_curve(arm, arms[0]) for arm in arms]
    refuse_incomparable(arms)
    return arms


def write_recipes(arms: Sequence[Arm], out: Path) -> None:
    """Writes those that the arms bring, unless they are there. Raises CheckpointError where another command is at work
    in `out`, StorageError."""
    todo = [(Path(arm.recipe), arm.text) for arm in arms if arm.text is not None]
    todo = [(path, text) for path, text in todo if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if not todo:
        return
    with alone(out):
        for path, text in todo:
            with explained(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)


def told(variant: Variant, recipes: Mapping[str, str]) -> str:
    """What an arm is trained with, in words."""
    switch = f", then the [repair] of {recipes[variant.switches_to]}" if variant.switches_to else ""
    return " ".join((recipes[variant.role] + switch, *variant.keys))


def _arm(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str], out: Path) -> Arm:
    own = _own(variant, recipes, overrides)
    if variant.switches_to:
        path, later = out / SWITCHED / f"{variant.name}.toml", _later(variant, recipes, overrides)
        return arm_of(variant.name, str(path), (), recipe_to_toml(_switched(variant, recipes, own, later)))
    return arm_of(variant.name, recipes[variant.role], (*variant.keys, *own))


def _own(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Of its recipe, but not over what it is about."""
    about = [key.partition("=")[0] for key in variant.keys]
    free = [o for o in overrides if o.partition("=")[0] not in about]
    return taken(recipes[variant.role], free, variant.keys)


def _later(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Of the [repair] that it switches to."""
    return taken(recipes[variant.switches_to], of_sections(overrides, ("repair",)))


def _switched(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str], later: Sequence[str]) -> Recipe:
    """A recipe of two stages: the variant's own, then with the other's [repair]. later: overrides of that one."""
    before = arm_of(variant.name, recipes[variant.role], overrides)
    base = with_curve(before, before).settings  # written out whole, where nothing can be left to be added
    other = load_recipe(recipes[variant.switches_to], later)
    if base.stages:
        raise RecipeError(f"{recipes[variant.role]} has stages already: {variant.name} cannot switch its [repair]")
    if (half := base.rl.steps // 2) < 1:
        raise RecipeError(f"rl.steps = 1: {variant.name} changes its [repair] halfway, which takes 2 or more")
    stages = [
        {"name": "before", "steps": half},
        {"name": "after", "repair": other.repair.model_dump(mode="json")},
    ]
    data = {**base.model_dump(exclude={"stages"}), "stages": stages}
    try:
        return type(base).model_validate(data)
    except ValidationError as error:
        _, said = complaint(error.errors()[0], data)
        raise RecipeError(f"{variant.name}, of {recipes[variant.role]}: {said}") from error
