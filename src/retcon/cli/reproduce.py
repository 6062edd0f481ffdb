"""Plan and results of `retcon reproduce`: a paper's variants as compared arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from retcon.cli.arguments import check_taken, command_line, overrides_of, select_overrides, split_overrides
from retcon.cli.compare import Arm, CompareOptions, Comparison, add_curve, arms_in, finish_arms, make_arm, make_plan
from retcon.cli.runner import Target, print_end
from retcon.config.load import explain_error, find_recipe, load_recipe, recipe_to_toml
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, nearest
from retcon.report.comparison import REPAIRED, read_arm_run
from retcon.report.papers.cleaner import CLEANER
from retcon.report.papers.page import FIGURES, HEADS, PAGE, PICTURES, PaperResults, write_reproduction
from retcon.report.papers.rstar2 import RSTAR2
from retcon.report.papers.types import Paper, Study, Variant
from retcon.report.runs import run_folder
from retcon.store.whole import lock_folder, storage_errors, write_whole

PAPERS = {paper.name: paper for paper in (CLEANER, RSTAR2)}
SWITCHED = "recipes"
"""Folder of generated recipes, of arms that change their [repair] halfway."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """Some studies of a paper, and the comparison that trains their arms.

    Args:
        compared: all arms of the folder, those of earlier sessions included.
        about: name of each arm of the studies to a description of its training.
    """

    paper: Paper
    studies: tuple[Study, ...]
    compared: Comparison
    about: dict[str, str]

    @property
    def targets(self) -> list[Target]:
        """Return the studies' targets, evaluations with purification only where read."""
        repaired = {arm for study in self.studies if study.repaired for arm in self.paper.compared(study)}
        mine = [target for (arm, _), targets in self.compared.trained.items() if arm in self.about for target in targets
                if arm in repaired or target.makes.parent.name != REPAIRED]  # fmt: skip
        named = {name for target in mine for name in (target.job.name, *target.job.needs)}
        return [target for target in self.compared.targets if target.job.name in named]


def make_reproduction(
    options: CompareOptions, paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str], words: Sequence[str]
) -> Reproduction:
    """Plan a reproduction, and write its generated recipes once nothing refuses it.

    Arms that the folder has already come first, so that a session can be about other studies than the one before.
    words: overrides. Raises RecipeError, CheckpointError, StorageError.
    """
    wanted = {variant.name for variant in paper.arms_of(studies)}
    known = {variant.name: variant for variant in paper.variants}
    order = [name for name in arms_in(options.out) if name in known]
    order += [name for name in known if name in wanted and name not in order]
    variants = [known[name] for name in order]
    if all(variant.start for variant in variants) and (options.start or options.cold):
        flag = "--from" if options.start else "--cold-start"
        raise RecipeError(f"{flag}: the arms {', '.join(order)} begin at a model of their own: leave it out")
    compared = make_plan(options, make_arms(variants, recipes, words, options.out), words)
    compared.open(ours=(SWITCHED,))
    _write_recipes(compared.arms, options.out)
    about = {variant.name: describe(variant, recipes) for variant in paper.variants if variant.name in wanted}
    return Reproduction(paper, studies, compared, about)


def quick_overrides(paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str]) -> list[str]:
    """Return the overrides of `--quick` that some arm of these studies takes."""
    used = {recipes[variant.role] for variant in paper.arms_of(studies)}
    return [override for override in paper.quick if any(select_overrides(recipe, [override]) for recipe in used)]


def find_paper(words: Sequence[str]) -> tuple[Paper, list[str]]:
    """Read the words after `retcon reproduce`: paper and overrides. Raises RecipeError with the nearest name."""
    name, overrides = split_overrides(words)
    if name not in PAPERS:
        hint = nearest(name, PAPERS) if name else ""
        raise RecipeError(f"no paper '{name or ''}'{hint}: there are {' and '.join(PAPERS)}")
    return PAPERS[name], overrides


def select_studies(paper: Paper, only: str | None) -> tuple[Study, ...]:
    """Return the studies of a list such as `main,gamma`, by default all. Raises RecipeError with the nearest name."""
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
    """Map roles to recipes, `given` ones (ROLE=RECIPE) replacing the miniature's. Raises RecipeError."""
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
    """Make an arm of each variant; overrides go to all that have the key.

    Arms that switch have recipes in `out` that are not written yet. Raises RecipeError.
    """
    takers = [(recipes[v.role], [*v.keys, *_own_overrides(v, recipes, overrides)]) for v in variants]
    takers += [(recipes[v.switches_to], _later_overrides(v, recipes, overrides)) for v in variants if v.switches_to]
    check_taken(overrides, takers)
    return finish_arms([_arm(variant, recipes, overrides, out) for variant in variants])


