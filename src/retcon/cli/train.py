"""`retcon train`."""

from __future__ import annotations

from pathlib import Path

from retcon.cli.common.arguments import (
    Out,
    Overrides,
    RecipeName,
    Start,
    checkpoint_folder,
    kept_run,
    need_training,
    tell_trained,
)
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    start: Start,
    out: Out = Path("runs/train"),
) -> None:
    """Reinforcement learning from a checkpoint, with or without purification, as the recipe says."""
    from retcon.config.load import load_recipe
    from retcon.config.shipped import find_recipe

    settings = load_recipe(find_recipe(recipe), overrides or ())
    folder = checkpoint_folder(start)
    need_training()
    from retcon.train.rl import run_rl

    with interruptible(kept_run(out)), telling(f"training {recipe}") as tell:
        final = run_rl(
            settings,
            folder,
            out,
            on_step=lambda m: tell(int(m["step"] or 0), settings.rl.steps),
            on_place=tell_place,
        )
    lines = (f"metrics: {out / 'metrics.jsonl'}", f"trajectories: {out / 'trajectories'}")
    tell_trained(final, out, *lines, recipe=[recipe, *(overrides or ())])
