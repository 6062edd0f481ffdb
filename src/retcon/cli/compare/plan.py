"""What `retcon compare` does, as targets: for each seed a cold start, then each arm's training and its evaluations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from retcon.build import as_evaluated
from retcon.cli.arguments import COLD_SECTIONS, of_cold_start, of_sections
from retcon.cli.common.targets import (
    EVALUATION,
    Book,
    Ledger,
    Target,
    cold_start,
    evaluation,
    read_book,
    refuse_foreign,
    training,
)
from retcon.cli.compare.arms import UNTRAINED, Arm, arm_of, refuse_other_models, refuse_unshared
from retcon.cli.compare.matching import KEYS, Match, late_words, matched
from retcon.core.errors import CheckpointError, RecipeError, TaskWarning
from retcon.report.comparison import FAULTS, REPAIRED, run_folder

FILE = "comparison.json"


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What the command was given besides the arms. start: a model for all, in place of a cold start. cold: the recipe
    of the cold start, where it is not the first arm's. faults: share of calls that fail in the third evaluation, 0
    leaves that out."""

    out: Path
    seeds: int
    match: Match
    start: str | None = None
    cold: str | None = None
    faults: float = 0.1


@dataclass(frozen=True, slots=True)
class ComparePlan:
    """cold: (Arm.start, seed) to the cold start, absent where arms start from a model. trained: (arm, seed) to the
    training and its evaluations."""

    options: CompareOptions
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    cold: dict[tuple[str, int], Target] = field(default_factory=dict)
    trained: dict[tuple[str, int], tuple[Target, ...]] = field(default_factory=dict)

    @property
    def targets(self) -> list[Target]:
        """In the order in which they are to be done, seed by seed."""
        found: list[Target] = []
        for seed in self.seeds:
            found += (target for (_, number), target in self.cold.items() if number == seed)
            found += (target for arm in self.arms for target in self.trained[arm.name, seed])
        return found


class CompareBook(Book):
    """comparison.json. arms: name to recipe, the first one first."""

    arms: dict[str, str] = msgspec.field(default_factory=dict)
    match: str = ""
    faults: float = 0.0
    start: str | None = None


def make_plan(options: CompareOptions, arms: Sequence[Arm], overrides: Sequence[str] = ()) -> ComparePlan:
    """Plan a comparison; arms share a cold start, or a model, with those of the same `Arm.start`.

    overrides: those of the command, of which a cold start takes its own. Raises RecipeError for arms that cannot share
    a cold start, or not be matched, CheckpointError for a model that is not there.
    """
    arms = matched(arms, options.match)
    first = arms[0].settings.run.seed
    plan = ComparePlan(options, tuple(arms), tuple(range(first, first + options.seeds)))
    origins = {
        (start, seed): origin
        for start in dict.fromkeys(arm.start for arm in arms)
        for seed, origin in _origins(plan, start, overrides).items()
    }
    for seed in plan.seeds:
        budget = _Origin("")
        for arm in arms:
            origin = origins[arm.start, seed]
            origin = replace(origin, needs=(*origin.needs, *budget.needs), late=budget.late)
            plan.trained[arm.name, seed] = targets = _arm_targets(options, arm, seed, origin)
            if arm is arms[0] and options.match in KEYS:  # the others' budget is what it has spent
                late = late_words(options.match, run_folder(options.out, arm.name, seed))
                budget = _Origin("", (targets[0].job.name,), late)
    return plan


def arms_in(out: Path) -> tuple[str, ...]:
    """Names of the arms of the comparison in `out`, none where there is none. Raises CheckpointError where it cannot be
    read."""
    return tuple(read_book(out / FILE, CompareBook).arms) if (out / FILE).is_file() else ()


def open_ledger(plan: ComparePlan, *, ours: Sequence[str] = ()) -> Ledger[CompareBook]:
    """The book of the plan's folder. Arms and seeds may be added to a comparison. ours: names of what may be there
    before it. Raises CheckpointError where the folder holds another one, or something else."""
    out, options = plan.options.out, plan.options
    refuse_foreign(out, FILE, "comparison", ours)
    book, arms = read_book(out / FILE, CompareBook), {arm.name: arm.recipe for arm in plan.arms}
    if book.arms:
        # By name: a recipe's path can be spelled in several ways, and the ledger holds its contents against the runs'.
        if list(arms)[: len(book.arms)] != list(book.arms):
            raise CheckpointError(
                f"{out} compares {', '.join(book.arms.values())}: name these first, in that order, to continue or "
                "to add others; or choose another --out"
            )
        given = {"--match": (book.match, options.match), "--faults": (book.faults, options.faults),
                 "--from": (book.start, options.start)}  # fmt: skip
        for name, (old, new) in given.items():
            if old != new:
                raise CheckpointError(f"{out} was made with {name} {old}, not {new}: choose another --out")
    ledger = Ledger(out / FILE, plan.targets, CompareBook)
    book = ledger.book
    book.arms, book.match, book.faults, book.start = arms, options.match, options.faults, options.start
    return ledger


