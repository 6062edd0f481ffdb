"""`retcon data`: what is in a file of tasks, before anything is trained on it; `export` is in a file of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from retcon.tasks.data.check import Report
    from retcon.tasks.data.settings import FileTaskSettings

Columns = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="FIELD=COLUMN", help="Which column holds what, as [bold]question=text[/]."),
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
        str | None, typer.Option("--model", metavar="MODEL", help="Lengths in this model's tokens.", show_default=False)
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option("--against", metavar="FILE", help="An evaluation that it must not overlap with; may be repeated."),
    ] = None,
    column: Columns = None,
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
        path=file, columns=columns_of(column or []), grader=grader, split=split, subset=subset, revision=revision,
        against=tuple(against or ()),
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
    """Those of tasks that flags name. Raises RecipeError, which names the flag."""
    from pydantic import ValidationError

    from retcon.core.errors import RecipeError
    from retcon.tasks.data.settings import FileTaskSettings

    try:
        return FileTaskSettings.model_validate({"evaluation_share": 0, **values})
    except ValidationError as error:
        said = error.errors()[0]
        raise RecipeError(
            f"--{FLAGS.get(said['loc'][0], said['loc'][0])}: {said['msg'].removeprefix('Value error, ')}"
        ) from None


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """Of `--column`, FIELD=COLUMN."""
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
            said = f"{_cut(answer, 30)!r}: " if answer else ""
            console.print(Text(f"  {_short(report, where)}: {said}{why}"))
    for why in report.unready.values():
        console.print(Text(why, "bold red"))
    for name, needed in report.unset.items():
        keys = ", ".join(f"{key} = …" for key in needed)
        said = f"the grader {name} needs settings: task.graders = {{ {name} = {{ {keys} }} }}"
        console.print(Text(said, "yellow"))
    if report.in_words:
        meant = "code" if report.tested else "exact"
        said = f"answers in words, which math takes for products of letters: is --grader {meant} meant?"
        console.print(Text(said, "yellow"))
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
