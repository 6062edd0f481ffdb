"""Plan and results of `retcon quickstart`: a cold start, then trained arms."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule

from retcon import __version__
from retcon.build import build_chat, build_repair, build_tasks
from retcon.cli.arguments import (
    check_taken,
    cold_start_overrides,
    command_line,
    overrides_of,
    select_overrides,
    split_overrides,
)
from retcon.cli.quickstart_budget import Lengths, budget_of, budget_table, fit_steps, measure_speed
from retcon.cli.runner import Experiment, Target, cold_start, evaluation, print_end, read_record, training
from retcon.config.load import shipped_recipes, toml_of
from retcon.core.errors import RecipeError, nearest
from retcon.core.texts import counted
from retcon.core.types import Trajectory
from retcon.report.runs import run_folder
from retcon.rollout.lengths import check_lengths, count_prompt_ids
from retcon.store.whole import write_whole
from retcon.tasks.registry import evaluation_tasks, training_prompts

if TYPE_CHECKING:
    from retcon.report.runs import Run

FILE = "quickstart.json"
COLD_START = "cold_start"
ARM_SECTIONS = (
    "run", "compute", "lora", "engine", "task", "rollout", "strategy", "repair", "select", "sandbox", "rl", "evaluate",
    "track",
)  # fmt: skip
MEASURED_SECTIONS = ("compute", "engine", "task", "rollout", "sandbox", "evaluate")
"""Sections that a cold start's evaluation shares with the arms'."""
SEED = "run.seed"
"""Seed of the cold start and of the arms' first runs; further ones count on from it."""
TALKING = ("model.style", "model.thinking", "model.chat_template_kwargs")
"""Keys of the dialogue's format, which must be equal in all jobs."""
REFUSED = {
    "repair.kind": "distinguishes the arms; choose them with --arms",
    "select.kind": "distinguishes the arms; choose them with --arms",
    "evaluate.repair": "must be none here, as the table states; `retcon eval --repair` measures with purification on",
}
"""Keys that overrides cannot have, and why."""
FIRST_REPAIR = "sft.first_repair=25"
FROM_SCRATCH = ("model.path=scratch", "sft.demonstrations=10000", "sft.steps=800", "sft.lr=4e-3")
"""A new model must learn words, numbers and copying besides the tool habit: 4 to 6 minutes instead of one."""
PROMPTS_READ = 64
"""Prompts whose mean length is taken."""


@dataclass(frozen=True, slots=True)
class QuickstartSet:
    """A folder of shipped recipes, `cold_start` and one per arm.

    Args:
        usual: arms that are compared by default.
        on_data: learns from a data set: `--data` replaces it, `--hours` scales the plan.
        sampled: mean tokens that a rollout samples.
        demonstrations: most that its data give.
        from_scratch: can start from fresh weights.
    """

    recipes: str
    usual: tuple[str, ...]
    on_data: bool = False
    sampled: float = 0.0
    demonstrations: int = 0
    from_scratch: bool = False

    @property
    def cold_start(self) -> str:
        return f"{self.recipes}/{COLD_START}"

    @property
    def arms(self) -> list[str]:
        """Return the names of all arms that have a recipe."""
        prefix = f"{self.recipes}/"
        names = [name.removeprefix(prefix) for name in shipped_recipes() if name.startswith(prefix)]
        return [name for name in names if name != COLD_START]

    def arm(self, name: str) -> str:
        """Return the recipe of an arm. Raises RecipeError with the nearest name."""
        if name not in self.arms:
            raise RecipeError(f"no arm '{name}'{nearest(name, self.arms)}; there are: {', '.join(self.arms)}")
        return f"{self.recipes}/{name}"

    def parse_arms(self, given: str | None) -> tuple[str, ...]:
        """Return the arms of `--arms A,B`, each once. Raises RecipeError if empty."""
        if given is None:
            return self.usual
        named = tuple(dict.fromkeys(filter(None, (part.strip() for part in given.split(",")))))
        if not named:
            raise RecipeError(f"--arms names no arm; there are: {', '.join(self.arms)}")
        return named


