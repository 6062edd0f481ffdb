"""Reinforcement learning: GRPO and DAPO on rollouts that call tools, purified and selected as the recipe says.

From top to bottom: a run, its steps; a step, and what it draws.
"""

from __future__ import annotations

import asyncio
import copy
import time
from functools import partial
from pathlib import Path

from transformers import PreTrainedModel

from retcon.build import build_chat, build_tasks, settle
from retcon.config.schema import Recipe
from retcon.core.errors import SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.models.devices import OnPlace
from retcon.models.placing import model_folder, place_training
from retcon.planning.needs import needs_of, refuse_unfit
from retcon.rollout.prompts import refuse_long
from retcon.runs.folder import RunFolder, open_run
from retcon.select.drop import drop_infrastructure
from retcon.store.fingerprint import fingerprint
from retcon.tasks.registry import TaskSet
from retcon.train.ahead import GroupStream, beside, staleness
from retcon.train.objective.shaping import shaped_rewards
from retcon.train.prompts import PromptStream
from retcon.train.rollouts import TrainingRollouts, open_rollouts
from retcon.train.selection import Drawn, dynamic_sampling, selection_metrics, to_train
from retcon.train.trainer import Metrics, OnStep, Trainer, Training, train
from retcon.train.update import to_samples, update
from retcon.train.watch.course import Course
from retcon.train.watch.rollout_metrics import rollout_metrics

KEEP_ROLLOUTS_EVERY = 10
Reference = PreTrainedModel | None


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
    RecipeError or RecordError for tasks or pass rates that do not serve (see `PromptStream`), MissingExtra,
    SandboxUnavailable where a step loses all of its rollouts to faults, TrainingDiverged.
    """
    recipe.engine.refuse_training(recipe)
    folder = model_folder(start)
    start_id = fingerprint(folder)
    if tasks is None:
        tasks = build_tasks(recipe, folder)
        recipe, _ = settle(recipe, folder, tasks)
    chat = build_chat(recipe, folder, tasks)
    prompts = PromptStream(recipe, tasks, chat=chat, model=start_id)
    if recipe.evaluate.every:
        problems = tasks.evaluation(recipe.evaluate.problems, recipe.evaluate.seed)
        refuse_long(problems, chat, recipe.rollout.max_tokens, "problems")
    where = place_training(recipe, folder)
    refuse_unfit(needs_of("rl", recipe, folder, where), out)
    run = open_run(out, kind="rl", recipe=recipe, inputs={"start": start_id, **prompts.inputs}, tasks=tasks.name)

    def steps(trainer: Trainer) -> None:
        asyncio.run(_train(recipe, run, trainer, folder, prompts))

    return train(Training(run, recipe, where, start, recipe.rl), steps, on_step=on_step, on_place=on_place)


async def _train(recipe: Recipe, run: RunFolder, trainer: Trainer, tokenizer: Path, prompts: PromptStream) -> None:
    reference = trainer.reference() if recipe.rl.kl else None  # before the engine looks what memory is free
    course = Course(recipe.rl, trainer.history())
    weights, reserved = trainer.engine_weights(), trainer.to_come()
    async with (
        open_rollouts(recipe, weights, tokenizer, prompts.tasks, reserved=reserved, version=trainer.step) as rollouts,
        GroupStream(rollouts, prompts.after(trainer.drawn)) as stream,
    ):
        while trainer.step < recipe.rl.steps and not course.over:
            course.add(await _step(run, trainer, stream, reference, course))


async def _step(run: RunFolder, trainer: Trainer, stream: GroupStream, reference: Reference, course: Course) -> Metrics:
    rollouts = stream.rollouts
    recipe, step = rollouts.recipe, trainer.step + 1
    began, before = time.perf_counter(), copy.copy(rollouts.engine.stats)
    try:
        drawn = await draw_groups(stream, step=step)
    except asyncio.CancelledError:
        trainer.save()  # Ctrl-C: the weights are those of the last whole step
        raise
    async with rollouts.paused():
        rollouts.rest()
        rolled_out = time.perf_counter()
        learn = partial(_learn, trainer, to_train(recipe, drawn), recipe, step, reference)
        losses = await beside(learn) if recipe.rl.max_staleness else learn()
        trained = time.perf_counter()
        await rollouts.sync(step)

    if step % KEEP_ROLLOUTS_EVERY == 0 or step in (1, recipe.rl.steps):
        run.keep_trajectories(step, (t for group in drawn.made for t in group))
    made = rollout_metrics(drawn.made)
    seconds, stats = time.perf_counter() - began, rollouts.engine.stats.since(before).metrics()
    held_out = await _held_out(trainer, rollouts, step)
    return trainer.done(  # checkpoint, where it is time, and log
        {
            **made,
            **selection_metrics(recipe, drawn),
            **course.drift_after(made),
            **(staleness(drawn.kept, step) if recipe.rl.max_staleness else {}),
            **losses,
            **stats,
            **held_out,
            "step_seconds": round(seconds, 4),
            "tokens_per_second": round(made["total_tokens"] / seconds, 1),
            "rollout_seconds": round(rolled_out - began, 4),
            "train_seconds": round(trained - rolled_out, 4),
            "sync_seconds": round(began + seconds - trained, 4),
        },
        drawn=len(drawn.made),
    )


def _learn(
    trainer: Trainer, groups: list[list[Trajectory]], recipe: Recipe, step: int, reference: Reference
) -> dict[str, float | None]:
    """Rewards, advantages, samples, and the step's updates."""
    rewards = [shaped_rewards(group, recipe.rl, limit=recipe.rollout.max_tokens) for group in groups]
    samples = []
    for group, advantages in zip(groups, recipe.rl.advantages_of_step(rewards), strict=True):
        samples += to_samples(group, advantages, recipe.rl)
    return update(
        trainer.model,
        trainer.optimizer,
        samples,
        recipe.rl,
        seed=recipe.run.seed,
        step=step,
        computing=trainer.computing,
        reference=reference,
    )


async def _held_out(trainer: Trainer, rollouts: TrainingRollouts, step: int) -> dict[str, float]:
    """The policy on the evaluation's problems, where the recipe asks for that after this step. What training draws
    depends on none of it, and it is not part of what the run cost."""
    recipe = rollouts.recipe
    if not recipe.evaluate.every or (step % recipe.evaluate.every and step != recipe.rl.steps):
        return {}
    with trainer.off_the_clock():
        found = await rollouts.evaluated()
        async with rollouts.paused():
            rollouts.rest()
    return found


async def draw_groups(stream: GroupStream, *, step: int) -> Drawn:
    """Takes the groups of the step's prompts, drops what faults took, and selects; with dynamic sampling again, of more
    prompts, until enough groups teach something or a bound is met.

    Raises SandboxUnavailable where the first prompts lose all of their groups to faults.
    """
    recipe = stream.rollouts.recipe
    dynamic = dynamic_sampling(recipe)
    drawn = Drawn()
    missing = recipe.rl.prompts
    while True:
        for task, group in await stream.take(missing, step=step):
            left = drop_infrastructure(group)
            seed = derive("select", recipe.run.seed, step, task.id)
            drawn.add(group, recipe.select.select(left, recipe.rl.group, seed=seed) if left else [])
        if not any(drawn.kept):
            raise SandboxUnavailable(
                f"step {step}: infrastructure faults left fewer than two rollouts of every group; see `retcon doctor`, "
                "then run the same command again to continue"
            )
        missing = dynamic.to_draw(drawn.kept, rounds=drawn.rounds) if dynamic else 0
        if not missing:
            return drawn
        drawn.rounds += 1
