"""Reinforcement learning: GRPO and DAPO on rollouts that call tools, purified and selected as the recipe says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.core.errors import SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.select.drop import drop_infrastructure, take
from retcon.select.roc import roc
from retcon.tasks.registry import TaskSet, task_set
from retcon.tasks.types import Task
from retcon.train.folder import RunFolder, open_run
from retcon.train.model import fingerprint, model_folder, start_model
from retcon.train.optim import adamw, torch_settings
from retcon.train.rollout_metrics import rollout_metrics
from retcon.train.rollouts import TrainingRollouts, open_rollouts
from retcon.train.session import OnStep, Session
from retcon.train.update import ALGORITHMS, group_samples, update

KEEP_ROLLOUTS_EVERY = 10


def run_rl(
    recipe: Recipe, start: Path, out: Path, *, tasks: TaskSet | None = None, on_step: OnStep | None = None
) -> Path:
    """Train the model in the folder `start` as the recipe says; returns the folder of the final model.

    Everything random derives from (seed, step, …), so that the weights, the optimiser's state and the step are the
    whole state. A run that was interrupted goes on from its newest checkpoint in `out`; Ctrl-C between two updates
    makes one first; a run that is finished returns at once. tasks: a task set of
    your own, in place of the one that the recipe names. on_step gets each step's metrics.

    Raises CheckpointError (see `open_run`), SandboxUnavailable where a step loses all of its rollouts to faults,
    TrainingDiverged.
    """
    folder = model_folder(start)
    run = open_run(out, kind="rl", recipe=recipe, inputs={"start": fingerprint(folder)})
    if run.finished:
        return run.final
    config = recipe.rl
    with torch_settings(recipe.run.threads):
        session = Session(
            run,
            start=partial(start_model, start, recipe.run.seed),
            optimize=partial(adamw, lr=config.lr, weight_decay=config.weight_decay),
            tokenizer=folder,
            every=config.checkpoint_every,
            on_step=on_step,
        )
        if session.step < config.steps:
            asyncio.run(_train(recipe, run, session, folder, tasks or task_set(recipe.task.name)))
        return session.finish()


async def _train(recipe: Recipe, run: RunFolder, session: Session, tokenizer: Path, tasks: TaskSet) -> None:
    async with open_rollouts(recipe, session.model, tokenizer, tasks) as rollouts:
        prompts = rollouts.prompts(after=session.step)
        while session.step < recipe.rl.steps:
            await _step(recipe, run, session, rollouts, next(prompts))


async def _step(
    recipe: Recipe, run: RunFolder, session: Session, rollouts: TrainingRollouts, tasks: Sequence[Task]
) -> None:
    seed, step = recipe.run.seed, session.step + 1
    algorithm = ALGORITHMS[recipe.rl.algorithm]
    cap = recipe.rl.splice_weight_cap if recipe.rl.splice_weight == "truncated" else None
    began = time.perf_counter()
    try:
        groups = await rollouts.of(tasks, step=step)
    except asyncio.CancelledError:
        session.save()  # Ctrl-C: the weights are those of the last whole step
        raise
    rolled_out = time.perf_counter()

    whole = [drop_infrastructure(group) for group in groups]
    whole = [group for group in whole if 2 * len(group) >= recipe.rl.group and len(group) > 1]
    if not whole:
        raise SandboxUnavailable(
            f"step {step}: infrastructure faults left too few rollouts of every group; see `retcon doctor`, then run "
            "the same command again to go on"
        )
    kept = [_select(recipe, group, step) for group in whole]
    samples = [sample for group in kept for sample in group_samples(group, algorithm, weight_cap=cap)]
    losses = update(session.model, session.optimizer, samples, recipe.rl, seed=seed, step=step)
    rollouts.engine.invalidate()

    if step % KEEP_ROLLOUTS_EVERY == 0 or step in (1, recipe.rl.steps):
        run.keep_trajectories(step, (t for group in groups for t in group))
    session.done(
        {
            **rollout_metrics(groups),
            "kept": len(samples),
            "groups_skipped": len(groups) - len(whole),
            "groups_flat": sum(len({t.reward for t in group}) == 1 for group in kept),
            **losses,
            "rollout_seconds": round(rolled_out - began, 4),
            "train_seconds": round(time.perf_counter() - rolled_out, 4),
        }
    )


def _select(recipe: Recipe, group: Sequence[Trajectory], step: int) -> list[Trajectory]:
    """G of the G' rollouts of a prompt."""
    section = recipe.select
    if section.kind == "none":
        return take(group, recipe.rl.group)
    return roc(
        group,
        recipe.rl.group,
        seed=derive("select", recipe.run.seed, step, group[0].task),
        draw=section.draw,
        min_positive=section.min_positive,
        min_negative=section.min_negative,
    )