def _origins(plan: ComparePlan, start: str, overrides: Sequence[str]) -> dict[int, _Origin]:
    """Seed to where the arms of this start begin; cold starts go into the plan."""
    arms = [arm for arm in plan.arms if arm.start == start]
    # --from and --cold-start are of the command's own start: they have another model
    options = replace(plan.options, start=None, cold=None) if start else plan.options
    cold = _cold_recipe(options, arms, overrides)
    model = options.start or (cold or arms[0]).settings.model.path
    if model not in UNTRAINED:
        from retcon.models.locating import locate  # it needs the [train] extra

        locate(model)
    if cold is None:
        return dict.fromkeys(plan.seeds, _Origin(model))
    made = {seed: _cold_target(options.out, cold, seed, start) for seed in plan.seeds}
    plan.cold.update({(start, seed): target for seed, target in made.items()})
    return {seed: _Origin(str(target.makes.parent), (target.job.name,)) for seed, target in made.items()}


def _cold_recipe(options: CompareOptions, arms: Sequence[Arm], overrides: Sequence[str]) -> Arm | None:
    """What a cold start is made with; None where all arms start from a model that is there."""
    if options.start is not None:
        if options.cold is not None:
            raise RecipeError("--from names a model to start from, --cold-start a recipe to make one: give one of them")
        return None
    if options.cold is not None:
        cold = arm_of("cold start", options.cold, of_cold_start(options.cold, overrides))
        refuse_other_models(cold, arms)
        return cold
    refuse_unshared(arms)
    if arms[0].settings.model.path not in UNTRAINED:
        return None
    return arm_of("cold start", arms[0].recipe, of_sections(arms[0].overrides, COLD_SECTIONS))


def _cold_target(out: Path, cold: Arm, seed: int, start: str) -> Target:
    home = out / "cold_start" / start
    return cold_start(
        out,
        home / f"seed-{seed}",
        cold.recipe,
        (*cold.overrides, f"run.seed={seed}"),
        name=f"cold start{f' of {start}' * bool(start)}, seed {seed}",
        demos=home / f"demonstrations-{seed}.jsonl",
    )


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where an arm starts from, and what its job waits for and is then told besides."""

    model: str
    needs: tuple[str, ...] = ()
    late: Callable[[], Sequence[str]] = tuple


def _arm_targets(options: CompareOptions, arm: Arm, seed: int, origin: _Origin) -> tuple[Target, ...]:
    changes = (*arm.overrides, f"run.seed={seed}")
    name = f"{arm.name}, seed {seed}"
    folder = run_folder(options.out, arm.name, seed)
    made = training(
        options.out,
        folder,
        arm.recipe,
        changes,
        name=name,
        start=origin.model,
        needs=origin.needs,
        late=origin.late,
        text=arm.text,
    )
    return (
        made,
        *(
            evaluation(
                options.out, made, arm.recipe, (*changes, *own), name=f"{name}, {into}", into=into, text=arm.text
            )
            for into, own in _conditions(options, arm, folder).items()
        ),
    )


def _conditions(options: CompareOptions, arm: Arm, run: Path) -> dict[str, tuple[str, ...]]:
    """Overrides of the evaluations of an arm's run, by their folders in it. Warns (TaskWarning) where there is none
    with repairs, as what its tasks bring cannot go back to where a failed call began, and where calls may not be ours
    to repair or to let fail."""
    repair = arm.settings.repair.kind if arm.settings.repair.kind != "none" else "saar"
    repaired = ("evaluate.top_p=1.0", f"evaluate.repair={repair}")
    found: dict[str, tuple[str, ...]] = {EVALUATION: (), REPAIRED: repaired}
    try:
        if not (run / REPAIRED / "result.json").exists():
            arm.settings.task.refuse_rollouts(as_evaluated(arm.changed(*repaired).settings))
    except RecipeError as error:
        warnings.warn(f"no arm is measured with purification on: {error}", TaskWarning, stacklevel=2)
        del found[REPAIRED]
    if arm.settings.rollout.harness:
        warnings.warn(
            "calls that a harness runs itself are not repaired in the evaluation with purification on, nor do they "
            "fail in the one with faulty tools (--faults 0 leaves that out): docs/training/harnesses.md",
            TaskWarning,
            stacklevel=2,
        )
    return {**found, FAULTS: ("evaluate.top_p=1.0", f"evaluate.faults={options.faults}")} if options.faults else found
