"""Plan and results of `retcon compare`: arms, budgets, starts, evaluations."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from retcon.build import with_evaluation_repair
from retcon.cli.arguments import (
    COLD_SECTIONS,
    READS,
    cold_start_overrides,
    command_line,
    overrides_of,
    sort_recipes,
)
from retcon.cli.runner import EVALUATION, Experiment, cold_start, evaluation, print_end, read_record, training
from retcon.config.load import load_recipe
from retcon.config.schema import Recipe, RLSection, stages_of
from retcon.core.errors import RecipeError, RecordError, TaskWarning
from retcon.core.texts import counted
from retcon.report.comparison import (
    FAULTS,
    REPAIRED,
    SEEDS_OF_A_FINDING,
    ArmComparison,
    caveat,
    read_arm_run,
    write_comparison,
)
from retcon.report.runs import run_folder
from retcon.runs.folder import differing
from retcon.runs.metrics import read_metrics

FILE = "comparison.json"
SHARED_SECTIONS = ("task", "evaluate")
"""Sections that say what arms are measured on."""
CONDITIONS = (
    ("repair", "none", "every arm is measured with purification off, and besides with it on"),
    ("faults", 0.0, "every arm is measured without faults, and besides with those of --faults"),
)
"""Keys of [evaluate] that the plan sets, their value in the first evaluation, and the reason."""
COLD_START_SECTIONS = ("model", "task", "demos", "sft")
"""Sections that arms with one cold start must have in common."""
UNTRAINED = ("base", "base-deep", "scratch")
"""Values of model.path that know no tools: such a model needs a cold start."""
COLD_STARTS = "cold_start"
"""Folder of cold starts, where demonstrations-SEED.jsonl may be before a comparison begins."""
RESERVED = (COLD_STARTS, "logs", "cold start")
"""Names in a comparison's folder, or of its jobs, that no arm can have."""
NAMED_KEYS = 4
"""Keys that a message names at most."""
CURVE_POINTS = 8
"""Held-out evaluations during a training, where the recipes set none."""

Match = Literal["rollouts", "tokens", "updates", "wall"]
MOST = 10
"""An arm with a budget in tokens or seconds ends at this many times the baseline's steps at the latest."""
ABOUT: dict[Match, str] = {
    "rollouts": "equal rollouts trained on: steps × prompts × group",
    "tokens": "equal tokens sampled in training, lookaheads and dropped rollouts among them, to the end of a step",
    "updates": "equal optimiser steps: steps × minibatches × epochs",
    "wall": "equal CPU seconds of training, those of tool calls among them, to the end of a step; this does not repeat "
    "bit for bit",
}
BUDGETS: dict[Match, tuple[str, str]] = {
    "tokens": ("rl.max_sampled_tokens", "sampled_tokens"),
    "wall": ("rl.max_cpu_seconds", "cpu_s"),
}
"""Matches whose budget is what the baseline's run spent: the key that ends a run, and the metric."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A recipe that is compared.

    Args:
        recipe: file or name of a shipped one, as given.
        overrides: those of the command that concern it.
        settings: the recipe with its overrides.
        text: content of the recipe's file, if work must write it first.
        start: name of the start shared with other arms, "" for the command's.
        varied: the override that distinguishes it from other arms of its recipe.
    """

    name: str
    recipe: str
    overrides: tuple[str, ...]
    settings: Recipe
    text: str | None = None
    start: str = ""
    varied: str = ""

    def changed(self, *overrides: str) -> Arm:
        """Return the arm with further overrides. Raises RecipeError."""
        return make_arm(self.name, self.recipe, (*self.overrides, *overrides), self.text, self.start, self.varied)

    @property
    def described(self) -> str:
        """The recipe, and the override that makes the arm."""
        return f"{self.recipe} {self.varied}".rstrip()


def make_arm(
    name: str, recipe: str, overrides: Sequence[str], text: str | None = None, start: str = "", varied: str = ""
) -> Arm:
    """Read an arm's recipe. Raises RecipeError."""
    settings = load_recipe(recipe, overrides, text=text, reads=READS["compare"])
    return Arm(name, recipe, tuple(overrides), settings, text, start, varied)


def read_arms(
    words: Sequence[str], there: Sequence[str] = (), cold: str | None = None, vary: str | None = None
) -> list[Arm]:
    """Make the arms of `sort_recipes`, named by recipe or value. there: see `name_arms`. Raises RecipeError."""
    own = sort_recipes(words, cold, vary)
    names = name_arms([varied.partition("=")[2] or recipe for recipe, varied, _ in own], there).values()
    named = zip(names, own, strict=True)
    return finish_arms([make_arm(name, recipe, given, varied=varied) for name, (recipe, varied, given) in named])


