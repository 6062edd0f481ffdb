"""The end of a reproduction: its page, its tables, where everything is, and what to run next."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from retcon.cli.common.arguments import command_line
from retcon.cli.compare.finish import tell_end
from retcon.cli.reproduce.arms import told
from retcon.cli.reproduce.plan import Reproduction
from retcon.report.compared.reading import read_compared, run_folder
from retcon.report.papers.page import FIGURES, PAGE, PICTURES, Reproduced, write_reproduced
from retcon.report.papers.types import Paper, Study


def finish(plan: Reproduction, seconds: float, command: str, console: Console) -> None:
    """Writes what the plan's runs came to into its folder, and tells it."""
    out, seeds = plan.compared.wish.out, plan.compared.seeds
    runs = {arm: [read_compared(out, arm, seed) for seed in seeds] for arm in plan.arms}
    found = Reproduced(plan.paper, plan.studies, runs, plan.recipes, command, seconds)
    for sheet in write_reproduced(found, out):
        for table in sheet.tables(console):
            console.print(table)
            console.print()
    console.print(f"{seconds / 60:.1f} minutes in all. Where everything is, in {out}:", highlight=False, soft_wrap=True)
    places = {
        "page": PAGE,
        "figures": FIGURES,
        "pictures": f"{PICTURES}/<study>/*.png",
        "models": "<arm>/seed-<n>/final",
    }
    folders = [run_folder(out, arm, seeds[0]) for arm in plan.arms[:2]]
    lines = [
        command_line("retcon", "report", *folders),
        command_line("retcon", "show", folders[-1] / "eval" / "trajectories-t1.jsonl"),
    ]
    tell_end(console, places, len(seeds), lines)


def tell_list(paper: Paper, studies: tuple[Study, ...], recipes: Mapping[str, str], console: Console) -> None:
    """What there is to run, and with which arms."""
    console.print(f"{paper.title} (arXiv {paper.arxiv})", highlight=False, soft_wrap=True)
    for study in studies:
        arms = ", ".join((paper.first.name, *study.arms))
        console.print(Text.assemble("  ", (f"{study.name:<10}", "bold"), f"{study.title}: {arms}"), soft_wrap=True)
    console.print("Its arms:", highlight=False)
    for variant in paper.arms_of(studies):
        about = told(variant, recipes)
        console.print(Text.assemble("  ", (f"{variant.name:<14}", "bold"), about), soft_wrap=True)
