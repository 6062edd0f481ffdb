"""`retcon dpo`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.common.arguments import (
    DryRun,
    Out,
    Start,
    kept_run,
    need_training,
    refuse_several,
    split_overrides,
    tell_trained,
)
from retcon.cli.common.importing import import_training
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling_steps


def dpo(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="A recipe (its sections run, model, compute, lora and dpo matter, and its tools), and changes to it.",
            show_default=False,
        ),
    ] = None,
    *,
    pairs: Annotated[
        list[Path],
        typer.Option("--pairs", metavar="FILE", help="Pairs as `retcon purify --dpo` writes them.", show_default=False),
    ],
    start: Start = None,
    out: Out = Path("runs/dpo"),
    dry_run: DryRun = False,
) -> None:
    """Train on pairs of a failed call and its fix (direct preference optimisation)."""
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe
    from retcon.models.locating import locate

    refuse_several("--pairs", pairs)
    name, overrides = split_overrides(words or [])
    recipe = load_recipe(name, overrides, reads=READS["dpo"])
    folder = locate(start or recipe.model.path)
    need_training()
    if dry_run:
        from retcon.cli.common.plan import plan_dpo

        plan_dpo(recipe, pairs[0], folder, out)
        return
    import_training()
    from retcon.train.dpo import run_dpo

    with interruptible(partial(kept_run, out)), telling_steps("preference training", recipe.dpo.steps) as on_step:
        final = run_dpo(
            recipe,
            pairs[0],
            folder,
            out,
            on_step=on_step,
            on_place=tell_place,
        )
    tell_trained(final, out, f"metrics: {out / 'metrics.jsonl'}", recipe=[*filter(None, [name]), *overrides])
