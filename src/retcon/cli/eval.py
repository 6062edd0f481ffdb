"""`retcon eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.common.arguments import Out, checkpoint_folder, need_training, split_overrides
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="A Hugging Face folder, or a run folder with a final/.")],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="A recipe (its sections task, rollout, sandbox and evaluate count), and changes to it.",
            show_default=False,
        ),
    ] = None,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair failed turns as they happen, as the recipe's [repair] says.")
    ] = False,
    out: Out = Path("runs/eval"),
) -> None:
    """Measure a checkpoint on problems that no training saw, with purification off unless you ask for it."""
    from retcon.build import build_repair
    from retcon.config.load import apply_override, load_recipe
    from retcon.config.shipped import find_recipe

    name, overrides = split_overrides(words or [])
    recipe = load_recipe(find_recipe(name) if name is not None else None, overrides)
    if repair:
        kind = "saar" if build_repair(recipe) is None else recipe.repair.kind
        recipe = apply_override(recipe, f"evaluate.repair={kind}")
    folder = checkpoint_folder(checkpoint)
    need_training()
    from retcon.evaluate.result import read_result
    from retcon.evaluate.runner import run_evaluation

    kept = f"a finished setting is kept in {out}; the same command again continues"
    with interruptible(kept), telling(f"evaluating {checkpoint}") as tell:
        path = run_evaluation(recipe, folder, out, on_progress=tell, on_place=tell_place)
    from rich.console import Console

    from retcon.report.tables import result_table

    console = Console()
    console.print(result_table(read_result(path)))
    console.print(f"result: {path}\ntry: retcon show {out / 'trajectories-t1.jsonl'}", highlight=False, soft_wrap=True)
