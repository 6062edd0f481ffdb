"""What the quickstart does, as jobs: a cold start, then for each arm and seed a training and an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retcon.cli.arguments import of_cold_start, of_sections, refuse_untaken, taken
from retcon.cli.common.targets import Target, cold_start, evaluation, training
from retcon.cli.quickstart.sets import DEFAULT, SETS, QuickstartSet
from retcon.core.errors import RecipeError

ARM_SECTIONS = (
    "run", "compute", "lora", "engine", "task", "rollout", "strategy", "repair", "select", "sandbox", "rl", "evaluate",
    "track",
)  # fmt: skip
MEASURED = ("compute", "engine", "task", "rollout", "sandbox", "evaluate")
"""What a cold start's evaluation shares with the arms'."""
SEED = "run.seed"
"""Of the cold start and the first seed of the arms; the others count on from there."""
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

    Raises RecipeError for an unknown arm and for an override that is wrong, that no job takes, would make the arms
    alike or have them measured in another way than the table says, before any work starts.
    """
    recipes = {arm: about.arm(arm) for arm in arms}
    for override in overrides:
        if (key := _key(override)) in REFUSED:
            raise RecipeError(f"override '{override}': {key} {REFUSED[key]}")
    talking = [o for o in overrides if _key(o) in TALKING]
    threads = [o for o in overrides if _key(o) == "run.threads"] or ["run.threads=1"]
    start = of_cold_start(about.cold_start, overrides)
    shared = [o for o in of_sections(overrides, ARM_SECTIONS) if _key(o) != SEED]
    own = {arm: taken(recipe, shared) for arm, recipe in recipes.items()}
    takers = [*((recipe, [*talking, *own[arm]]) for arm, recipe in recipes.items()), (about.cold_start, start)]
    refuse_untaken(overrides, takers)
    if lost := [o for o in overrides if not any(o in some for _, some in takers)]:
        raise RecipeError(f"override '{lost[0]}': no job of a quickstart has a use for {_key(lost[0])}")
    cold = _cold_start(
        out,
        about.cold_start,
        [*(FROM_SCRATCH if from_scratch else ()), *start],
        [*talking, *taken(about.cold_start, of_sections(overrides, MEASURED)), *threads],
    )
    first = cold[0].recipe.run.seed
    words = overrides if options is None else options
    plan = Plan(about, out, cold, (*words, *(["--from-scratch"] if from_scratch else ())))
    for seed in range(first, first + seeds):
        for arm, recipe in recipes.items():
            plan.arms[arm, seed] = _arm(plan, arm, recipe, seed, [*talking, *own[arm]])
    return plan


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _cold_start(out: Path, name: str, overrides: Sequence[str], measured: Sequence[str]) -> tuple[Target, Target]:
    made = cold_start(out, out / "cold_start", name, overrides, name="cold start", demos=out / "demonstrations.jsonl")
    return made, evaluation(out, made, name, measured)


def _arm(plan: Plan, arm: str, recipe: str, seed: int, overrides: Sequence[str]) -> tuple[Target, Target]:
    cold, changes = plan.cold[0], (*overrides, f"{SEED}={seed}")
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
