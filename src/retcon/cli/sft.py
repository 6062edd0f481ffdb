"""`retcon sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.common.arguments import Out, Overrides, RecipeName, kept_run, need_training, tell_trained
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling


def sft(
    recipe: RecipeName = "quickstart/cold_start",
    overrides: Overrides = None,
    out: Out = Path("runs/cold_start"),
    demonstrations: Annotated[
        Path | None,
        typer.Option(
            "--demonstrations",
            metavar="FILE",
            help="What to learn from: trajectories, or transcripts in any format that `retcon purify` reads; "
            "where FILE does not exist, the recipe's teacher writes it. "
            "Default: DIR-demonstrations.jsonl.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Supervised training: the cold start on a teacher's demonstrations, or on transcripts of your own."""
    from retcon.config.load import load_recipe
    from retcon.config.shipped import find_recipe

    settings = load_recipe(find_recipe(recipe), overrides or ())
    need_training()
    from retcon.cli.common.demonstrations import ensure_demonstrations
    from retcon.runs.folder import check_run
    from retcon.train.sft import run_sft

    check_run(out, kind="sft", recipe=settings)
    file = demonstrations or out.with_name(f"{out.name}-demonstrations.jsonl")
    with interruptible(kept_run(out)):
        with telling("writing demonstrations") as tell:
            ensure_demonstrations(settings, file, tell)
        with telling("supervised training") as tell:
            final = run_sft(
                settings,
                file,
                out,
                on_step=lambda m: tell(int(m["step"] or 0), settings.sft.steps),
                on_place=tell_place,
            )
    tell_trained(final, out, f"demonstrations: {file}")
