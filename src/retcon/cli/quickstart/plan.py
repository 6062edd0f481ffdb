"""What the quickstart does, as jobs: a cold start, then for each arm and seed a training and an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retcon.cli.common.overriding import COLD_SECTIONS, of_sections, refuse_unless_taken, takes
from retcon.cli.common.targets import Target, cold_start, evaluation, training
from retcon.cli.quickstart.sets import DEFAULT, SETS, QuickstartSet
from retcon.core.errors import RecipeError

ARM_SECTIONS = (
    "compute", "lora", "engine", "task", "rollout", "repair", "select", "sandbox", "rl", "evaluate", "track",
)  # fmt: skip
TALKING = ("model.style", "model.thinking")
"""How the model is talked to must be the same in all of them."""
REFUSED = {
    "repair.kind": "distinguishes the arms; choose them with --arms",
    "select.kind": "distinguishes the arms; choose them with --arms",
    "evaluate.repair": "is none here, as the table says; `retcon eval --repair` measures with purification on",
}
"""Keys that overrides cannot have, and why."""
FROM_SCRATCH = ("model.path=scratch", "sft.demonstrations=10000", "sft.steps=800", "sft.lr=4e-3")
"""A new model must learn words, numbers and copying besides the tool habit: 4 to 6 minutes instead of one."""


@dataclass(frozen=True, slots=True)
class Plan:
    """about: which quickstart. cold: trains and evaluates the cold start. arms: (arm, seed) to its training and
    evaluation. options: words of the command that its recipes depend on, the quickstart's name first unless it is the
    default. hours: that the steps were fitted to, by the overrides `fitted`; None where nothing was measured."""

    about: QuickstartSet
    out: Path
    cold: tuple[Target, Target]
    options: tuple[str, ...]
    arms: dict[tuple[str, int], tuple[Target, Target]] = field(default_factory=dict)
    hours: float | None = None
    fitted: tuple[str, ...] | None = None

    @property
    def targets(self) -> list[Target]:
        return [*self.cold, *(target for pair in self.arms.values() for target in pair)]

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
    """The plan. overrides: each goes to the jobs that its section concerns. about: which quickstart. options: what
    stands for the overrides in a command, where they are not the user's own words.

    Raises RecipeError for an unknown arm and for an override that is wrong, would make the arms alike or have them
    measured in another way than the table says, before any work starts.
    """
    recipes = {arm: about.arm(arm) for arm in arms}
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key in REFUSED:
            raise RecipeError(f"override '{override}': {key} {REFUSED[key]}")
        refuse_unless_taken(override, list(recipes.values()))
    scratch = FROM_SCRATCH if from_scratch else ()
    talking = [o for o in overrides if o.partition("=")[0].strip() in TALKING]
    cold = _cold_start(
        out,
        about.cold_start,
        [*scratch, *of_sections(overrides, COLD_SECTIONS)],
        [*talking, *of_sections(overrides, ("compute", "engine", "task", "rollout", "sandbox", "evaluate"))],
    )
    first = cold[0].recipe.run.seed
    words = overrides if options is None else options
    plan = Plan(about, out, cold, (*words, *(["--from-scratch"] if from_scratch else ())))
    for seed in range(first, first + seeds):
        for arm, recipe in recipes.items():
            own = [o for o in of_sections(overrides, ARM_SECTIONS) if takes(recipe, o)]
            plan.arms[arm, seed] = _arm(plan, arm, recipe, seed, [*talking, *own])
    return plan


def _cold_start(out: Path, name: str, overrides: Sequence[str], measured: Sequence[str]) -> tuple[Target, Target]:
    made = cold_start(out, out / "cold_start", name, overrides, name="cold start", demos=out / "demonstrations.jsonl")
    return made, evaluation(out, made, name, (*measured, "run.threads=1"))


def _arm(plan: Plan, arm: str, recipe: str, seed: int, overrides: Sequence[str]) -> tuple[Target, Target]:
    cold, changes = plan.cold[0], (*overrides, f"run.seed={seed}")
    made = training(
        plan.out,
        plan.run_folder(arm, seed),
        recipe,
        changes,
        name=f"{arm}, seed {seed}",
        start=str(cold.makes.parent),
        needs=(cold.job.name,),
    )
    return made, evaluation(plan.out, made, recipe, changes)
