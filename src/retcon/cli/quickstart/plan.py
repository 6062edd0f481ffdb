"""What the quickstart does, as jobs: a cold start, then for each arm and seed a training and an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retcon.cli.quickstart.jobs import Job
from retcon.cli.quickstart.sets import DEFAULT, SETS, QuickstartSet
from retcon.config.keys import homes
from retcon.config.load import load_recipe
from retcon.config.schema import SECTIONS, Recipe
from retcon.config.shipped import find_recipe
from retcon.core.errors import RecipeError

COLD_SECTIONS = ("run", "model", "compute", "lora", "task", "rollout", "sandbox", "demos", "sft")
ARM_SECTIONS = ("compute", "lora", "engine", "task", "rollout", "repair", "select", "sandbox", "rl", "evaluate")
TALKING = ("model.style", "model.thinking")
"""How the model is talked to must be the same in all stages."""
REFUSED = ("repair.kind", "select.kind")
FROM_SCRATCH = ("model.path=scratch", "sft.demonstrations=10000", "sft.steps=800", "sft.lr=4e-3")
"""A new model must learn words, numbers and copying besides the tool habit: 4 to 6 minutes instead of one."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A job, the recipe that it runs under, the file or folder that is there once it has finished, and the overrides
    that made its recipe."""

    job: Job
    recipe: Recipe
    makes: Path
    overrides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """about: which quickstart. cold: trains and evaluates the cold start. arms: (arm, seed) to its training and
    evaluation. options: words of the command that its recipes depend on, the quickstart's name first unless it is the
    default. hours: that the steps were fitted to, by the overrides `fitted`; None where nothing was measured."""

    about: QuickstartSet
    out: Path
    cold: tuple[Stage, Stage]
    options: tuple[str, ...]
    arms: dict[tuple[str, int], tuple[Stage, Stage]] = field(default_factory=dict)
    hours: float | None = None
    fitted: tuple[str, ...] | None = None

    @property
    def stages(self) -> list[Stage]:
        return [*self.cold, *(stage for pair in self.arms.values() for stage in pair)]

    def run_folder(self, arm: str, seed: int) -> Path:
        return self.out / arm / f"seed-{seed}"


def make_plan(
    out: Path,
    *,
    arms: Sequence[str],
    seeds: int,
    overrides: Sequence[str] = (),
    from_scratch: bool = False,
    about: QuickstartSet = SETS[DEFAULT],
    options: Sequence[str] | None = None,
) -> Plan:
    """The plan. overrides: each goes to the stages that its section concerns. about: which quickstart. options: what
    stands for the overrides in a command, where they are not the user's own words.

    Raises RecipeError for an unknown arm and for an override that is wrong or would make the arms alike, before any
    work starts.
    """
    recipes = {arm: about.arm(arm) for arm in arms}
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in REFUSED:
            raise RecipeError(f"override '{override}': {key} is what tells the arms apart; choose them with --arms")
        _refuse_unless_some_arm_takes(override, list(recipes.values()))
    scratch = FROM_SCRATCH if from_scratch else ()
    talking = [o for o in overrides if o.partition("=")[0].strip() in TALKING]
    cold = _cold_start(
        out,
        about.cold_start,
        [*scratch, *_of(overrides, COLD_SECTIONS)],
        [*talking, *_of(overrides, ("compute", "engine", "task", "rollout", "sandbox", "evaluate"))],
    )
    first = cold[0].recipe.run.seed
    words = overrides if options is None else options
    plan = Plan(about, out, cold, (*words, *(["--from-scratch"] if from_scratch else ())))
    for seed in range(first, first + seeds):
        for arm, recipe in recipes.items():
            own = [o for o in _of(overrides, ARM_SECTIONS) if not _of_another_kind(recipe, o)]
            plan.arms[arm, seed] = _arm(plan, arm, recipe, seed, [*talking, *own])
    return plan


def _refuse_unless_some_arm_takes(override: str, recipes: Sequence[str]) -> None:
    """Raises RecipeError where the override is wrong, or of a kind that no arm is of."""
    taking = [recipe for recipe in recipes if not _of_another_kind(recipe, override)]
    load_recipe(find_recipe((taking or recipes)[0]), [override])


def _of_another_kind(recipe: str, override: str) -> bool:
    """Whether the override sets a key of a kind that the recipe is not of: such as SAAR's γ where nothing repairs."""
    section, _, key = override.partition("=")[0].strip().partition(".")
    if section not in SECTIONS or not (kinds := homes(section, key)):
        return False
    about = getattr(load_recipe(find_recipe(recipe)), section)
    return getattr(about, about.chosen_by) not in kinds


def _cold_start(out: Path, name: str, overrides: Sequence[str], evaluation: Sequence[str]) -> tuple[Stage, Stage]:
    folder = out / "cold_start"
    recipe = load_recipe(find_recipe(name), overrides)
    demonstrations = str(out / "demonstrations.jsonl")
    words = ("sft", name, *overrides, "--demonstrations", demonstrations, "--out", str(folder))
    job = Job("cold start", words, _log(out, "cold_start"), threads=recipe.run.threads)
    return (
        Stage(job, recipe, folder / "final", tuple(overrides)),
        _evaluation(out, "cold start, evaluation", folder, name, (*evaluation, "run.threads=1")),
    )


def _arm(plan: Plan, arm: str, recipe: str, seed: int, overrides: Sequence[str]) -> tuple[Stage, Stage]:
    folder = plan.run_folder(arm, seed)
    changes = (*overrides, f"run.seed={seed}")
    start = str(plan.out / "cold_start")
    words = ("train", recipe, *changes, "--from", start, "--out", str(folder))
    settings = load_recipe(find_recipe(recipe), changes)
    job = Job(f"{arm}, seed {seed}", words, _log(plan.out, f"{arm}-{seed}"), threads=settings.run.threads)
    return (
        Stage(job, settings, folder / "final", changes),
        _evaluation(plan.out, f"{arm}, seed {seed}, evaluation", folder, recipe, changes),
    )


def _evaluation(out: Path, name: str, folder: Path, recipe: str, overrides: Sequence[str]) -> Stage:
    target = folder / "eval"
    words = ("eval", str(folder), recipe, *overrides, "--out", str(target))
    log = _log(out, "-".join(folder.relative_to(out).parts) + "-eval")
    return Stage(
        Job(name, words, log), load_recipe(find_recipe(recipe), overrides), target / "result.json", tuple(overrides)
    )


def _log(out: Path, name: str) -> Path:
    return out / "logs" / f"{name}.log"


def _of(overrides: Sequence[str], sections: Sequence[str]) -> list[str]:
    """The overrides of these sections."""
    return [o for o in overrides if o.partition(".")[0].strip() in sections]
