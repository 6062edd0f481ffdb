"""The end of a comparison: its files, its tables, where everything is, and what to run next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from retcon.cli.arguments import command_line
from retcon.cli.compare.matching import ABOUT, matched
from retcon.cli.compare.plan import ComparePlan
from retcon.core.errors import RecipeError
from retcon.report.comparison import SEEDS_OF_A_FINDING, Compared, caveat, read_compared, run_folder, write_compared

FILES = {
    "figures": "compare.json",
    "tables": "table.md, table.tex, table.csv",
    "pictures": "*.png, *.svg",
    "models": "<arm>/seed-<n>/final",
    "evaluations": "<arm>/seed-<n>/eval, eval-*",
    "logs": "logs",
}


def finish(plan: ComparePlan, seconds: float, words: list[str], console: Console) -> None:
    """Write the tables of the plan's runs into its folder, and print them. words: the command."""
    out, options = plan.options.out, plan.options
    runs = {arm.name: [read_compared(out, arm.name, seed) for seed in plan.seeds] for arm in plan.arms}
    recipes = {arm.name: arm.recipe for arm in plan.arms}
    found = Compared(out.name, runs, recipes, ABOUT[options.match], options.faults, seconds)
    for sheet in write_compared(found, out):
        for table in sheet.tables(console):
            console.print(table)
            console.print()
    console.print(f"{seconds / 60:.1f} minutes in all. Where everything is, in {out}:", highlight=False, soft_wrap=True)
    print_end(console, FILES, caveat(len(plan.seeds)), _next(plan, words))


def print_end(console: Console, files: Mapping[str, str], note: str, commands: Sequence[str]) -> None:
    """Print where everything is, what it is worth, and what to run next. files: names to places in the folder."""
    for name, place in files.items():
        console.print(Text.assemble("  ", (f"{name:<12}", "bold"), place), soft_wrap=True)
    if note:
        console.print(note, style="yellow", highlight=False, soft_wrap=True)
    console.print("\nWhat to try next:", highlight=False)
    for line in commands:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _next(plan: ComparePlan, words: list[str]) -> list[str]:
    out, last = plan.options.out, plan.arms[-1].name
    lines = [
        command_line("retcon", "report", *(run_folder(out, arm.name, plan.seeds[0]) for arm in plan.arms)),
        command_line("retcon", "show", run_folder(out, last, plan.seeds[0]) / "eval" / "trajectories-t1.jsonl"),
    ]
    if len(plan.seeds) < SEEDS_OF_A_FINDING:
        more = [*_without(words, "--seeds"), "--seeds", SEEDS_OF_A_FINDING]
        lines.append(f"{command_line('retcon', *more)}   # continues; what is done is kept")
    elif plan.options.match == "rollouts" and _goes_with_tokens(plan):
        tokens = [*_without(_without(words, "--match"), "--out"), "--match", "tokens", "--out", f"{out}-tokens"]
        lines.append(command_line("retcon", *tokens))
    return lines


def _goes_with_tokens(plan: ComparePlan) -> bool:
    """Whether `--match tokens` would not refuse the arms."""
    try:
        matched(plan.arms, "tokens")
    except RecipeError:
        return False
    return True


def _without(words: list[str], option: str) -> list[str]:
    """The words without an option and its value."""
    found: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            found.append(word)
    return found
