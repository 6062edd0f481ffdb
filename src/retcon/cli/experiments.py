"""The commands that train several arms: `quickstart`, `compare`, `reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from retcon.cli.arguments import (
    ColdStart,
    Jobs,
    Out,
    Seeds,
    StartOfAll,
    check_number,
    command_line,
    interruptible,
    need_training,
    plain_console,
    sort_recipes,
)
from retcon.core.machine import usable_cores


def quickstart(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME] [KEY=VALUE]...",
            help="Which quickstart ([bold]numbers[/], [bold]smollm2[/]; the first by default), and changes to its "
            "recipes, such as [bold]rl.steps=40[/].",
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
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", help="numbers: fresh weights instead of the base model; takes minutes more."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="smollm2: problems to train on, in place of the hub's."),
    ] = None,
    eval_data: Annotated[
        Path | None,
        typer.Option(
            "--eval-data", metavar="FILE", help="smollm2: problems to evaluate on; by default a tenth of --data."
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            callback=check_number,
            min=0.01,
            max=10_000,
            help="smollm2: as many steps as fit, according to a measurement.",
        ),
    ] = None,
    jobs: Jobs = None,
) -> None:
    """Train a small tool-using agent with and without purification, and compare. Repeat the command to continue."""
    need_training()
    from retcon.cli.quickstart import DEFAULT, SETS, QuickstartOptions, choose_set, prepare, print_quickstart

    name, overrides = choose_set(words or [])
    options = QuickstartOptions(
        name,
        out or Path("runs") / ("quickstart" if name == DEFAULT else f"quickstart-{name}"),
        arms=SETS[name].parse_arms(arms),
        seeds=seeds,
        overrides=tuple(overrides),
        from_scratch=from_scratch,
        data=data,
        eval_data=eval_data,
        hours=hours,
        at_once=jobs or usable_cores(),
    )
    console = plain_console(stderr=True, soft_wrap=False)
    with interruptible("nothing was written yet"):
        plan = prepare(options, console)
    command = command_line("retcon", *sys.argv[1:])
    with interruptible(f"what is done is kept in {plan.out}; continue with: {command}"):
        seconds = plan.run(at_once=options.at_once, console=console)
        print_quickstart(plan, seconds, command, plain_console(soft_wrap=False))


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE... [KEY=VALUE]...",
            help="Two or more recipes (with --vary, one), files or names of shipped ones, of which the first is the "
            "baseline; and changes to all of them, such as [bold]rl.steps=40[/].",
            show_default=False,
        ),
    ],
    *,
    vary: Annotated[
        str | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,...",
            help="The arms are one recipe with each of these values, such as [bold]credit.kind=root,node[/].",
        ),
    ] = None,
    seeds: Seeds = 5,
    out: Out = Path("runs/compare"),
    match: Annotated[
        Literal["rollouts", "tokens", "updates", "wall"],
        typer.Option(
            "--match",
            help="Budget held equal across arms: rollouts trained on, tokens sampled, optimiser updates, or wall "
            "(CPU seconds, in fact; such a run does not repeat exactly).",
        ),
    ] = "rollouts",
    start: StartOfAll = None,
    cold: ColdStart = None,
    faults: Annotated[
        float,
        typer.Option(
            "--faults",
            callback=check_number,
            min=0.0,
            max=1.0,
            help="Share of calls that fail in the evaluation with faulty tools.",
        ),
    ] = 0.1,
    jobs: Jobs = None,
) -> None:
    """Train recipes from one cold start and compare them fairly. Repeat the command to continue."""
    need_training()
    sort_recipes(words, cold, vary)  # before what is slow to import
    from retcon.cli.compare import COLD_STARTS, CompareOptions, arms_in, make_plan, print_comparison, read_arms
    from retcon.report.plots import need_matplotlib

    need_matplotlib()
    options = CompareOptions(out, seeds, match, start, cold, faults)
    plan = make_plan(options, read_arms(words, arms_in(out), cold, vary), [word for word in words if "=" in word])
    plan.open(ours=(COLD_STARTS,))
    command = command_line("retcon", *sys.argv[1:])
    with interruptible(f"what is done is kept in {out}; continue with: {command}"):
        seconds = plan.run(at_once=jobs or usable_cores(), console=plain_console(stderr=True, soft_wrap=False))
        print_comparison(plan, options, seconds, sys.argv[1:], plain_console(soft_wrap=False))


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
            help="Some of the paper's tables and figures, such as [bold]main,gamma[/]; --list prints all."
        )
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
            help="Another recipe in place of the miniature's, such as [bold]method=cleaner-4b[/]."
        )
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Training runs per arm (5, with --quick 1); five make a finding.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="By default runs/reproduce/PAPER, with --quick PAPER-quick; the same "
            "folder continues it."
        )
    ] = None,
    start: StartOfAll = None,
    cold: ColdStart = None,
    jobs: Jobs = None,
) -> None:  # fmt: skip
    """Reproduce a paper's tables and figures in miniature, beside its own. Repeat the command to continue."""
    need_training()
    from retcon.cli import reproduce as module
    from retcon.cli.compare import CompareOptions
    from retcon.report.plots import need_matplotlib

    paper, overrides = module.find_paper(words)
    studies, recipes = module.select_studies(paper, only), module.recipes_of(paper, recipe or ())
    if listed:
        module.print_studies(paper, studies, recipes, plain_console(soft_wrap=False))
        return
    need_matplotlib()
    if quick:
        overrides = [*module.quick_overrides(paper, studies, recipes), *overrides]
    folder = out or Path("runs", "reproduce", f"{paper.name}-quick" if quick else paper.name)
    options = CompareOptions(folder, seeds or (1 if quick else 5), "rollouts", start, cold, faults=0.0)
    plan = module.make_reproduction(options, paper, studies, recipes, overrides)
    command = command_line("retcon", *sys.argv[1:])
    with interruptible(f"what is done is kept in {folder}; continue with: {command}"):
        console = plain_console(stderr=True, soft_wrap=False)
        seconds = plan.compared.run(at_once=jobs or usable_cores(), console=console, targets=plan.targets)
        module.print_reproduction(plan, seconds, command, plain_console(soft_wrap=False), quick=quick)
