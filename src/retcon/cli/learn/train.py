"""`retcon train`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from retcon.cli.common.arguments import (
    DryRun,
    NoData,
    Out,
    Overrides,
    RecipeName,
    Start,
    kept_run,
    need_training,
    tell_trained,
)
from retcon.cli.common.importing import import_training
from retcon.cli.common.interrupt import interruptible
from retcon.cli.common.progress import tell_place, telling_steps
from retcon.core.errors import RecipeError
from retcon.core.texts import counted

MANY = 0.25
"""Share of rollouts that may be cut off without being told."""


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    start: Start = None,
    out: Out = Path("runs/train"),
    dry_run: DryRun = False,
    gpus: Annotated[int, typer.Option("--gpus", min=0, help="With --dry-run: plan for verl on so many GPUs.")] = 0,
    gpu_gb: Annotated[float, typer.Option("--gpu-gb", min=1, help="Memory of each, in GB.")] = 80.0,
    _data: NoData = None,
) -> None:
    """Reinforcement learning from a checkpoint, with or without purification, in one stage or several, as the recipe
    says."""
    from retcon.cli.common.reading import READS
    from retcon.config.load import load_recipe
    from retcon.models.locating import locate

    settings = load_recipe(recipe, overrides or (), reads=READS["train"])
    name = start or settings.model.path
    if gpus and not dry_run:
        raise RecipeError("--gpus plans and trains nothing: add --dry-run; recipes/verl/launch.sh trains on several")
    if dry_run:
        need_training()
        from retcon.cli.common.plan import plan_rl
        from retcon.planning.estimate import gpus_of

        plan_rl(settings, name, out, gpus_of(gpus, gpu_gb) if gpus else None)
        return
    folder = locate(name)
    need_training()
    import_training()
    from retcon.runs.mechanisms import idle_mechanisms
    from retcon.runs.metrics import read_metrics
    from retcon.train.rl import run_rl

    stages = [stage.name for stage in settings.stages]
    with (
        interruptible(partial(kept_run, out)),
        telling_steps(f"training {recipe}", settings.rl.steps, stages) as on_step,
    ):
        final = run_rl(settings, folder, out, on_step=on_step, on_place=tell_place)
    metrics = out / "metrics.jsonl"
    lines = [f"metrics: {metrics}", f"trajectories: {out / 'trajectories'}"]
    steps = list(read_metrics(metrics))
    if lost := round(sum(line.get("infrastructure") or 0 for line in steps)):
        made = round(sum(line.get("rollouts") or 0 for line in steps))
        lines.append(
            f"{lost:,} of {counted(made, 'rollout')} were lost to faults of the sandbox, the engine or a grader, and "
            "nothing is learnt from them; each reason was told when it first came up"
        )
    shares = [share for line in steps if (share := line.get("cut_off")) is not None]
    if shares and sum(shares) > MANY * len(shares):
        lines.append(
            f"{sum(shares) / len(shares):.0%} of the rollouts ended for want of tokens or turns (`cut_off` in the "
            "metrics): rollout.max_tokens or rollout.max_turns may be too few for this model (docs/data/problems.md)"
        )
    if not any(line.get("grad_norm") for line in steps):
        lines.append(
            "no step moved the weights: `same_reward` in the metrics is the share of groups whose rollouts all had one "
            "reward, of which nothing is learnt (docs/training/selection.md); where none is right, a cold start may "
            "have to come first (docs/data/demonstrations.md)"
        )
    lines += idle_mechanisms(settings, steps)
    tell_trained(final, out, *lines, recipe=[recipe, *(overrides or ())])
