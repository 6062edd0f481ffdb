"""`retcon data export`: tasks as another trainer reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import number
from retcon.cli.data import Columns, GraderName, RevisionName, SplitName, SubsetName, columns_of, settings_of
from retcon.core.texts import counted

if TYPE_CHECKING:
    from retcon.config.schema import Recipe, SelectSection, TaskSection
    from retcon.tasks.registry import TaskSet
    from retcon.tasks.types import Split, Task


def export(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE", help="Files of tasks, data sets of the hub (ORG/NAME), or task sets.", show_default=False
        ),
    ] = None,
    *,
    verl: Annotated[Path, typer.Option("--verl", metavar="OUT.parquet", help="Where to write them, in verl's format.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", metavar="RECIPE", help="Take the tasks of a recipe instead of files.", show_default=False
        ),
    ] = None,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="Of a recipe with stages, the one whose tasks they are, by name or number; without it, the recipe's "
            "own are.",
            show_default=False,
        ),
    ] = "",
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Write the tasks to evaluate on, not those to train on.")
    ] = False,
    share: Annotated[
        float,
        typer.Option(
            "--share", callback=number, min=0, max=1, help="Of files: share of the questions held out for evaluation."
        ),
    ] = 0.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Most tasks to write.", show_default="all")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Seed of the order.",
            show_default="the recipe's run.seed, with --evaluation its evaluate.seed; 0 of files",
        ),
    ] = None,
    column: Columns = None,
    grader: GraderName = "",
    split: SplitName = "",
    subset: SubsetName = "",
    revision: RevisionName = "",
    system: Annotated[str, typer.Option("--system", help="System prompt of tasks without one.")] = "",
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="FILE", help="An evaluation that they must not overlap with; may be repeated."
        ),
    ] = None,
) -> None:
    """Write tasks for verl's trainer, in the order in which `retcon train` with that seed would draw them."""
    from retcon.build import build_tasks
    from retcon.cli.common.arguments import plain_console
    from retcon.config.load import load_recipe
    from retcon.config.stages import stage_named, stages_of
    from retcon.core.errors import RecipeError
    from retcon.tasks.data.export import verl_rows, write_verl

    if verl.suffix != ".parquet":
        raise RecipeError(f"--verl {verl}: verl reads Parquet; end the name in .parquet")
    if bool(files) == bool(recipe):
        raise RecipeError("name files of tasks, or a recipe that has some (--recipe): one of the two")
    if stage and (evaluation or not recipe):
        whose = "evaluations are of a recipe without its stages" if evaluation else "name it by --recipe"
        raise RecipeError(f"--stage {stage}: it is of a recipe, and says what is trained on; {whose}")
    tasks: TaskSet
    select, own_seed = None, 0
    others: list[str] = []
    if recipe:
        _refuse_of_files({"--share": share, "--column": column, "--grader": grader, "--split": split,
                          "--subset": subset, "--revision": revision, "--system": system,
                          "--against": against})  # fmt: skip
        whole = load_recipe(recipe)
        found = stage_named(whole, stage, f"--stage {stage}").recipe if stage else whole
        if not (stage or evaluation):
            others = [one.name for one in stages_of(whole) if _tasks_of(one.recipe) != _tasks_of(whole)]
        _refuse_input(verl, found.task)
        found = found.model_copy(update={"task": _of_any_length(found.task)})
        tasks, select = build_tasks(found), found.select
        own_seed = found.evaluate.seed if evaluation else found.run.seed
    else:
        about = {"columns": columns_of(column or []), "grader": grader, "split": split, "subset": subset,
                 "revision": revision, "system": system, "against": tuple(against or ())}  # fmt: skip
        sources: dict[str, object] = (
            {"path": files[0]} if files and len(files) == 1 else {"sources": tuple(files or ())}
        )
        settings = settings_of(**sources, **about, evaluation_share=share)
        _refuse_input(verl, settings)
        tasks = settings.open()
    unrated: list[str] = []
    drawn = _drawn(tasks, evaluation, count, own_seed if seed is None else seed, select, unrated)
    name: Split = "evaluation" if evaluation else "train"
    wrote = write_verl(verl, verl_rows(drawn, split=name, system=tasks.system, source=tasks.name))
    console = plain_console()
    console.print(f"{counted(wrote, 'task')} of {tasks.name} to {'evaluate' if evaluation else 'train'} on: {verl}")
    if unrated:
        console.print(
            f"left out for want of a pass rate: {counted(len(unrated), 'task')}, such as {unrated[0]}; `retcon "
            "difficulty` measures no prompt that is too long, and as many as its --tasks"
        )
    if others:
        console.print(f"these are of the recipe without its stages; --stage writes those of {', '.join(others)}")


