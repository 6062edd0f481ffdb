"""`retcon quickstart`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import Out, Overrides, command_line, need_training
from retcon.cli.common.interrupt import interruptible

if TYPE_CHECKING:
    from rich.console import Console

    from retcon.cli.quickstart.plan import Plan


def quickstart(
    overrides: Overrides = None,
    *,
    arms: Annotated[
        str,
        typer.Option("--arms", metavar="A,B", help="What to compare: [bold]baseline[/], [bold]saar[/], [bold]roc[/]."),
    ] = "baseline,saar",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each arm.")] = 1,
    out: Out = Path("runs/quickstart"),
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Start from fresh weights instead of the base model: minutes more.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", min=1, help="Trainings at once; as many as cores by default.", show_default=False),
    ] = None,
) -> None:
    """Train a small tool-using agent with and without purification, and compare. The same command again continues."""
    need_training()
    from rich.console import Console

    from retcon.cli.quickstart.plan import make_plan

    names = [name.strip() for name in arms.split(",") if name.strip()]
    plan = make_plan(
        out, arms=list(dict.fromkeys(names)), seeds=seeds, overrides=overrides or (), from_scratch=from_scratch
    )
    command = command_line("retcon", *sys.argv[1:])
    with interruptible(f"what is done is kept in {out}; go on with: {command}"):
        seconds = _work(plan, jobs or len(os.sched_getaffinity(0)), Console(stderr=True))
        from retcon.cli.quickstart.finish import finish

        finish(plan, seconds, command, Console())


def _work(plan: Plan, at_once: int, console: Console) -> float:
    """Does what is not done yet; wall seconds of this and all earlier sessions."""
    from retcon.cli.quickstart.board import board_for
    from retcon.cli.quickstart.jobs import run_chains
    from retcon.cli.quickstart.ledger import Ledger, finished

    ledger = Ledger(plan)
    todo = [stage for stage in plan.stages if not finished(stage)]
    if not todo:
        return ledger.seconds
    cold, *others = (
        [stage.job for stage in chain if stage in todo]
        for chain in ((plan.cold[0],), *plan.arms.values(), (plan.cold[1],))
    )
    console.print(
        f"{len(todo)} of {len(plan.stages)} stages to do, {at_once} at once; everything goes to {plan.out}",
        highlight=False,
    )
    ledger.begin()
    try:
        with board_for(console, [stage.job for stage in todo]) as board:
            for chains in ([cold], others):
                run_chains(chains, at_once=at_once, board=board, on_end=lambda _: ledger.save())
    finally:
        seconds = ledger.end()
    return seconds