def finish_arms(arms: Sequence[Arm]) -> list[Arm]:
    """Add a learning curve to each arm; check that arms are comparable.

    Raises RecipeError for two equal arms, for arms measured on other problems than the first, and for keys of
    evaluations that the plan sets.
    """
    arms = [add_curve(arm, arms[0]) for arm in arms]
    for number, arm in enumerate(arms):
        for key, plain, instead in CONDITIONS:
            if (value := getattr(arm.settings.evaluate, key)) != plain:
                raise RecipeError(
                    f"{arm.described}: evaluate.{key} = {value!r}, but {instead}. Leave the key "
                    f"out, or set evaluate.{key}={plain} on the command line"
                )
        for other in arms[:number]:
            if _compared_settings(arm) == _compared_settings(other):
                but = " but rl.steps, which are matched" * (arm.settings.rl.steps != other.settings.rl.steps)
                both = f"{other.described} and {arm.described}"
                if other.described == arm.described:  # arms of a reproduction, made alike by overrides
                    both = f"the arms {other.name} and {arm.name}, of {arm.recipe},"
                raise RecipeError(f"{both} are the same recipe here: nothing distinguishes them{but}")
        _check_sections(arms[0], arm, SHARED_SECTIONS, "measured on the same problems")
    return arms


def add_curve(arm: Arm, first: Arm) -> Arm:
    """Add the first arm's evaluation intervals, unless `evaluate.every` is set."""
    if "every" in arm.settings.evaluate.model_fields_set:
        return arm
    return arm.changed(f"evaluate.every={max(1, first.settings.rl.steps // CURVE_POINTS)}")


def name_arms(recipes: Sequence[str], there: Sequence[str] = ()) -> dict[str, str]:
    """Name each arm by the shortest distinct end of its recipe's path.

    there: names in an existing comparison, which its recipes keep. Raises RecipeError for one recipe by two names.
    """
    parts = {recipe: Path(recipe.removesuffix(".toml")).parts for recipe in recipes}
    depths = range(1, max(map(len, parts.values())) + 1)
    kept = dict(zip(recipes, there, strict=False))
    if any(name not in {_end_of(parts[recipe], depth) for depth in depths} for recipe, name in kept.items()):
        kept = {}
    for depth in depths:
        names = {recipe: kept.get(recipe) or _end_of(own, depth) for recipe, own in parts.items()}
        if len(set(names.values())) == len(recipes):
            return names
    raise RecipeError(f"these are one recipe under several names: {', '.join(recipes)}")


def _end_of(parts: Sequence[str], depth: int) -> str:
    name = "-".join(part.strip(os.sep) for part in parts[-depth:])
    return f"arm-{name}" if name in RESERVED else name


def _compared_settings(arm: Arm) -> dict[str, object]:
    """Settings without what is matched (steps), what seeds set, and what all arms start from."""
    settings = arm.settings.model_dump(exclude={"run", "demos", "sft", "dpo"})
    for section in (settings["rl"], *settings.get("stages", ())[-1:]):
        del section["steps"]
    return settings


def _check_sections(one: Arm, other: Arm, sections: Sequence[str], what: str, advice: str = "") -> None:
    old, new = (
        {name: section for name, section in arm.settings.model_dump(mode="json").items() if name in sections}
        for arm in (one, other)
    )
    if changed := sorted(differing(old, new), key=lambda change: " was None" in change):  # keys of one kind last
        more = f"; and {counted(len(changed) - NAMED_KEYS, 'key')} more" if len(changed) > NAMED_KEYS else ""
        raise RecipeError(
            f"{one.described} and {other.described} cannot be {what}: from the first to the second, "
            f"{'; '.join(changed[:NAMED_KEYS])}{more}. Set the same for all on the command line, such as "
            f"{changed[0].partition(' ')[0]}=….{advice}"
        )


def match_budgets(arms: Sequence[Arm], match: Match) -> list[Arm]:
    """Give each arm the number of steps that matches the first one's; stages differ in the last one alone.

    Raises RecipeError where no whole number of steps does, where an arm's learning rate needs a known number of steps,
    or where its last stage would begin too late.
    """
    first, *others = arms
    if match in BUDGETS:
        most = MOST * first.settings.rl.steps
        for arm in others:
            try:
                arm.changed(f"{BUDGETS[match][0]}=1")  # refused by schedules that need the number of steps
            except RecipeError as error:
                why = str(error).partition(": ")[2]  # without the override, which is ours
                raise RecipeError(f"--match {match}: {arm.described}: {why}") from error
            if (begins := stages_of(arm.settings)[-1].before) >= most:
                raise RecipeError(
                    f"--match {match}: {arm.described} has {begins} steps before its last stage, and an arm has no "
                    f"more than {most}, {MOST} times those of {first.described}: change stages.1.steps, or the first "
                    "one's rl.steps"
                )
        return [first, *(_set_steps(arm, most) for arm in others)]
    matched = [first]
    total = sum(stage.steps * _of_a_step(stage.recipe.rl, match) for stage in stages_of(first.settings))
    for arm in others:
        *before, last = stages_of(arm.settings)
        left = total - sum(stage.steps * _of_a_step(stage.recipe.rl, match) for stage in before)
        own, odd = divmod(left, _of_a_step(last.recipe.rl, match))
        if odd or own < 1:
            rest = f" in its last stage, to which {left} are left" if before else ""
            raise RecipeError(
                f"--match {match}: {first.described} has {total} {match}, and {arm.described} has "
                f"{_of_a_step(last.recipe.rl, match)} a step{rest}, which does not divide that evenly: change "
                "rl.steps, or the size of a step"
            )
        matched.append(_set_steps(arm, last.before + own))
    return matched