SETS = {
    "numbers": QuickstartSet("quickstart", ("baseline", "saar", "blame"), from_scratch=True),
    "smollm2": QuickstartSet("smollm2", ("baseline", "saar"), on_data=True, sampled=90, demonstrations=6000),
}
DEFAULT = "numbers"


def choose_set(words: Sequence[str]) -> tuple[str, list[str]]:
    """Read the words after `retcon quickstart`: a set's name and overrides. Raises RecipeError."""
    named, overrides = split_overrides(words)
    name = DEFAULT if named is None else named
    if name not in SETS:
        raise RecipeError(f"no quickstart '{name}'{nearest(name, SETS)}; there are: {', '.join(SETS)}")
    return name, overrides


@dataclass(slots=True)
class Quickstart(Experiment):
    """A quickstart's experiment. options: words of the command that its recipes depend on."""

    about: QuickstartSet = SETS[DEFAULT]
    options: tuple[str, ...] = ()

    @property
    def cold_targets(self) -> tuple[Target, Target]:
        """The cold start and its evaluation."""
        return self.targets[0], self.targets[1]


def make_plan(
    out: Path,
    *,
    arms: Sequence[str],
    seeds: int,
    overrides: Sequence[str] = (),
    from_scratch: bool = False,
    about: QuickstartSet = SETS[DEFAULT],
    options: Sequence[str] | None = None,
) -> Quickstart:
    """Plan a quickstart; each override goes to the jobs that its section concerns.

    options: words of the command, where they are more than the overrides. Raises RecipeError for an unknown arm and for
    an override that is wrong, that no job takes, that would make the arms alike or change what the table reports.
    """
    recipes = {arm: about.arm(arm) for arm in arms}
    for override in overrides:
        if (key := _key(override)) in REFUSED:
            raise RecipeError(f"override '{override}': {key} {REFUSED[key]}")
    talking = [o for o in overrides if _key(o) in TALKING]
    threads = [o for o in overrides if _key(o) == "run.threads"] or ["run.threads=1"]
    start = cold_start_overrides(about.cold_start, overrides)
    shared = [o for o in overrides_of(overrides, ARM_SECTIONS) if _key(o) != SEED]
    own = {arm: select_overrides(recipe, shared) for arm, recipe in recipes.items()}
    takers = [*((recipe, [*talking, *own[arm]]) for arm, recipe in recipes.items()), (about.cold_start, start)]
    check_taken(overrides, takers)
    if lost := [o for o in overrides if not any(o in some for _, some in takers)]:
        raise RecipeError(f"override '{lost[0]}': no job of a quickstart has a use for {_key(lost[0])}")
    words = (*(overrides if options is None else options), *(["--from-scratch"] if from_scratch else ()))
    plan = Quickstart(out, FILE, "quickstart", about=about, options=words)
    cold = cold_start(
        out, out / COLD_START, about.cold_start, [FIRST_REPAIR, *(FROM_SCRATCH if from_scratch else ()), *start],
        name="cold start",
        demos=out / "demonstrations.jsonl",
    )  # fmt: skip
    measured = [*talking, *select_overrides(about.cold_start, overrides_of(overrides, MEASURED_SECTIONS)), *threads]
    first = cold.recipe.run.seed
    plan.seeds = range(first, first + seeds)
    plan.add_cold_start("", first, cold)
    plan.targets.append(evaluation(out, cold, about.cold_start, measured, label="evaluation"))
    for seed in plan.seeds:
        for arm, recipe in recipes.items():
            changes, folder = (*talking, *own[arm], f"{SEED}={seed}"), run_folder(out, arm, seed)
            trained = training(
                out, folder, recipe, changes, name=f"{arm}, seed {seed}", start=str(cold.makes.parent),
                needs=(cold.job.name,),
            )  # fmt: skip
            plan.add_run(arm, seed, trained, evaluation(out, trained, recipe, changes, label="evaluation"))
    return plan


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


