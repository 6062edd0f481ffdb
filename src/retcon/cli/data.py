"""The `retcon data` commands, which inspect and export tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.arguments import check_number
from retcon.core.texts import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from retcon.config.schema import Recipe, SelectSection, TaskSection
    from retcon.tasks.data.check import Report
    from retcon.tasks.data.settings import FileTaskSettings
    from retcon.tasks.registry import TaskSet
    from retcon.tasks.types import Split, Task

Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="FIELD=COLUMN", help="Which column holds what, as [bold]question=text[/]."),
]
FormatName = Annotated[
    str, typer.Option("--format", metavar="NAME", help="Convention of the columns: gsm8k, verl, … or my_module:MINE.")
]
GraderName = Annotated[str, typer.Option("--grader", help="Grader of rows that name none: math, exact, choice, code.")]
SplitName = Annotated[str, typer.Option("--split", help="Read only the rows of this split.")]
SubsetName = Annotated[str, typer.Option("--subset", help="Of a data set of the hub: its subset, such as main.")]
RevisionName = Annotated[str, typer.Option("--revision", help="Of a data set of the hub: branch, tag or commit.")]

data = typer.Typer(name="data", no_args_is_help=True, help="Inspect the problems that a run will train on.")
PLACES = 5
FLAGS: dict[object, str] = {"columns": "column"}
"""Of settings that are called otherwise on the command line."""


@data.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file of tasks, or a data set of the hub, ORG/NAME.")],
    *,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Lengths in this model's tokens.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="FILE", help="An evaluation that it must not overlap with; may be repeated."),
    ] = None,
    column: Columns = None,
    format: FormatName = "",
    grader: GraderName = "",
    split: SplitName = "",
    subset: SubsetName = "",
    revision: RevisionName = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that was found, as JSON.")] = False,
) -> None:
    """Show what a file of tasks contains: counts, lengths, answers that no grader can read, overlap, samples.

    Exit code 1 where an answer cannot be read, a grader cannot be imported, or a task overlaps with an evaluation.
    """
    from rich.console import Console

    from retcon.tasks.data.check import check as look

    settings = settings_of(
        path=file, columns=columns_of(column or []), format=format or "auto", grader=grader, split=split, subset=subset,
        revision=revision, against=tuple(against or ()),
    )  # fmt: skip
    report = look(settings, _counter(model) if model is not None else None)
    console = Console(highlight=False, markup=False)
    if as_json:
        console.out(json.dumps(report.to_dict(), indent=2), highlight=False)
    else:
        _show(console, report)
    if not report.good:
        raise typer.Exit(1)


def settings_of(**values: object) -> FileTaskSettings:
    """Return the settings of tasks that flags name. Raises RecipeError, which names the flag."""
    from pydantic import ValidationError

    from retcon.core.errors import RecipeError
    from retcon.tasks.data.settings import FileTaskSettings

    try:
        return FileTaskSettings.model_validate({"evaluation_share": 0, **values})
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(
            f"--{FLAGS.get(first['loc'][0], first['loc'][0])}: {first['msg'].removeprefix('Value error, ')}"
        ) from None


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """Parse `--column` words, FIELD=COLUMN."""
    columns: dict[str, str] = {}
    for one in given:
        name, equals, mapped = one.partition("=")
        if not equals:
            raise typer.BadParameter(f"'{one}': write it as FIELD=COLUMN, such as question=text", param_hint="--column")
        if name in columns:
            why = f"'{name}' is given twice, as {columns[name]} and as {mapped}"
            raise typer.BadParameter(why, param_hint="--column")
        columns[name] = mapped
    return columns


def _counter(model: str) -> Callable[[str], int]:
    from retcon.chat.tokenizer import load_tokenizer
    from retcon.models.locating import locate

    tokenizer = load_tokenizer(locate(model))
    return lambda text: len(tokenizer.encode(text))


def _show(console: Console, report: Report) -> None:
    from rich.text import Text

    console.print(Text(f"{Path(report.path).name}: {report.convention}", "bold"), f"({', '.join(report.columns)})")
    console.print(_table(report))
    for where, first in report.conflicting[:PLACES]:
        console.print(f"{_short(report, where)} asks what {_short(report, first)} does, and answers otherwise")
    if report.unreadable:
        console.print(Text("answers that no grader can read", "bold red"))
        for where, answer, why in report.unreadable[:PLACES]:
            shown = f"{_cut(answer, 30)!r}: " if answer else ""
            console.print(Text(f"  {_short(report, where)}: {shown}{why}"))
    for why in report.unready.values():
        console.print(Text(why, "bold red"))
    for name, needed in report.unset.items():
        keys = ", ".join(f"{key} = …" for key in needed)
        note = f"the grader {name} needs settings: task.graders = {{ {name} = {{ {keys} }} }}"
        console.print(Text(note, "yellow"))
    if report.in_words:
        meant = "code" if report.tested else "exact"
        note = f"answers in words, which math takes for products of letters: is --grader {meant} meant?"
        console.print(Text(note, "yellow"))
        for where, answer in report.in_words[:PLACES]:
            console.print(Text(f"  {_short(report, where)}: {_cut(answer, 60)}"))
    if report.ambiguous:
        console.print(Text("answers with a comma that may be a decimal one", "yellow"))
        for where, answer, how in report.ambiguous[:PLACES]:
            console.print(Text(f"  {_short(report, where)}: {_cut(answer, 30)!r} is {how}"))
    if report.overlap:
        console.print(Text("overlap with evaluation", "bold red"))
        for where, other, rule in report.overlap[:PLACES]:
            console.print(Text(f"  {_short(report, where)} repeats {Path(other).name} ({rule})"))
    console.print(Text("samples", "bold"))
    for sample in report.samples:
        console.print(Text(f"  {_short(report, sample.where)}: {_cut(sample.question, 200)}"))
        console.print(Text(f"    → {_cut(sample.answer, 60) or 'by its tests'} ({sample.grader})", "green"))


def _table(report: Report) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.HORIZONTALS, pad_edge=False, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    for what, count, where in _lines(report):
        table.add_row(what, count, where)
    return table


def _lines(report: Report) -> Iterator[tuple[str, str, str]]:
    yield "rows", f"{report.rows:,}", ""
    for column, count in report.asked_with.items():
        yield f"asked with '{column}'", f"{count:,}", "the question is of both columns"
    for reason, count in report.dropped.items():
        yield reason, f"{count:,}", _places(report, report.where_dropped[reason], count)
    yield "kept", f"{report.kept:,}", ", ".join(f"{n:,} graded by {name}" for name, n in report.graders.items())
    unread = [where for where, _, _ in report.unreadable]
    known = "?" if report.not_read or report.unready else f"{len(unread):,}"
    tests = "of programs' tests, packed ones are not looked at" if "code" in report.graders else ""
    yield "no grader can read", known, report.not_read or _places(report, unread, len(unread)) or tests
    if report.in_words:
        worded = [where for where, _ in report.in_words]
        yield "in words", f"{len(worded):,}", _places(report, worded, len(worded))
    if report.ambiguous:
        either = [where for where, _, _ in report.ambiguous]
        yield "ambiguous", f"{len(either):,}", _places(report, either, len(either))
    yield "overlap", f"{len(report.overlap):,}", _places(report, [o[0] for o in report.overlap], len(report.overlap))
    of = report.lengths
    spread = f"median; {of.shortest:,} to {of.longest:,}, 95% up to {of.most:,}"
    yield f"{of.unit} of a prompt", f"{of.median:,}", f"{spread}; longest: {_short(report, of.longest_at)}"


def _places(report: Report, places: Sequence[str], count: int) -> str:
    shown = [_short(report, where) for where in places[:PLACES]]
    kind = shown[0].partition(" ")[0] if shown else ""
    if all(where.startswith(f"{kind} ") for where in shown):
        shown = [where.removeprefix(f"{kind} ") for where in shown]
        return f"{kind}{'s' if count > 1 else ''} {', '.join(shown)}{', …' if count > PLACES else ''}" if shown else ""
    return ", ".join(shown)


def _short(report: Report, where: str) -> str:
    """A place without the file, which is named above."""
    return where.removeprefix(f"{report.path}, ")


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


@data.command("export")
def export(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Files of tasks, data sets of the hub (ORG/NAME), or task sets."),
    ] = None,
    *,
    verl: Annotated[Path, typer.Option("--verl", metavar="OUT.parquet", help="Where to write them, in verl's format.")],
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="RECIPE", help="Take the tasks of a recipe instead of files.")
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
            "--share",
            callback=check_number,
            min=0,
            max=1,
            help="Of files: share of the questions held out for evaluation.",
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
    format: FormatName = "",
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
    """Write tasks for verl's trainer in the order of `retcon train`."""
    from retcon.build import build_tasks
    from retcon.cli.arguments import plain_console
    from retcon.config.load import load_recipe
    from retcon.config.schema import find_stage, stages_of
    from retcon.core.errors import RecipeError
    from retcon.tasks.data.conventions import verl_rows, write_verl

    if verl.suffix != ".parquet":
        raise RecipeError(f"--verl {verl}: verl reads Parquet; end the name in .parquet")
    if bool(files) == bool(recipe):
        raise RecipeError("give either files of tasks or a recipe with tasks (--recipe)")
    if stage and (evaluation or not recipe):
        whose = "evaluations are of a recipe without its stages" if evaluation else "name it by --recipe"
        raise RecipeError(f"--stage {stage}: a stage selects training tasks of a recipe; {whose}")
    tasks: TaskSet
    select, own_seed = None, 0
    others: list[str] = []
    if recipe:
        _check_no_file_options({"--share": share, "--column": column, "--format": format, "--grader": grader,
                          "--split": split, "--subset": subset, "--revision": revision, "--system": system,
                          "--against": against})  # fmt: skip
        whole = load_recipe(recipe)
        found = find_stage(whole, stage, f"--stage {stage}").recipe if stage else whole
        if not (stage or evaluation):
            others = [one.name for one in stages_of(whole) if _tasks_of(one.recipe) != _tasks_of(whole)]
        _check_not_input(verl, found.task)
        found = found.model_copy(update={"task": _without_length_limit(found.task)})
        tasks, select = build_tasks(found), found.select
        own_seed = found.evaluate.seed if evaluation else found.run.seed
    else:
        about = {"columns": columns_of(column or []), "format": format or "auto", "grader": grader, "split": split,
                 "subset": subset, "revision": revision, "system": system, "against": tuple(against or ())}  # fmt: skip
        sources: dict[str, object] = (
            {"path": files[0]} if files and len(files) == 1 else {"sources": tuple(files or ())}
        )
        settings = settings_of(**sources, **about, evaluation_share=share)
        _check_not_input(verl, settings)
        tasks = settings.open()
    unrated: list[str] = []
    drawn = _draw_tasks(tasks, evaluation, count, own_seed if seed is None else seed, select, unrated)
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
    """The parts of a recipe that determine which rows are written to train on."""
    select = recipe.select
    return _without_length_limit(recipe.task), select.pass_rates, select.min_pass_rate, select.max_pass_rate


