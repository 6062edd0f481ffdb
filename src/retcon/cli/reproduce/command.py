"""`retcon reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.arguments import (
    ColdStart,
    Jobs,
    StartOfAll,
    command_line,
    interruptible,
    need_training,
    plain_console,
)
from retcon.core.machine import usable_cores


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
            help="Some of the paper's tables and figures, such as [bold]main,gamma[/]; --list prints all.",
            show_default=False,
        ),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print what would be run, with which arms, and end.")] = False,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="One seed of six steps: shows that everything runs, and the shape of each table."),
    ] = False,
    recipe: Annotated[
        list[str] | None,
        typer.Option(
            "--recipe",
            metavar="ROLE=RECIPE",
            help="Another recipe in place of the miniature's, such as [bold]method=cleaner-4b[/].",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Training runs per arm (5, with --quick 1); five make a finding.",
                     show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="By default runs/reproduce/PAPER, with --quick PAPER-quick; the same "
            "folder continues it.", show_default=False,
        ),
    ] = None,
    start: StartOfAll = None,
    cold: ColdStart = None,
    jobs: Jobs = None,
) -> None:  # fmt: skip
    """Run a paper's tables and figures in miniature, each beside the paper's own. Repeat the command to continue."""
    need_training()
    from retcon.cli.common.targets import make_targets
    from retcon.cli.compare.plan import CompareOptions
    from retcon.cli.reproduce import plan as reproducing
    from retcon.report.plots import need_matplotlib

    paper, overrides = reproducing.find_paper(words)
    studies, recipes = reproducing.select_studies(paper, only), reproducing.recipes_of(paper, recipe or ())
    if listed:
        reproducing.print_studies(paper, studies, recipes, plain_console(soft_wrap=False))
        return
    need_matplotlib()
    if quick:
        overrides = [*reproducing.quick_overrides(paper, studies, recipes), *overrides]
    folder = out or Path("runs", "reproduce", f"{paper.name}-quick" if quick else paper.name)
    options = CompareOptions(folder, seeds or (1 if quick else 5), "rollouts", start, cold, faults=0.0)
    plan = reproducing.make_reproduction(options, paper, studies, recipes, overrides)
    command = command_line("retcon", *sys.argv[1:])
    at_once = jobs or usable_cores()
    with interruptible(f"what is done is kept in {folder}; continue with: {command}"):
        console = plain_console(stderr=True, soft_wrap=False)
        seconds = make_targets(plan.targets, plan.ledger, at_once=at_once, console=console, out=folder)
        reproducing.finish(plan, seconds, command, plain_console(soft_wrap=False), quick=quick)
