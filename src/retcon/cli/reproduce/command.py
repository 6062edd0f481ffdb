"""`retcon reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.common.arguments import ColdStart, Jobs, Seeds, StartOfAll, command_line, need_training, plain_console
from retcon.cli.common.interrupt import interruptible
from retcon.core.cores import usable_cores


def reproduce(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PAPER [KEY=VALUE]...",
            help="[bold]cleaner[/] or [bold]rstar2[/]; and changes to all arms, such as [bold]rl.steps=40[/].",
            show_default=False,
        ),
    ],
    *,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="STUDY,...",
            help="Some of the paper's tables and figures, such as [bold]main,gamma[/]; --list tells which there are.",
            show_default=False,
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Tell what would be run, with which arms, and end.")] = False,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="ROLE=RECIPE",
            help="Another recipe in place of the miniature's, such as [bold]method=cleaner-4b[/].",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = 5,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="By default runs/reproduce/PAPER; the same folder continues it.",
            show_default=False,
        ),
    ] = None,
    start: StartOfAll = None,
    cold: ColdStart = None,
    jobs: Jobs = None,
) -> None:  # fmt: skip
    """Run a paper's tables and figures in miniature, each beside the paper's own. Repeat the command to continue."""
    need_training()
    from retcon.cli.common.ledger import make_targets
    from retcon.cli.compare.plan import Wish
    from retcon.cli.reproduce.arms import chosen, find_paper, recipes_of
    from retcon.cli.reproduce.finish import finish, tell_list
    from retcon.cli.reproduce.plan import make_reproduction
    from retcon.report.plots import need_matplotlib

    paper, overrides = find_paper(words)
    studies, recipes = chosen(paper, only), recipes_of(paper, recipe or ())
    if listed:
        tell_list(paper, studies, recipes, plain_console(soft_wrap=False))
        return
    need_matplotlib()
    folder = out or Path("runs", "reproduce", paper.name)
    wish = Wish(folder, seeds, "rollouts", start, cold, faults=0.0)
    plan = make_reproduction(wish, paper, studies, recipes, overrides)
    command = command_line("retcon", *sys.argv[1:])
    at_once = jobs or usable_cores()
    with interruptible(f"what is done is kept in {folder}; continue with: {command}"):
        console = plain_console(stderr=True, soft_wrap=False)
        seconds = make_targets(plan.targets, plan.ledger, at_once=at_once, console=console, out=folder)
        finish(plan, seconds, command, plain_console(soft_wrap=False))
