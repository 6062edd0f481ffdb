"""What `retcon reproduce` trains, a paper's variants as the arms of a comparison, and what it prints of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retcon.cli.arguments import command_line, of_sections, refuse_untaken, split_overrides, taken
from retcon.cli.common.targets import Ledger, Target, read_book
from retcon.cli.compare.arms import Arm, arm_of, refuse_incomparable, with_curve
from retcon.cli.compare.finish import print_end
from retcon.cli.compare.plan import FILE, CompareBook, CompareOptions, ComparePlan, make_plan, open_ledger
from retcon.config.load import complaint, find_recipe, load_recipe, recipe_to_toml
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, nearest
from retcon.report.comparison import REPAIRED, read_compared, run_folder
from retcon.report.papers.cleaner import CLEANER
from retcon.report.papers.page import FIGURES, HEADS, PAGE, PICTURES, Reproduced, write_reproduced
from retcon.report.papers.rstar2 import RSTAR2
from retcon.report.papers.types import Paper, Study, Variant
from retcon.store.whole import alone, explained, write_whole

PAPERS = {paper.name: paper for paper in (CLEANER, RSTAR2)}
SWITCHED = "recipes"
"""Folder for the recipes that are made here, of arms that change their [repair] on the way."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """compared: all arms of the folder. arms: of those, the names that the studies are about. about: name to what an
    arm is trained with, in words."""

    paper: Paper
    studies: tuple[Study, ...]
    compared: ComparePlan
    ledger: Ledger[CompareBook]
    arms: tuple[str, ...]
    about: dict[str, str]

    @property
    def targets(self) -> list[Target]:
        """In the order in which they are to be done, seed by seed; evaluations with purification on are made of the
        arms alone whose studies read them."""
        repaired = {arm for study in self.studies if study.repaired for arm in self.paper.compared(study)}
        mine = [target for arm in self.arms for seed in self.compared.seeds
                for target in self.compared.trained[arm, seed]
                if arm in repaired or target.makes.parent.name != REPAIRED]  # fmt: skip
        named = {name for target in mine for name in (target.job.name, *target.job.needs)}
        return [target for target in self.compared.targets if target.job.name in named]


def make_reproduction(
    options: CompareOptions, paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str], words: Sequence[str]
) -> Reproduction:
    """Plan a reproduction, and write the recipes that are made for it once nothing refuses it.

    Arms that the folder has already come first, in its order, so that a session can be about other studies than the one
    before. words: overrides. Raises as `make_plan`, `open_ledger` and `write_recipes` do.
    """
    wanted = {variant.name for variant in paper.arms_of(studies)}
    there = list(read_book(options.out / FILE, CompareBook).arms)
    known = {variant.name: variant for variant in paper.variants}
    order = [name for name in there if name in known]
    order += [name for name in known if name in wanted and name not in order]
    variants = [known[name] for name in order]
    if all(variant.start for variant in variants) and (options.start or options.cold):
        flag = "--from" if options.start else "--cold-start"
        raise RecipeError(f"{flag}: the arms {', '.join(order)} begin at a model of their own: leave it out")
    compared = make_plan(options, make_arms(variants, recipes, words, options.out), words)
    ledger = open_ledger(compared, ours=(SWITCHED,))
    write_recipes(compared.arms, options.out)
    about = {variant.name: describe(variant, recipes) for variant in paper.variants if variant.name in wanted}
    return Reproduction(paper, studies, compared, ledger, tuple(about), about)


def quick_overrides(paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str]) -> list[str]:
    """The overrides of `--quick` that some arm of these studies can have."""
    used = {recipes[variant.role] for variant in paper.arms_of(studies)}
    return [override for override in paper.quick if any(taken(recipe, [override]) for recipe in used)]


def find_paper(words: Sequence[str]) -> tuple[Paper, list[str]]:
    """The words after `retcon reproduce`: a paper, and overrides. Raises RecipeError for an unknown paper, with the
    nearest, and for a further word that is no override."""
    name, overrides = split_overrides(words)
    if name not in PAPERS:
        hint = nearest(name, PAPERS) if name else ""
        raise RecipeError(f"no paper '{name or ''}'{hint}: there are {' and '.join(PAPERS)}")
    return PAPERS[name], overrides


def select_studies(paper: Paper, only: str | None) -> tuple[Study, ...]:
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


def describe(variant: Variant, recipes: Mapping[str, str]) -> str:
    """The recipe of an arm, in words."""
    switch = f", then the [repair] of {recipes[variant.switches_to]}" if variant.switches_to else ""
    rate = (f"rl.lr × {variant.rate:g}",) if variant.rate != 1 else ()
    return " ".join((recipes[variant.role] + switch, *variant.keys, *rate))


def _arm(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str], out: Path) -> Arm:
    own = _own(variant, recipes, overrides)
    if variant.rate != 1:
        own.append(f"rl.lr={variant.rate * load_recipe(recipes[variant.role], [*variant.keys, *own]).rl.lr:.6g}")
    if variant.switches_to:
        path, later = out / SWITCHED / f"{variant.name}.toml", _later(variant, recipes, overrides)
        return arm_of(variant.name, str(path), (), recipe_to_toml(_switched(variant, recipes, own, later)))
    return arm_of(variant.name, recipes[variant.role], (*variant.keys, *own), start=variant.start)


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
        _, reason = complaint(error.errors()[0], data)
        raise RecipeError(f"{variant.name}, of {recipes[variant.role]}: {reason}") from error


def finish(plan: Reproduction, seconds: float, command: str, console: Console, *, quick: bool = False) -> None:
    """Write the page of the plan's runs into its folder, and print its tables."""
    out, seeds = plan.compared.options.out, plan.compared.seeds
    runs = {arm: [read_compared(out, arm, seed) for seed in seeds] for arm in plan.arms}
    recipes = {arm.name: arm.settings for arm in plan.compared.arms if arm.name in runs}
    found = Reproduced(plan.paper, plan.studies, runs, recipes, plan.about, command, seconds, quick)
    for report in write_reproduced(found, out):
        beside = Table(box=box.HORIZONTALS, pad_edge=False, title=f"{report.study.title}: beside the paper",
                       title_justify="left", title_style="bold")  # fmt: skip
        for head in HEADS:
            beside.add_column(head, overflow="fold")
        for line in report.lines:
            beside.add_row(*map(Text, line))
        for table in (*report.sheet.tables(console), beside):
            console.print(table)
            console.print()
    console.print(f"{seconds / 60:.1f} minutes in all. Where everything is, in {out}:", highlight=False, soft_wrap=True)
    places = {
        "page": PAGE,
        "figures": FIGURES,
        "pictures": f"{PICTURES}/<study>/*.png",
        "models": "<arm>/seed-<n>/final",
    }
    folders = [run_folder(out, arm, seeds[0]) for arm in plan.arms[:2]]
    lines = [
        command_line("retcon", "report", *folders),
        command_line("retcon", "show", folders[-1] / "eval" / "trajectories-t1.jsonl"),
    ]
    print_end(console, places, found.caveat, lines)


def print_studies(paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str], console: Console) -> None:
    """Print what there is to run, and with which arms."""
    console.print(f"{paper.title} (arXiv {paper.arxiv})", highlight=False, soft_wrap=True)
    for study in studies:
        arms = ", ".join(paper.compared(study))
        console.print(Text.assemble("  ", (f"{study.name:<10}", "bold"), f"{study.title}: {arms}"), soft_wrap=True)
    console.print("Its arms:", highlight=False)
    for variant in paper.arms_of(studies):
        about = describe(variant, recipes)
        console.print(Text.assemble("  ", (f"{variant.name:<17}", "bold"), about), soft_wrap=True)