def _tasks_of(recipe: Recipe) -> tuple[object, ...]:
    """What says which rows are written to be trained on."""
    select = recipe.select
    return _of_any_length(recipe.task), select.pass_rates, select.min_pass_rate, select.max_pass_rate


def _of_any_length(task: TaskSection) -> TaskSection:
    """verl leaves long prompts out itself, by its own limit and tokenizer."""
    return task.model_copy(update={"max_prompt_tokens": 0}) if task.kind == "file" else task


def _refuse_of_files(options: Mapping[str, object]) -> None:
    """Raises RecipeError for an option that says something of files, where a recipe does."""
    from retcon.core.errors import RecipeError

    keys = {"--share": "evaluation_share", "--column": "columns"}
    if option := next((name for name, value in options.items() if value), None):
        key = keys.get(option, option.removeprefix("--"))
        raise RecipeError(f"{option} is of files, and the tasks are those of a recipe: set task.{key} in it")


def _refuse_input(verl: Path, settings: object) -> None:
    """Raises RecordError where the output is a file that the tasks are read from."""
    from retcon.store.outputs import OutputFile, check_outputs
    from retcon.tasks.data.settings import FileTaskSettings

    if isinstance(settings, FileTaskSettings):
        check_outputs([OutputFile("--verl", verl)], settings.files())


def _drawn(
    tasks: TaskSet, evaluation: bool, count: int | None, seed: int, select: SelectSection | None, unrated: list[str]
) -> Iterator[Task]:
    """unrated: gets the ids of tasks that have no pass rate, where the recipe goes by such."""
    from retcon.core.errors import RecipeError
    from retcon.tasks.data.tasks import DataTasks
    from retcon.tasks.registry import training_prompts

    held_out, ends = count, isinstance(tasks, DataTasks) and tasks.ends
    if count is None:
        if not (isinstance(tasks, DataTasks) and ends):
            raise RecipeError(f"--count: {tasks.name} makes its tasks as they are drawn, without an end; say how many")
        held_out = len(tasks.held_out)
    if evaluation:
        problems = tasks.evaluation(held_out or 0, seed)
        if not problems:
            raise RecipeError(
                f"--evaluation: nothing of {tasks.name} is held out: --share says of files how much is, in a recipe "
                "task.evaluation_share, task.evaluation_path or task.evaluation_split"
            )
        return iter(problems)
    stream = training_prompts(tasks, seed)
    return islice(_rated(stream, select, unrated if ends else None) if select else stream, count)


def _rated(tasks: Iterator[Task], select: SelectSection, unrated: list[str] | None) -> Iterator[Task]:
    """Those within the recipe's bounds of pass rates, all where it has none. unrated: gets those without a rate; None
    of a set without an end, where such a task is refused."""
    from retcon.core.errors import RecipeError
    from retcon.select.difficulty import within
    from retcon.train.prompts import measured_of, refuse_idle_bounds

    refuse_idle_bounds(select)
    if not select.pass_rates:
        return tasks
    file = Path(select.pass_rates)
    rates = {task: one.rate for task, one in measured_of(file).items()}

    def known() -> Iterator[Task]:
        rated = 0
        for task in tasks:
            if task.id in rates or unrated is None:
                rated += 1
                yield task
            else:
                unrated.append(task.id)
        if not rated:
            raise RecipeError("no task has a pass rate in it")

    def kept() -> Iterator[Task]:
        try:
            yield from within(known(), rates, low=select.min_pass_rate, high=select.max_pass_rate)
        except RecipeError as error:
            raise RecipeError(
                f"select.pass_rates = {file}: {error}; the file must cover the tasks that are to be written: "
                "`retcon difficulty --tasks` measures more, and --count writes fewer"
            ) from None

    return kept()