@dataclass(frozen=True, slots=True)
class QuickstartOptions:
    """Options of `retcon quickstart`. at_once: jobs side by side."""

    name: str
    out: Path
    arms: tuple[str, ...]
    seeds: int = 1
    overrides: tuple[str, ...] = ()
    from_scratch: bool = False
    data: Path | None = None
    eval_data: Path | None = None
    hours: float | None = None
    at_once: int = 1

    @property
    def data_options(self) -> dict[str, str]:
        """The given options of sets on data."""
        options = {"--data": self.data, "--eval-data": self.eval_data, "--hours": self.hours}
        return {name: str(value) for name, value in options.items() if value is not None}

    @property
    def words(self) -> list[str]:
        """Words of the command that the recipes depend on."""
        named = [] if self.name == DEFAULT else [self.name]
        return [*named, *self.overrides, *chain.from_iterable(self.data_options.items())]

    @property
    def data_overrides(self) -> list[str]:
        """Overrides that put files in place of the hub's data set."""
        if self.data is None:
            return []
        return [
            f"task.path={toml_of(str(self.data))}",
            f"task.evaluation_path={toml_of('' if self.eval_data is None else str(self.eval_data))}",
            *(f'task.{key}=""' for key in ("subset", "split", "evaluation_split")),
        ]


def prepare(options: QuickstartOptions, console: Console) -> Quickstart:
    """Plan a quickstart and open its folder; on data, measure the machine and print the plan before the first session.

    Raises RecipeError for options of another set, too few evaluation problems or hours, and as `make_plan`;
    CheckpointError for a folder of something else.
    """
    about = SETS[options.name]
    if options.data_options and not about.on_data:
        option, those = next(iter(options.data_options)), [name for name, one in SETS.items() if one.on_data]
        raise RecipeError(f"{option} is not for the quickstart '{options.name}'; it is for: {', '.join(those)}")
    if options.from_scratch and not about.from_scratch:
        raise RecipeError(f"--from-scratch is not for the quickstart '{options.name}': it starts from a model")
    if options.eval_data is not None and options.data is None:
        raise RecipeError("--eval-data goes with --data: the hub's data set brings its own evaluation problems")

    def plan_with(fitted: Sequence[str]) -> Quickstart:
        plan = make_plan(
            options.out, arms=options.arms, seeds=options.seeds, from_scratch=options.from_scratch, about=about,
            overrides=[*options.data_overrides, *fitted, *options.overrides], options=options.words,
        )  # fmt: skip
        if about.on_data:
            plan.settings = {"hours": options.hours, "fitted": tuple(fitted)}
        return plan

    record = read_record(options.out / FILE)
    begun = record.fitted if record.hours == options.hours else None
    plan = open_quickstart(plan_with(begun or ()))
    if not about.on_data or begun is not None:
        return plan
    from retcon.models.locating import model_folder  # imports torch

    cold, measured = plan.cold_targets
    lengths = Lengths(_prompt_length(cold, measured, model_folder(cold.recipe.model.path)), about.sampled)
    console.print("measuring how quick this machine is with the model", highlight=False)
    speed = measure_speed(about.cold_start, cold.overrides)
    budget = budget_of(plan, speed, lengths, options.at_once)
    if options.hours is not None:
        plan = open_quickstart(plan_with(fit_steps(plan, budget, options.hours, about.demonstrations)))
        budget = budget_of(plan, speed, lengths, options.at_once)
    console.print(budget_table(budget, lengths))
    return plan


def open_quickstart(plan: Quickstart) -> Quickstart:
    """Open the folder, which may hold demonstrations of the user's own. Raises CheckpointError."""
    plan.open(ours=("demonstrations.jsonl", "demonstrations.jsonl.recipe.json"))
    return plan


def _prompt_length(cold: Target, measured: Target, folder: Path) -> float:
    """Mean tokens of a prompt. Raises RecipeError for too few evaluation problems and for overlong prompts."""
    recipe, section = cold.recipe, measured.recipe.evaluate
    tasks = build_tasks(recipe, folder)
    chat = build_chat(recipe, folder, tasks)
    problems = evaluation_tasks(tasks, section.problems, section.seed)
    if len(problems) < section.problems:
        raise RecipeError(
            f"evaluate.problems = {section.problems}, and there are {len(problems)} to evaluate on: ask for fewer, or "
            "give more (--eval-data)"
        )
    check_lengths(problems, chat, recipe.rollout.max_tokens, "problems")
    return statistics.fmean(count_prompt_ids(chat, task) for task in islice(training_prompts(tasks, 0), PROMPTS_READ))


