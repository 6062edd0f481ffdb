"""`retcon regrade`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from retcon.cli.common.arguments import command_line, plain_console
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import telling
from retcon.core.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from retcon.tasks.grading.regrade import Regraded


def regrade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or a trajectory file (JSON Lines).")],
    *,
    grader: Annotated[
        str | None,
        typer.Option(
            "--grader",
            help="A name (a wrong one lists them all) or my_package.my_module:my_grade; by default the one that each "
            "task names, or else math.",
            show_default=False,
        ),
    ] = None,
    rewards: Annotated[
        Literal["signed", "binary", "graded"],
        typer.Option("--rewards", help="1 and -1, 1 and 0, or the score from 0 to 1."),
    ] = "signed",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="GRADER.KEY=VALUE",
            help="A setting of a grader, such as [bold]code.score=share[/].",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        Path | None,
        typer.Option(
            "--tasks",
            metavar="FILE",
            help="The tasks: the data trained on, or rows with id and answer; by default as the run drew them.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="RUN/regraded, or FILE.regraded, by default.", show_default=False
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Rollouts graded at a time.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Start over even if there are results.")] = False,
) -> None:
    """Score stored rollouts again, with another grader or a corrected one; the old files stay as they are."""
    from retcon.tasks.grading.grading import GradeSettings
    from retcon.tasks.grading.regrade import VERDICTS, Regrading
    from retcon.tasks.grading.regrade import regrade as do

    target = out or (run / "regraded" if run.is_dir() else run.with_name(f"{_stem(run)}.regraded"))
    settings = GradeSettings(grader or "math", rewards, _options(option or []))
    job = Regrading(run, target, settings, by=grader, tasks=tasks, at_once=jobs, force=force)
    kept = f"what was graded is kept in {target}; the same command continues"
    with interruptible(kept), telling(f"regrading {run}") as tell:
        done = do(job, tell)
    console = plain_console()
    console.print(_table(done), soft_wrap=False)
    for one in [one for one in done if one.change == "lost"][:5]:
        console.print(f"lost: {one.id}: {one.why}", style="yellow")
    shown = target / done[0].file if done else target
    console.print(f"verdicts: {target / VERDICTS}\ntry: {command_line('retcon', 'show', shown)}")


def _stem(file: Path) -> str:
    """A file's name but for what every such file's ends with: those of one folder get folders of their own."""
    from retcon.store.compression import plain_name

    return plain_name(file.name).removesuffix(".jsonl")


def _options(words: Sequence[str]) -> dict[str, dict[str, object]]:
    """`grader.key=value` as settings by grader. Raises RecipeError for what is none."""
    options: dict[str, dict[str, object]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        grader, dot, name = key.rpartition(".")
        if not equals or not dot:
            raise RecipeError(
                f"--set '{word}' is not a setting: write it as grader.key=value, such as code.score=share"
            )
        try:
            options.setdefault(grader, {})[name] = json.loads(value)
        except ValueError:
            options.setdefault(grader, {})[name] = value
    return options


def _table(done: Sequence[Regraded]) -> Table:
    """Old against new, the steps of a run together."""
    from rich import box
    from rich.table import Table

    from retcon.tasks.grading.regrade import counts

    groups: dict[str, list[Regraded]] = {}
    for one in done:
        path = Path(one.file)
        groups.setdefault(str(path.parent if path.parent.name == "trajectories" else path), []).append(one)
    if len(groups) > 1:
        groups["all"] = list(done)
    table = Table(box=box.HORIZONTALS, pad_edge=False, collapse_padding=True)
    table.add_column("", overflow="fold")
    columns = ("rollouts", "before", "now", "became right", "became wrong", "lost", "found")
    for name in ("rollouts", "right before", "right now", *columns[3:]):
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)  # so the name has room
    for name, group in groups.items():
        found = counts(group)
        table.add_row(name, *(str(found[column]) for column in columns))
    return table
