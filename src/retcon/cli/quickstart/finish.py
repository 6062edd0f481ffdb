"""The end of the quickstart: summary, pictures, page, table, a trajectory, and where everything is."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from retcon import __version__
from retcon.build import build_repair
from retcon.cli.arguments import command_line
from retcon.cli.doctor import look_at_machine
from retcon.cli.quickstart.plan import Plan
from retcon.core.texts import counted
from retcon.core.types import Trajectory
from retcon.report.page import Report, comparison_page
from retcon.report.plots import draw_curves
from retcon.report.runs import Comparison, Run, read_run, showcase_in
from retcon.report.tables import comparison_table, figures, write_summary
from retcon.report.transcript import show_purification
from retcon.store.whole import write_whole


def finish(plan: Plan, seconds: float, command: str, console: Console) -> None:
    """Writes summary.json, PNGs and report.html into the plan's folder, and tells the result."""
    arms: dict[str, list[Run]] = {}
    for arm, seed in plan.arms:
        arms.setdefault(arm, []).append(read_run(plan.run_folder(arm, seed), seed))
    cold_recipe = plan.cold[0].recipe
    cold = replace(
        read_run(plan.out / "cold_start", cold_recipe.run.seed), demonstrations=cold_recipe.sft.demonstrations
    )
    comparison = Comparison(cold, arms, seconds)
    found = _showcase(plan)
    write_summary(plan.out / "summary.json", comparison)
    pictures = draw_curves(comparison.arms, plan.out)
    embedded = {curve: file.read_bytes() for curve, file in pictures.items()}
    report = Report(comparison, embedded, found[0] if found else None, _repeat(command))
    write_whole(plan.out / "report.html", comparison_page(report))
    if found:
        console.print(Rule("A trajectory before and after purification", align="left"))
        console.print(show_purification(found[0]))
        console.print()
    of_arms = {arm: figures(runs) for arm, runs in arms.items()}
    console.print(comparison_table(figures([cold]), of_arms, seeds=len(comparison.seeds)))
    console.print(f"\n{_places_of(plan)}", highlight=False, soft_wrap=True)
    console.print(f"{seconds / 60:.1f} minutes in all. Where everything is:", highlight=False)
    console.print(_places(plan))
    console.print("\nWhat to try next:", highlight=False)
    for line in _next(plan, found):
        console.print(Text(f"  {line}"), soft_wrap=True)


def _showcase(plan: Plan) -> tuple[Trajectory, Path] | None:
    """A repaired trajectory of the last run that was purified."""
    for (arm, seed), (training, _) in reversed(plan.arms.items()):
        if build_repair(training.recipe) is not None and (found := showcase_in(plan.run_folder(arm, seed))):
            return found
    return None


def _places_of(plan: Plan) -> str:
    """What the trainings computed on, one line for each place."""
    folders = [plan.out / "cold_start", *(plan.run_folder(*key) for key in plan.arms)]
    lines = [line for folder in folders for line in json.loads((folder / "run.json").read_bytes()).get("places", [])]
    return "\n".join(dict.fromkeys(lines))


def _repeat(command: str) -> list[str]:
    machine = look_at_machine()
    return [
        f"# retcon {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{counted(machine.cores, 'core')}",
        command,
    ]


def _places(plan: Plan) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    rows = {
        "page": "report.html",
        "figures": "summary.json",
        "pictures": "*.png",
        "cold start": "cold_start/final",
        "models": "<arm>/seed-<n>/final",
        "training's trajectories": "<arm>/seed-<n>/trajectories",
        "evaluation's trajectories": "<arm>/seed-<n>/eval",
    }
    for name, place in rows.items():
        table.add_row(f"  {name}", Text(str(plan.out / place)))
    return table


def _next(plan: Plan, found: tuple[Trajectory, Path] | None) -> list[str]:
    arm, seed = next(reversed(plan.arms))
    lines = [command_line("retcon", "show", plan.run_folder(arm, seed) / "eval" / "trajectories-t1.jsonl")]
    if found:
        lines.insert(0, command_line("retcon", "show", found[1], "--first-repaired"))
    again = ("retcon", "quickstart", *plan.options)
    named = dict.fromkeys(arm for arm, _ in plan.arms)
    arms = () if tuple(named) == plan.about.usual else ("--arms", ",".join(named))
    if len({seed for _, seed in plan.arms}) < 3:
        lines.append(command_line(*again, *arms, "--out", plan.out, "--seeds", "3"))
    lines.append(command_line(*again, "rl.mask_negative_spliced=true", "--out", "runs/masked"))
    return lines