FILES = {
    "page": "report.html",
    "figures": "summary.json",
    "pictures": "*.png",
    "cold start": "cold_start/final",
    "models": "<arm>/seed-<n>/final",
    "training's trajectories": "<arm>/seed-<n>/trajectories",
    "evaluation's trajectories": "<arm>/seed-<n>/eval",
}


def print_quickstart(plan: Quickstart, seconds: float, command: str, console: Console) -> None:
    """Write summary.json, pictures and report.html into the folder, and print the result."""
    from retcon.cli.doctor import look_at_machine
    from retcon.report.page import Report, comparison_page
    from retcon.report.plots import draw_curves
    from retcon.report.runs import Comparison, read_run
    from retcon.report.tables import comparison_table, figures, write_summary
    from retcon.report.transcript import show_purification

    out = plan.out
    arms: dict[str, list[Run]] = {}
    for arm, seed in plan.trained:
        arms.setdefault(arm, []).append(read_run(run_folder(out, arm, seed), seed))
    recipe = plan.cold_targets[0].recipe
    cold = replace(read_run(out / COLD_START, recipe.run.seed), demonstrations=recipe.sft.demonstrations)
    comparison = Comparison(cold, arms, seconds)
    found = _showcase(plan)
    write_summary(out / "summary.json", comparison)
    pictures = {curve: file.read_bytes() for curve, file in draw_curves(arms, out).items()}
    made_by = (
        f"# retcon {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{counted(look_at_machine().cores, 'core')}"
    )
    report = Report(comparison, pictures, found[0] if found else None, [made_by, command])
    write_whole(out / "report.html", comparison_page(report))
    if found:
        console.print(Rule("A trajectory before and after purification", align="left"))
        console.print(show_purification(found[0]))
        console.print()
    of_arms = {arm: figures(runs) for arm, runs in arms.items()}
    console.print(comparison_table(figures([cold]), of_arms, seeds=len(comparison.seeds)))
    folders = [out / COLD_START, *(run_folder(out, arm, seed) for arm, seed in plan.trained)]
    places = [line for folder in folders for line in json.loads((folder / "run.json").read_bytes()).get("places", [])]
    console.print("\n" + "\n".join(dict.fromkeys(places)), highlight=False, soft_wrap=True)
    console.print(describe_cost(plan), highlight=False, soft_wrap=True)
    print_end(console, out, seconds, FILES, _next_commands(plan, list(arms), found))


def describe_cost(plan: Quickstart) -> str:
    """Return the CPU seconds of each job, start-up and demonstrations included."""
    spent = plan.record.cpu_s
    parts = [f"{name} {seconds:,.0f}" for name, seconds in spent.items()]
    return f"CPU seconds of each job: {'; '.join(parts)}; in all {sum(spent.values()):,.0f}"


def _showcase(plan: Quickstart) -> tuple[Trajectory, Path] | None:
    """A repaired trajectory of the last run that was purified, and its file."""
    from retcon.report.runs import showcase_in

    for (arm, seed), (trained, *_) in reversed(plan.trained.items()):
        if build_repair(trained.recipe) is not None and (found := showcase_in(run_folder(plan.out, arm, seed))):
            return found
    return None


def _next_commands(plan: Quickstart, arms: list[str], found: tuple[Trajectory, Path] | None) -> list[str]:
    arm, seed = next(reversed(plan.trained))
    show = command_line("retcon", "show", run_folder(plan.out, arm, seed) / "eval" / "trajectories-t1.jsonl")
    lines = [command_line("retcon", "show", found[1], "--first-repaired"), show] if found else [show]
    again = ("retcon", "quickstart", *plan.options)
    chosen = () if tuple(arms) == plan.about.usual else ("--arms", ",".join(arms))
    if len(plan.seeds) < 3:
        lines.append(command_line(*again, *chosen, "--out", plan.out, "--seeds", "3"))
    return [*lines, command_line(*again, "rl.mask_negative_spliced=true", "--out", "runs/masked")]