def _set_steps(arm: Arm, steps: int) -> Arm:
    """Set all steps of an arm, and those of a last stage that names its own number."""
    if steps == arm.settings.rl.steps:
        return arm
    stages = arm.settings.stages
    left = steps - stages_of(arm.settings)[-1].before
    own = [f"stages.{len(stages)}.steps={left}"] if stages and stages[-1].steps else []
    return arm.changed(f"rl.steps={steps}", *own)


def _of_a_step(section: RLSection, match: Match) -> int:
    return section.minibatches * section.epochs if match == "updates" else section.prompts * section.group


def budget_words(match: Match, folder: Path) -> list[str]:
    """Return the override that gives an arm the baseline's budget in `folder`. Raises RecordError."""
    key, metric = BUDGETS[match]
    file = folder / "metrics.jsonl"
    values = [value for line in read_metrics(file) if (value := line.get(metric)) is not None]
    if not any(values):  # a budget of 0 would mean no limit
        raise RecordError(f"{file} has no {metric}: remove {folder}, and the same command trains that run again")
    return [f"{key}={values[-1] if metric == 'cpu_s' else sum(values):.12g}"]  # cpu_s is cumulative


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of `retcon compare`.

    Args:
        start: model for all arms, in place of a cold start.
        cold: recipe of the cold start, if not the first arm's.
        faults: share of calls that fail in the third evaluation; 0 leaves that out.
    """

    out: Path
    seeds: int
    match: Match
    start: str | None = None
    cold: str | None = None
    faults: float = 0.1


@dataclass(slots=True)
class Comparison(Experiment):
    """An experiment of arms with equal budgets."""

    arms: tuple[Arm, ...] = ()


def arms_in(out: Path) -> tuple[str, ...]:
    """Return the arm names of the comparison in `out`, if any. Raises CheckpointError."""
    return tuple(read_record(out / FILE).arms)


def make_plan(options: CompareOptions, arms: Sequence[Arm], overrides: Sequence[str] = ()) -> Comparison:
    """Plan a comparison, seed by seed; arms with one `Arm.start` share a cold start or a model.

    overrides: all of the command. Raises RecipeError for arms that cannot share a start or be matched, CheckpointError
    for a missing model.
    """
    arms, out = match_budgets(arms, options.match), options.out
    first = arms[0].settings.run.seed
    settings = {
        "arms": {arm.name: arm.described for arm in arms},
        "match": options.match,
        "faults": options.faults,
        "start": options.start,
    }
    plan = Comparison(out, FILE, "comparison", range(first, first + options.seeds), settings, arms=tuple(arms))
    origins = {}
    for start in dict.fromkeys(arm.start for arm in arms):
        # --from and --cold-start are for arms without a model of their own
        given = replace(options, start=None, cold=None) if start else options
        origins[start] = _origin(given, [arm for arm in arms if arm.start == start], overrides)
    for seed in plan.seeds:
        starts: dict[str, tuple[str, tuple[str, ...]]] = {}
        for start, (model, cold) in origins.items():
            starts[start] = model, ()
            if cold is not None:
                home, changes = out / COLD_STARTS / start, (*cold.overrides, f"run.seed={seed}")
                name = f"cold start{f' of {start}' * bool(start)}, seed {seed}"
                demos = home / f"demonstrations-{seed}.jsonl"
                made = cold_start(out, home / f"seed-{seed}", cold.recipe, changes, name=name, demos=demos)
                plan.add_cold_start(start, seed, made)
                starts[start] = str(made.makes.parent), (made.job.name,)
        budget: tuple[str, ...] = ()
        late = partial(budget_words, options.match, run_folder(out, arms[0].name, seed))
        for arm in arms:
            model, needs = starts[arm.start]
            folder, changes = run_folder(out, arm.name, seed), (*arm.overrides, f"run.seed={seed}")
            trained = training(
                out, folder, arm.recipe, changes, name=f"{arm.name}, seed {seed}", start=model,
                needs=(*needs, *budget), late=late if budget else tuple, text=arm.text,
            )  # fmt: skip
            measured = (
                evaluation(out, trained, arm.recipe, (*changes, *own), label=into, into=into, text=arm.text)
                for into, own in _conditions(options, arm, folder).items()
            )
            plan.add_run(arm.name, seed, trained, *measured)
            if arm is arms[0] and options.match in BUDGETS:
                budget = (trained.job.name,)
    return plan


def _origin(options: CompareOptions, arms: Sequence[Arm], overrides: Sequence[str]) -> tuple[str, Arm | None]:
    """The model that these arms start from, and what their cold start is made with, if there is one."""
    cold: Arm | None = None
    if options.start is not None and options.cold is not None:
        raise RecipeError("--from names a model to start from, --cold-start a recipe to make one: give one of them")
    if options.cold is not None:
        cold = make_arm("cold start", options.cold, cold_start_overrides(options.cold, overrides))
        for arm in arms:
            _check_sections(cold, arm, ("model",), "started alike")
    elif options.start is None:
        needed = arms[0].settings.model.path in UNTRAINED
        advice = f" {'Name one cold start for all (--cold-start), or' if needed else 'Or name'} a model (--from)"
        for arm in arms[1:]:
            _check_sections(arms[0], arm, COLD_START_SECTIONS if needed else ("model",), "started alike", advice)
        if needed:
            cold = make_arm("cold start", arms[0].recipe, overrides_of(arms[0].overrides, COLD_SECTIONS))
    model = options.start or (cold or arms[0]).settings.model.path
    if model not in UNTRAINED:
        from retcon.models.locating import locate  # needs the [train] extra

        locate(model)
    return model, cold


def _conditions(options: CompareOptions, arm: Arm, run: Path) -> dict[str, tuple[str, ...]]:
    """Overrides of the evaluations of an arm's run, by folder.

    Warns (TaskWarning) where tasks cannot be repaired, and where a harness runs its calls itself.
    """
    repair = arm.settings.repair.kind if arm.settings.repair.kind != "none" else "saar"
    repaired = ("evaluate.top_p=1.0", f"evaluate.repair={repair}")
    found: dict[str, tuple[str, ...]] = {EVALUATION: (), REPAIRED: repaired}
    try:
        if not (run / REPAIRED / "result.json").exists():
            arm.settings.task.check_rollouts(with_evaluation_repair(arm.changed(*repaired).settings))
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


FILES = {
    "figures": "compare.json",
    "tables": "table.md, table.tex, table.csv",
    "pictures": "*.png, *.svg",
    "models": "<arm>/seed-<n>/final",
    "evaluations": "<arm>/seed-<n>/eval, eval-*",
    "logs": "logs",
}


def print_comparison(
    plan: Comparison, options: CompareOptions, seconds: float, words: list[str], console: Console
) -> None:
    """Write the tables of the runs into the folder, and print them. words: the command."""
    out = plan.out
    runs = {arm.name: [read_arm_run(out, arm.name, seed) for seed in plan.seeds] for arm in plan.arms}
    recipes = {arm.name: arm.described for arm in plan.arms}
    found = ArmComparison(out.name, runs, recipes, ABOUT[options.match], options.faults, seconds)
    for sheet in write_comparison(found, out):
        for table in sheet.tables(console):
            console.print(table)
            console.print()
    print_end(console, out, seconds, FILES, next_commands(plan, options, words), caveat(len(plan.seeds)))


def next_commands(plan: Comparison, options: CompareOptions, words: list[str]) -> list[str]:
    """Return commands to inspect the runs, add seeds or change the match. words: the command."""
    out, seed = plan.out, plan.seeds[0]
    lines = [
        command_line("retcon", "report", *(run_folder(out, arm.name, seed) for arm in plan.arms)),
        command_line("retcon", "show", run_folder(out, plan.arms[-1].name, seed) / "eval" / "trajectories-t1.jsonl"),
    ]
    if len(plan.seeds) < SEEDS_OF_A_FINDING:
        more = [*_without(words, "--seeds"), "--seeds", SEEDS_OF_A_FINDING]
        lines.append(f"{command_line('retcon', *more)}   # continues; what is done is kept")
    elif options.match == "rollouts" and _can_match_tokens(plan.arms):
        tokens = [*_without(_without(words, "--match"), "--out"), "--match", "tokens", "--out", f"{out}-tokens"]
        lines.append(command_line("retcon", *tokens))
    return lines


def _can_match_tokens(arms: Sequence[Arm]) -> bool:
    try:
        match_budgets(arms, "tokens")
    except RecipeError:
        return False
    return True


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            found.append(word)
    return found
