"""From what a user asks for to a plan that is known to be possible; nothing is written."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from retcon.build import build_chat, build_tasks
from retcon.cli.quickstart.budget import Lengths, budget_of, budget_table, scaled
from retcon.cli.quickstart.ledger import fitted_before, open_ledger
from retcon.cli.quickstart.plan import Plan, make_plan
from retcon.cli.quickstart.sets import DEFAULT, SETS
from retcon.cli.quickstart.speed import measure_speed
from retcon.config.load import toml_of
from retcon.core.errors import RecipeError
from retcon.rollout.lengths import check_lengths, prompt_ids
from retcon.tasks.registry import evaluation_tasks, training_prompts

if TYPE_CHECKING:
    from rich.console import Console

LOOKED_AT = 64
"""Prompts that the mean length is of."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command was given. at_once: jobs side by side."""

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
    def of_data(self) -> dict[str, str]:
        """Of the options that quickstarts on data alone have, those that were given."""
        options = {"--data": self.data, "--eval-data": self.eval_data, "--hours": self.hours}
        return {name: str(value) for name, value in options.items() if value is not None}

    @property
    def options(self) -> list[str]:
        """The words of the command that the recipes depend on."""
        named = [] if self.name == DEFAULT else [self.name]
        return [*named, *self.overrides, *chain.from_iterable(self.of_data.items())]


def prepare(wish: Wish, console: Console) -> Plan:
    """The plan. Of a quickstart on data whose folder was not begun: model and data are looked at, the machine's speed
    is measured, and what everything will take is printed.

    Raises RecipeError for options that do not go with the quickstart, for evaluation problems that are too few, and for
    hours that are; what `make_plan` raises, what a model or data that are not there raise, and CheckpointError for a
    folder that other recipes made.
    """
    about = SETS[wish.name]
    _refuse_foreign(wish)
    plan_with = partial(
        make_plan, wish.out, arms=wish.arms, seeds=wish.seeds, from_scratch=wish.from_scratch, about=about,
        options=wish.options,
    )  # fmt: skip
    if not about.on_data:
        return plan_with(overrides=wish.overrides)
    given = _data_overrides(wish)
    fitted = fitted_before(wish.out, wish.hours)
    plan = replace(plan_with(overrides=[*given, *(fitted or ()), *wish.overrides]), hours=wish.hours, fitted=fitted)
    if fitted is not None:
        return plan
    open_ledger(plan)  # refuses a folder that other recipes made
    from retcon.models.placing import model_folder  # it brings torch

    folder = model_folder(plan.cold[0].recipe.model.path)
    lengths = Lengths(_prompt_length(plan, folder), about.sampled)
    console.print("measuring how quick this machine is with the model", highlight=False)
    speed = measure_speed(about.cold_start, plan.cold[0].overrides)
    budget = budget_of(plan, speed, lengths, wish.at_once)
    fitted = ()
    if wish.hours is not None:
        fitted = tuple(scaled(plan, budget, wish.hours))
        plan = plan_with(overrides=[*given, *fitted, *wish.overrides])
        budget = budget_of(plan, speed, lengths, wish.at_once)
    console.print(budget_table(budget, lengths))
    return replace(plan, hours=wish.hours, fitted=fitted)


def _refuse_foreign(wish: Wish) -> None:
    """Raises RecipeError for an option of another quickstart."""
    about = SETS[wish.name]
    if wish.of_data and not about.on_data:
        option, those = next(iter(wish.of_data)), [name for name, one in SETS.items() if one.on_data]
        raise RecipeError(f"{option} is not for the quickstart '{wish.name}'; it is for: {', '.join(those)}")
    if wish.from_scratch and not about.from_scratch:
        raise RecipeError(f"--from-scratch is not for the quickstart '{wish.name}': it starts from a model")
    if wish.eval_data is not None and wish.data is None:
        raise RecipeError("--eval-data goes with --data: the hub's data set brings its own evaluation problems")


def _data_overrides(wish: Wish) -> list[str]:
    """Files in place of the hub's data set."""
    if wish.data is None:
        return []
    evaluation = "" if wish.eval_data is None else str(wish.eval_data)
    return [
        f"task.path={toml_of(str(wish.data))}",
        f"task.evaluation_path={toml_of(evaluation)}",
        *(f'task.{key}=""' for key in ("subset", "split", "evaluation_split")),
    ]


def _prompt_length(plan: Plan, folder: Path) -> float:
    """Mean tokens of a prompt. Raises RecipeError for too few evaluation problems, and for prompts that are too
    long."""
    recipe = plan.cold[0].recipe
    tasks = build_tasks(recipe, folder)
    chat = build_chat(recipe, folder, tasks)
    section = plan.cold[1].recipe.evaluate
    problems = evaluation_tasks(tasks, section.problems, section.seed)
    if len(problems) < section.problems:
        raise RecipeError(
            f"evaluate.problems = {section.problems}, and there are {len(problems)} to evaluate on: ask for fewer, or "
            "give more (--eval-data)"
        )
    check_lengths(problems, chat, recipe.rollout.max_tokens, "problems")
    return statistics.fmean(prompt_ids(chat, task) for task in islice(training_prompts(tasks, 0), LOOKED_AT))
