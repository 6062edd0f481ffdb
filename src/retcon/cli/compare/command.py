"""`retcon compare`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.arguments import (
    ColdStart,
    Jobs,
    Out,
    Seeds,
    StartOfAll,
    command_line,
    interruptible,
    need_training,
    number,
    plain_console,
)
from retcon.cli.compare.matching import Match
from retcon.core.machine import usable_cores


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [KEY=VALUE]...",
            help="Two or more recipes, files or names of shipped ones, of which the first is the baseline; "
            "and changes to all of them, such as [bold]rl.steps=40[/].",
            show_default=False,
        ),
    ],
    *,
    seeds: Seeds = 5,
    out: Out = Path("runs/compare"),
    match: Annotated[
        Match,
        typer.Option(
            "--match",
            help="What all arms get the same amount of: rollouts trained on, tokens sampled, optimiser updates, or "
            "wall (CPU seconds, in fact; such a run does not repeat exactly).",
        ),
    ] = "rollouts",
    start: StartOfAll = None,
    cold: ColdStart = None,
    faults: Annotated[
        float,
        typer.Option(
            "--faults",
            callback=number,
            min=0.0,
            max=1.0,
            help="Share of calls that fail in the evaluation with faulty tools.",
        ),
    ] = 0.1,
    jobs: Jobs = None,
) -> None:
    """Train recipes from one cold start, seed by seed, and compare them fairly. Repeat the command to continue."""
    need_training()
    from retcon.cli.common.targets import make_targets
    from retcon.cli.compare.arms import read_arms
    from retcon.cli.compare.finish import finish
    from retcon.cli.compare.plan import CompareOptions, arms_in, make_plan, open_ledger
    from retcon.report.plots import need_matplotlib

    need_matplotlib()
    arms = read_arms(words, arms_in(out), cold)
    overrides = [word for word in words if "=" in word]
    plan = make_plan(CompareOptions(out, seeds, match, start, cold, faults), arms, overrides)
    ledger = open_ledger(plan)
    command = command_line("retcon", *sys.argv[1:])
    with interruptible(f"what is done is kept in {out}; continue with: {command}"):
        console = plain_console(stderr=True, soft_wrap=False)
        seconds = make_targets(plan.targets, ledger, at_once=jobs or usable_cores(), console=console, out=out)
        finish(plan, seconds, sys.argv[1:], plain_console(soft_wrap=False))
