"""`retcon difficulty`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retcon.cli.common.arguments import Model, command_line, plain_console, split_overrides
from retcon.cli.common.importing import import_training
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling
from retcon.core.texts import counted

if TYPE_CHECKING:
    from rich.table import Table

    from retcon.config.schema import Recipe
    from retcon.config.stages import Stage
    from retcon.store.pass_rates import PassRate


def difficulty(
    checkpoint: Model,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="The recipe of the planned run (its task set, run.seed, rollout and sandbox matter), and changes.",
            show_default=False,
        ),
    ] = None,
    *,
    tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="How many of the training's tasks to measure, from the first on.")
    ],
    rollouts: Annotated[int, typer.Option("--rollouts", min=1, help="Rollouts per task.")] = 8,
    stage: Annotated[
        str,
        typer.Option(
            "--stage",
            metavar="NAME",
            help="Of a recipe with stages, the one whose tasks and limits count, by name or number; without it, the "
            "recipe's own do.",
            show_default=False,
        ),
    ] = "",
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="File that rates are added to as they are measured.")
    ] = Path("runs/pass_rates.jsonl"),
) -> None:
    """Measure pass rates of training tasks, for select.pass_rates to leave out those too easy or too hard."""
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe
    from retcon.config.stages import stage_named
    from retcon.models.locating import locate
    from retcon.store.outputs import refuse_special

    refuse_special(out, "--out")
    name, overrides = split_overrides(words or [])
    recipe = load_recipe(name, overrides, reads=READS["difficulty"])
    of_run = stage_named(recipe, stage, f"--stage {stage}") if stage else None
    if of_run is not None:
        recipe = of_run.recipe
    folder = locate(checkpoint)
    if recipe.engine.in_process:
        import_training()
    from retcon.evaluate.difficulty import run_difficulty

    kept = f"what was measured is kept in {out}; the same command measures the rest"
    with interruptible(kept), telling(f"measuring with {checkpoint}") as tell:
        measured = run_difficulty(
            recipe, folder, out, tasks=tasks, rollouts=rollouts, on_progress=tell, on_place=tell_place
        )
    section = recipe.select
    within = sum(section.min_pass_rate <= one.rate <= section.max_pass_rate for one in measured)
    console = plain_console()
    console.print(_table(measured))
    console.print(
        f"{counted(len(measured), 'task')} measured, {within} within "
        f"[{section.min_pass_rate:g}, {section.max_pass_rate:g}]: {out}"
    )
    if len(measured) < tasks:
        console.print(
            f"{tasks - len(measured)} have no rate: the task set is smaller, or they lost rollouts to faults and the "
            "same command again measures them"
        )
    if not within:
        console.print(
            "a training that selects by them would have no task: where none is solved, a cold start may have to come "
            "first (docs/data/demonstrations.md); where all are, take harder tasks"
        )
        return
    if of_run is not None:
        console.print(f"try: {_with_stage(of_run, out)}")
        return
    own = overrides
    if _only_measures(recipe):
        own = [*(override for override in overrides if not override.startswith("engine.")), "engine.kind=local"]
    again = command_line("retcon", "train", name or "RECIPE", *own, f"select.pass_rates={out}", "--from", checkpoint)
    console.print(f"try: {again}")


def _only_measures(recipe: Recipe) -> bool:
    """Whether its engine gives nothing to train on, such as a server of text."""
    from retcon.core.errors import RecipeError

    try:
        recipe.engine.refuse_training(recipe)
    except RecipeError:
        return True
    return False


def _with_stage(stage: Stage, out: Path) -> str:
    """What to do with a stage's rates. A run that has begun goes on with the file that its recipe names and no
    other."""
    wanted = stage.recipe.select.pass_rates
    if wanted and Path(wanted).resolve() == out.resolve():
        return f"the run's own command again: {stage} looks there"
    key = command_line(f"stages.{stage.name}.select.pass_rates={out}")
    if wanted and not Path(wanted).exists():
        return (
            f"{command_line('cp', out, wanted)}\nand the run's own command again, as {stage} looks there (one that has "
            f"not begun can have {key} instead)"
        )
    return f"a run that has not begun, with {key}" + f": one that has goes by {wanted}" * bool(wanted)


def _table(measured: Sequence[PassRate]) -> Table:
    """How many tasks have which rate."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.HORIZONTALS, pad_edge=False)
    table.add_column("passed", justify="right")
    table.add_column("tasks", justify="right")
    table.add_column("")
    counts = Counter((one.rate, f"{one.passed} of {one.rollouts}") for one in measured)
    for (_, label), count in sorted(counts.items()):
        table.add_row(label, str(count), "▇" * round(40 * count / len(measured)))
    return table