def _without_length_limit(task: TaskSection) -> TaskSection:
    """The section without a length limit, as verl drops long prompts itself."""
    return task.model_copy(update={"max_prompt_tokens": 0}) if task.kind == "file" else task


def _check_no_file_options(options: Mapping[str, object]) -> None:
    """Raise RecipeError for an option about files where a recipe sets them."""
    from retcon.core.errors import RecipeError

    keys = {"--share": "evaluation_share", "--column": "columns"}
    if option := next((name for name, value in options.items() if value), None):
        key = keys.get(option, option.removeprefix("--"))
        raise RecipeError(f"{option} is for files, and the tasks are a recipe's: set task.{key} in the recipe")


def _check_not_input(verl: Path, settings: object) -> None:
    """Raise RecordError where the output is one of the input files."""
    from retcon.store.whole import OutputFile, check_outputs
    from retcon.tasks.data.settings import FileTaskSettings

    if isinstance(settings, FileTaskSettings):
        check_outputs([OutputFile("--verl", verl)], settings.files())


def _draw_tasks(
    tasks: TaskSet, evaluation: bool, count: int | None, seed: int, select: SelectSection | None, unrated: list[str]
) -> Iterator[Task]:
    """Tasks in order. unrated: gets the ids of tasks without a pass rate, where the recipe selects by rates."""
    from retcon.core.errors import RecipeError
    from retcon.tasks.data.tasks import DataTasks
    from retcon.tasks.registry import training_prompts

    held_out, ends = count, isinstance(tasks, DataTasks) and tasks.ends
    if count is None:
        if not (isinstance(tasks, DataTasks) and ends):
            raise RecipeError(f"--count is missing: {tasks.name} is endless; give the number of tasks")
        held_out = len(tasks.held_out)
    if evaluation:
        problems = tasks.evaluation(held_out or 0, seed)
        if not problems:
            raise RecipeError(
                f"--evaluation: nothing of {tasks.name} is held out: set --share for files, or in a recipe "
                "task.evaluation_share, task.evaluation_path or task.evaluation_split"
            )
        return iter(problems)
    stream = training_prompts(tasks, seed)
    return islice(_filter_rated(stream, select, unrated if ends else None) if select else stream, count)


def _filter_rated(tasks: Iterator[Task], select: SelectSection, unrated: list[str] | None) -> Iterator[Task]:
    """Tasks within the recipe's bounds of pass rates, if any. unrated: gets those without a rate; None for an endless
    set, where such a task is refused."""
    from retcon.core.errors import RecipeError
    from retcon.select.filters import filter_by_pass_rate
    from retcon.train.prompts import check_rate_bounds, rates_of

    check_rate_bounds(select)
    if not select.pass_rates:
        return tasks
    file = Path(select.pass_rates)
    rates = {task: one.rate for task, one in rates_of(file).items()}

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
            yield from filter_by_pass_rate(known(), rates, low=select.min_pass_rate, high=select.max_pass_rate)
        except RecipeError as error:
            raise RecipeError(
                f"select.pass_rates = {file}: {error}; the file must cover the tasks that are to be written: "
                "`retcon difficulty --tasks` measures more, and --count writes fewer"
            ) from None

    return kept()
