"""`retcon quickstart`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.arguments import Jobs, Seeds, command_line, interruptible, need_training, number, plain_console
from retcon.cli.quickstart.sets import DEFAULT, SETS, arms_of, chosen
from retcon.core.machine import usable_cores


def quickstart(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [KEY=VALUE]...",
            help=f"Which quickstart ({', '.join(f'[bold]{name}[/]' for name in SETS)}; the first by default), and "
            "changes to its recipes, such as [bold]rl.steps=40[/].",
            show_default=False,
        ),
    ] = None,
    *,
    arms: Annotated[
        str | None,
        typer.Option(
            "--arms",
            metavar="A,B",
            help="What to compare: [bold]baseline[/], [bold]saar[/], [bold]roc[/], [bold]blame[/]. Default: "
            "baseline,saar,blame; for smollm2 baseline,saar.",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where everything goes; the same folder again continues it. Default: runs/quickstart, or "
            "runs/quickstart-NAME.",
            show_default=False,
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="numbers: fresh weights instead of the base model; takes minutes more."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE", help="smollm2: problems to train on, in place of the hub's.", show_default=False
        ),
    ] = None,
    eval_data: Annotated[
        Path | None,
        typer.Option(
            "--eval-data",
            metavar="FILE",
            help="smollm2: problems to evaluate on; by default a tenth of --data.",
            show_default=False,
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            callback=number,
            min=0.01,
            max=10_000,
            help="smollm2: as many steps as fit, according to a measurement.",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Train a small tool-using agent with and without purification, and compare. Repeat the command to continue."""
    name, overrides = chosen(words or [])
    need_training()
    from retcon.cli.common.targets import make_targets, refuse_foreign
    from retcon.cli.quickstart.ledger import FILE, open_ledger
    from retcon.cli.quickstart.prepare import Wish, prepare

    wish = Wish(
        name,
        out or Path("runs") / ("quickstart" if name == DEFAULT else f"quickstart-{name}"),
        arms=arms_of(arms, SETS[name]),
        seeds=seeds,
        overrides=tuple(overrides),
        from_scratch=from_scratch,
        data=data,
        eval_data=eval_data,
        hours=hours,
        at_once=jobs or usable_cores(),
    )
    refuse_foreign(wish.out, FILE, "quickstart", ("demonstrations.jsonl", "demonstrations.jsonl.recipe.json"))
    console = plain_console(stderr=True, soft_wrap=False)
    with interruptible("nothing was written yet"):
        plan = prepare(wish, console)
    command = command_line("retcon", *sys.argv[1:])
    with interruptible(f"what is done is kept in {plan.out}; continue with: {command}"):
        seconds = make_targets(plan.targets, open_ledger(plan), at_once=wish.at_once, console=console, out=plan.out)
        from retcon.cli.quickstart.finish import finish

        finish(plan, seconds, command, plain_console(soft_wrap=False))