def _write_recipes(arms: Sequence[Arm], out: Path) -> None:
    """Write the recipes that arms bring, where they changed. Raises CheckpointError, StorageError."""
    todo = [(Path(arm.recipe), arm.text) for arm in arms if arm.text is not None]
    todo = [(path, text) for path, text in todo if not path.is_file() or path.read_text(encoding="utf-8") != text]
    if not todo:
        return
    with lock_folder(out):
        for path, text in todo:
            with storage_errors(path.parent):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)


def describe(variant: Variant, recipes: Mapping[str, str]) -> str:
    """Describe the recipe of an arm."""
    switch = f", then the [repair] of {recipes[variant.switches_to]}" if variant.switches_to else ""
    rate = (f"rl.lr × {variant.rate:g}",) if variant.rate != 1 else ()
    return " ".join((recipes[variant.role] + switch, *variant.keys, *rate))


def _arm(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str], out: Path) -> Arm:
    own = _own_overrides(variant, recipes, overrides)
    if variant.rate != 1:
        own.append(f"rl.lr={variant.rate * load_recipe(recipes[variant.role], [*variant.keys, *own]).rl.lr:.6g}")
    if variant.switches_to:
        path, later = out / SWITCHED / f"{variant.name}.toml", _later_overrides(variant, recipes, overrides)
        return make_arm(variant.name, str(path), (), recipe_to_toml(_two_stages(variant, recipes, own, later)))
    return make_arm(variant.name, recipes[variant.role], (*variant.keys, *own), start=variant.start)


def _own_overrides(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Overrides of a variant's recipe, except of the keys that it is about."""
    about = [key.partition("=")[0] for key in variant.keys]
    free = [o for o in overrides if o.partition("=")[0] not in about]
    return select_overrides(recipes[variant.role], free, variant.keys)


def _later_overrides(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str]) -> list[str]:
    """Overrides of the [repair] that a variant switches to."""
    return select_overrides(recipes[variant.switches_to], overrides_of(overrides, ("repair",)))


def _two_stages(variant: Variant, recipes: Mapping[str, str], overrides: Sequence[str], later: Sequence[str]) -> Recipe:
    """A recipe of two stages: the variant's own, then with the other's [repair]. later: overrides of that one."""
    before = make_arm(variant.name, recipes[variant.role], overrides)
    base = add_curve(before, before).settings  # written out whole, so nothing can be added later
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
        _, reason = explain_error(error.errors()[0], data)
        raise RecipeError(f"{variant.name}, of {recipes[variant.role]}: {reason}") from error


def print_reproduction(
    plan: Reproduction, seconds: float, command: str, console: Console, *, quick: bool = False
) -> None:
    """Write the page of the runs, and print its tables."""
    out, seeds, arms = plan.compared.out, plan.compared.seeds, list(plan.about)
    runs = {arm: [read_arm_run(out, arm, seed) for seed in seeds] for arm in arms}
    recipes = {arm.name: arm.settings for arm in plan.compared.arms if arm.name in runs}
    found = PaperResults(plan.paper, plan.studies, runs, recipes, plan.about, command, seconds, quick)
    for report in write_reproduction(found, out):
        beside = Table(box=box.HORIZONTALS, pad_edge=False, title=f"{report.study.title}: beside the paper",
                       title_justify="left", title_style="bold")  # fmt: skip
        for head in HEADS:
            beside.add_column(head, overflow="fold")
        for line in report.lines:
            beside.add_row(*map(Text, line))
        for table in (*report.sheet.tables(console), beside):
            console.print(table)
            console.print()
    files = {
        "page": PAGE,
        "figures": FIGURES,
        "pictures": f"{PICTURES}/<study>/*.png",
        "models": "<arm>/seed-<n>/final",
    }
    folders = [run_folder(out, arm, seeds[0]) for arm in arms[:2]]
    commands = [
        command_line("retcon", "report", *folders),
        command_line("retcon", "show", folders[-1] / "eval" / "trajectories-t1.jsonl"),
    ]
    print_end(console, out, seconds, files, commands, found.caveat)


def print_studies(paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str], console: Console) -> None:
    """Print the available studies and their arms."""
    console.print(f"{paper.title} (arXiv {paper.arxiv})", highlight=False, soft_wrap=True)
    for study in studies:
        arms = ", ".join(paper.compared(study))
        console.print(Text.assemble("  ", (f"{study.name:<10}", "bold"), f"{study.title}: {arms}"), soft_wrap=True)
    console.print("Its arms:", highlight=False)
    for variant in paper.arms_of(studies):
        about = describe(variant, recipes)
        console.print(Text.assemble("  ", (f"{variant.name:<17}", "bold"), about), soft_wrap=True)
