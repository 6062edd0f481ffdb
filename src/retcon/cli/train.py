"""`retcon train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.arguments import Out, Overrides, RecipeName, checkpoint_folder, command_line, need_training
from retcon.cli.interrupt import interruptible
from retcon.cli.progress import tell_place, telling


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    start: Annotated[
        Path,
        typer.Option(
            "--from",
            metavar="CHECKPOINT",
            help="What to start from: a Hugging Face folder, or a run folder with a final/.",
            show_default=False,
        ),
    ],
    out: Out = Path("runs/train"),
) -> None:
    """Reinforcement learning from a checkpoint, with or without purification, as the recipe says."""
    from retcon.config.load import load_recipe
    from retcon.config.shipped import find_recipe

    settings = load_recipe(find_recipe(recipe), overrides or ())
    folder = checkpoint_folder(start)
    need_training()
    from retcon.train.rl import run_rl

    kept = f"what {out} holds is kept; the same command again goes on from its newest checkpoint"
    with interruptible(kept), telling(f"training {recipe}") as tell:
        final = run_rl(
            settings,
            folder,
            out,
            on_step=lambda m: tell(int(m["step"] or 0), settings.rl.steps),
            on_place=tell_place,
        )
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"model: {final}\nmetrics: {out / 'metrics.jsonl'}\ntrajectories: {out / 'trajectories'}")
    console.print(f"try: {command_line('retcon', 'eval', out, '--out', out / 'eval')}")
