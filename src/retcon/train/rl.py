"""Reinforcement learning: GRPO and DAPO on rollouts that call tools, purified and selected as the recipe says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from retcon.config.schema import Recipe
from retcon.models.devices import OnPlace
from retcon.models.placing import model_folder, place_training
from retcon.rollout.world import open_rollout_chat
from retcon.runs.folder import RunFolder, open_run
from retcon.store.fingerprint import fingerprint
from retcon.tasks.registry import TaskSet, task_set
from retcon.tasks.types import Task
from retcon.train.optim import adamw, torch_settings
from retcon.train.prompts import Prompts
from retcon.train.rollout_metrics import rollout_metrics
from retcon.train.rollouts import TrainingRollouts, open_rollouts
from retcon.train.selection import draw_groups, selection_metrics, to_train
from retcon.train.session import OnStep, Session
from retcon.train.update import group_samples, update

KEEP_ROLLOUTS_EVERY = 10


def run_rl(
    recipe: Recipe,
    start: Path,
    out: Path,
    *,
    tasks: TaskSet | None = None,
    on_step: OnStep | None = None,
    on_place: OnPlace | None = None,
) -> Path:
    """Train the model in the folder `start` as the recipe says; returns the folder of the final model.

    Everything random derives from (seed, step, …), so that the weights, the optimiser's state, the step and how many
    prompts were drawn are the whole state. A run that was interrupted goes on from its newest checkpoint in `out`;
    Ctrl-C between two updates makes one first; a run that is finished returns at once. tasks: a task set of your own,
    in place of the one that the recipe names; run.json keeps its name, and a hash of the tasks themselves. on_step gets
    each step's metrics, on_place where it computes, before it does.

    Raises CheckpointError (see `open_run`), RecipeError for what cannot be computed here (see `place_training`),
    RecipeError or RecordError for tasks or pass rates that do not serve (see `Prompts`), MissingExtra,
    SandboxUnavailable where a step loses all of its rollouts to faults, TrainingDiverged.
    """
    folder = model_folder(start)
    start_id = fingerprint(folder)
    tasks = tasks or task_set(recipe.task.name)
    chat = open_rollout_chat(recipe, folder, tasks.system)
    prompts = Prompts(recipe, tasks, chat=chat, model=start_id)
    where = place_training(recipe, folder)
    run = open_run(out, kind="rl", recipe=recipe, inputs={"start": start_id, **prompts.inputs}, tasks=tasks.name)
    if run.finished:
        return run.final
    run.note_place(where.line)
    if on_place is not None:
        on_place(where)
    config = recipe.rl
    with torch_settings(where):
        session = Session(
            run,
            recipe=recipe,
            place=where,
            start=start,
            optimize=partial(adamw, lr=config.lr, weight_decay=config.weight_decay),
            every=config.checkpoint_every,
            on_step=on_step,
        )
        if session.step < config.steps:
            asyncio.run(_train(recipe, run, session, folder, prompts))
        return session.finish()


async def _train(recipe: Recipe, run: RunFolder, session: Session, tokenizer: Path, prompts: Prompts) -> None:
    weights, reserved = session.engine_weights(), session.to_come()
    async with open_rollouts(recipe, weights, tokenizer, prompts.tasks, reserved=reserved) as rollouts:
        stream = prompts.after(session.drawn)
        while session.step < recipe.rl.steps:
            await _step(recipe, run, session, rollouts, stream)


async def _step(
    recipe: Recipe, run: RunFolder, session: Session, rollouts: TrainingRollouts, prompts: Iterator[Task]
) -> None:
    step = session.step + 1
    began, before = time.perf_counter(), replace(rollouts.engine.stats)
    try:
        drawn = await draw_groups(recipe, rollouts, prompts, step=step)
    except asyncio.CancelledError:
        session.save()  # Ctrl-C: the weights are those of the last whole step
        raise
    rollouts.rest()
    rolled_out = time.perf_counter()

    samples = [sample for group in to_train(recipe, drawn) for sample in group_samples(group, recipe.rl)]
    losses = update(
        session.model,
        session.optimizer,
        samples,
        recipe.rl,
        seed=recipe.run.seed,
        step=step,
        computing=session.computing,
    )
    trained = time.perf_counter()
    rollouts.sync()

    if step % KEEP_ROLLOUTS_EVERY == 0 or step in (1, recipe.rl.steps):
        run.keep_trajectories(step, (t for group in drawn.made for t in group))
    session.done(
        {
            **rollout_metrics(drawn.made),
            **selection_metrics(recipe, drawn),
            **losses,
            **rollouts.engine.stats.since(before).metrics(),
            "rollout_seconds": round(rolled_out - began, 4),
            "train_seconds": round(trained - rolled_out, 4),
            "sync_seconds": round(time.perf_counter() - trained, 4),
        },
        drawn=len(drawn.made),
    )
