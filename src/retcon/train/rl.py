"""Reinforcement learning on rollouts with tool calls.

From top to bottom: a run, its stages and their steps; a step, and what it draws.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from retcon.build import build_limits
from retcon.config.schema import Recipe, Stage
from retcon.core.concurrency import cancel_all, run_sync
from retcon.core.errors import EngineError, SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.models.devices import OnPlace
from retcon.models.locating import locate, name_of
from retcon.models.placing import place_training
from retcon.planning.needs import check_fits, needs_of, warn_of_rate
from retcon.rollout.context import count_ungraded
from retcon.runs.folder import RENDERED, RunFolder, lengthen, longer_than, note_curve, open_run
from retcon.runs.metrics import mechanisms_of
from retcon.serve.harness import harness_fingerprint
from retcon.store.fingerprint import fingerprint
from retcon.tasks.registry import TaskSet
from retcon.train.objective.branpo import find_contrasts
from retcon.train.objective.credit import count_shared_states
from retcon.train.objective.shaping import comparable, overlong_metrics
from retcon.train.objective.tree import compared_rewards, credit_groups, loss_share, tree_metrics
from retcon.train.prompts import (
    LearntSamples,
    StepGroups,
    dynamic_sampling,
    groups_to_train,
    selection_metrics,
    with_records,
    with_selections,
)
from retcon.train.rollouts import (
    NOT_EVALUATED,
    GroupStream,
    TrainingRollouts,
    open_rollouts,
    rollouts_for,
    run_in_thread,
    staleness,
)
from retcon.train.settling import ResolvedRun, resolve_stages
from retcon.train.stages import HARNESS, RunStages, harness_of, without_harnesses
from retcon.train.trainer import Metrics, OnStep, Trainer, Training, train
from retcon.train.update import count_changes, learning_rate_of, to_samples, update
from retcon.train.watch import RunHealth, branch_metrics, rollout_metrics

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LOG = logging.getLogger(__name__)
FEW = 4
"""Up to this many grading faults per step are tolerated."""
OnRollouts: TypeAlias = Callable[[int, int, int, int], None]
"""Gets a step, rollouts graded, of how many, and tokens sampled in it so far."""
Reference: TypeAlias = "PreTrainedModel | None"


@dataclass(frozen=True, slots=True)
class StageContext:
    """Context of a stage's steps."""

    run: RunFolder
    trainer: Trainer
    tokenizer: Path
    stages: RunStages
    stage: Stage
    reference: Reference
    on_rollouts: OnRollouts | None = None


def run_rl(
    recipe: Recipe,
    start: Path,
    out: Path,
    *,
    tasks: TaskSet | None = None,
    settled: ResolvedRun | None = None,
    on_step: OnStep | None = None,
    on_rollouts: OnRollouts | None = None,
    on_place: OnPlace | None = None,
) -> Path:
    """Train a model by a recipe's [rl]; return the folder of the final model.

    Everything random derives from (seed, step, …), so that the weights, the optimiser's state, the step and the number
    of drawn prompts are the whole state. start: folder of the model. An interrupted run goes on from its newest
    checkpoint in `out`; Ctrl-C makes one first, of the last whole step while a step waits for its rollouts, after that
    at the step's end; so do a lack of rollouts, and a server that does not take a step's weights. A finished run
    returns at once. tasks: your own task set, in place of the recipe's; run.json keeps its name, and a hash of the
    tasks. A larger rl.steps continues a finished run; its model so far is kept as `final-STEPS`. settled: the resolved
    recipe, if known. on_step gets each step's metrics, on_rollouts the progress of a step's rollouts, every second,
    on_place the placement, before computing.

    Raises CheckpointError (see `open_run`), RecipeError for an unavailable device or the like (see `place_training`),
    RecipeError or RecordError for unusable tasks or pass rates (see `RunStages`), MissingExtra, SandboxUnavailable if a
    step loses all of its rollouts, or most of its answers, to faults, TrainingDiverged.
    """
    recipe.engine.check_training(recipe)
    folder = locate(start)
    start_id = fingerprint(folder)
    before = longer_than(out, "rl", recipe)
    over = RunFolder(Path(out)).finished and not before
    settled = settled or resolve_stages(without_harnesses(recipe) if over else recipe, folder, tasks)
    written, recipe = _with_harnesses(settled.recipe, recipe), settled.recipe
    stages = RunStages(settled, folder, model=start_id)
    where = place_training(recipe, folder, reference=stages.needs_reference)
    for stage, _ in stages.after(0):
        needs = needs_of("rl", stage.recipe, folder, where, reference=stages.needs_reference, least=stages.longest)
        check_fits(needs, out, stage)
        warn_of_rate("rl", stage.recipe, needs.parameters)
    # A finished run makes no rollouts, so that its tools may have changed.
    inputs = {"start": start_id, **({} if over else {RENDERED: stages.rendered}), **stages.inputs}
    if before:
        begun = RunStages(settled.with_steps(before), folder, model=start_id)
        lengthen(out, written, before, old={**inputs, **begun.inputs}, new=inputs)
    harnesses = {one.rollout.harness for one in (recipe, *(stage.recipe for stage, _ in stages.after(0)))} - {""}
    code = {path: harness_fingerprint(path) for path in sorted(harnesses)}
    run = open_run(out, kind="rl", recipe=written, inputs=inputs, tasks=stages.tasks.name, start=name_of(folder))

    def steps(trainer: Trainer) -> None:
        run_sync(_train(run, trainer, folder, stages, on_rollouts))

    training = Training(run, recipe, where, start, recipe.rl)
    return train(training, steps, first=partial(run.note_harnesses, code), on_step=on_step, on_place=on_place)


def _with_harnesses(settled: Recipe, recipe: Recipe) -> Recipe:
    """Return a resolved recipe with the harnesses of `recipe`, for the run's manifest."""
    rollout = settled.rollout.model_copy(update={HARNESS: recipe.rollout.harness})
    stages = tuple(
        one.model_copy(update={"rollout": {**one.rollout, **harness_of(stage.rollout)}})
        for one, stage in zip(settled.stages, recipe.stages, strict=True)
    )
    return settled.model_copy(update={"rollout": rollout, "stages": stages})


async def _train(
    run: RunFolder, trainer: Trainer, tokenizer: Path, stages: RunStages, on_rollouts: OnRollouts | None
) -> None:
    reference = trainer.reference() if stages.needs_reference else None  # before the engine measures free memory
    course = RunHealth(stages.recipe.rl, trainer.history())
    weights = trainer.engine_weights()
    for stage, tasks in stages.after(trainer.step):
        if course.over:
            return
        prompts = stages.prompts(stage, trainer.drawn, run.checkpoint(trainer.step))
        trainer.begin(stage.recipe.rl, anew=stage.anew and trainer.step == stage.before)
        course.data_since(stages.data_since(stage))
        reserved, least = trainer.to_come(), stages.longest
        async with (
            open_rollouts(
                stage.recipe, weights, tokenizer, tasks, reserved=reserved, version=trainer.step, least=least
            ) as rollouts,
            GroupStream(rollouts, prompts, last=stage.last) as stream,
        ):
            while trainer.step < stage.last and not course.over:
                context = StageContext(run, trainer, tokenizer, stages, stage, reference, on_rollouts)
                course.add(await _step(context, stream, course))
        trainer.save()  # a stage's end is kept: the next one goes on from it


async def _step(context: StageContext, stream: GroupStream, course: RunHealth) -> Metrics:
    run, trainer, stage, rollouts = context.run, context.trainer, context.stage, stream.rollouts
    recipe, step = rollouts.recipe, trainer.step + 1
    learnt: LearntSamples = {}
    began, before = time.perf_counter(), copy.copy(rollouts.engine.stats)
    try:
        async with _watched(stream, step, context.on_rollouts):
            drawn = await draw_groups(stream, step=step)
    except BaseException:  # Ctrl-C, or a sandbox or server that is gone: the weights are those of the last whole step
        trainer.save()
        raise
    with trainer.interruptible():  # from here on the weights are those of no whole step, until it is done
        async with rollouts.paused():
            rollouts.rest()
            rolled_out = time.perf_counter()
            learn = partial(_learn, trainer, groups_to_train(recipe, drawn), stage, step, context.reference, learnt)
            losses = await run_in_thread(learn) if recipe.rl.max_staleness else learn()
            trained = time.perf_counter()
            unfollowed = await _synced(rollouts, step)
        made = rollout_metrics(
            drawn.made,
            lambda group: compared_rewards(
                comparable(group, recipe.rl), recipe.rl, recipe.credit, build_limits(recipe)
            ),
        )
        course.tell_idling(made)
        cost = trainer.cost  # one value decides here and at the end whether the run is over
        last = step == recipe.rl.steps or course.ends_with(made, cost.cpu_s)
        seconds_of = {t.id: rollouts.seconds.pop(t.id, None) for group in drawn.made for t in group}
        run.store_rollouts(
            step,
            lambda: with_records(with_selections(recipe, drawn), step, learnt, seconds_of),
            tokens=int(made["total_tokens"] or 0),
            keep_gb=recipe.run.keep_gb,
        )
        seconds, stats = time.perf_counter() - began, rollouts.engine.stats.since(before).metrics()
        held_out = {} if unfollowed else await _held_out(context, stream, step, last=last)
        line = trainer.done(  # checkpoint, where it is time, and log
            {
                **({"stage": stage.number} if stage.name else {}),
                **{name: 0 for _, *metrics in mechanisms_of(recipe).values() for name in metrics},
                **made,
                **(branch_metrics(drawn.made) if recipe.strategy.branching else {}),
                **(tree_metrics(drawn.made) if recipe.credit.kind != "root" or "rlm" in recipe.rollout.tools else {}),
                **selection_metrics(recipe, drawn),
                **course.drift_after(made),
                **(staleness(drawn.kept, step) if recipe.rl.max_staleness else {}),
                **losses,
                **stats,
                **held_out,
                "step_seconds": round(seconds, 4),
                "tokens_per_second": round((made["total_tokens"] or 0.0) / seconds, 1),
                "rollout_seconds": round(rolled_out - began, 4),
                "train_seconds": round(trained - rolled_out, 4),
                "sync_seconds": round(began + seconds - trained, 4),
            },
            drawn=len(drawn.made),
            stage=stage.number,
            cost=cost,
        )
    if unfollowed:
        trainer.save()
        raise unfollowed
    return line


@asynccontextmanager
async def _watched(stream: GroupStream, step: int, on_rollouts: OnRollouts | None) -> AsyncIterator[None]:
    """Report the progress of the step's rollouts to `on_rollouts` every second, for a block."""
    rollouts, recipe = stream.rollouts, stream.rollouts.recipe
    before, total = copy.copy(rollouts.engine.stats), recipe.rl.prompts * recipe.select.made(recipe.rl.group)

    async def watch(tell: OnRollouts) -> None:
        while True:
            await asyncio.sleep(1)
            tell(step, rollouts.graded[step], total, getattr(rollouts.engine.stats.since(before), "generated", 0))

    watching = [asyncio.create_task(watch(on_rollouts))] if on_rollouts is not None else []
    try:
        yield
    finally:
        await cancel_all(watching)


async def _synced(rollouts: TrainingRollouts, step: int) -> EngineError | None:
    """Give the engine this step's weights; return its error, which leaves the trainer's weights whole."""
    try:
        await rollouts.sync(step)
    except EngineError as error:
        return error
    return None


def _learn(
    trainer: Trainer,
    groups: list[list[Trajectory]],
    stage: Stage,
    step: int,
    reference: Reference,
    learnt: LearntSamples,
) -> dict[str, float | None]:
    """Compute rewards, advantages and samples, and update. learnt: gets the sample of each trajectory."""
    recipe = stage.recipe
    credited, shaped = credit_groups(groups, recipe.rl, recipe.credit, build_limits(recipe))
    samples, counts = [], Counter[str]()
    for one in credited:
        made = to_samples(one.nodes, one.advantages, recipe.rl, one.scales)
        counts.update(count_changes(made, one.advantages, recipe.rl))
        if recipe.rl.step_advantage == "rtmc":
            counts["shared_states"] += count_shared_states(one.nodes)
        if recipe.rl.step_advantage == "branpo":
            counts["contrasts"] += len(find_contrasts(one.nodes))
        learnt.update((t.id, (a, s)) for t, a, s in zip(one.nodes, one.advantages, made, strict=False))
        samples += made
    overlong = overlong_metrics(groups, shaped) if recipe.rl.overlong_buffer else {}
    children = {node.id for one in credited for node in one.nodes if node.parent is not None}
    trees = {
        "children_trained": len(children),
        "children_loss_share": loss_share(samples, children, recipe.rl.aggregate),
    }
    return {**counts, **overlong, **(trees if recipe.credit.kind != "root" else {})} | update(
        trainer.model,
        trainer.optimizer,
        samples,
        recipe.rl,
        seed=recipe.run.seed,
        step=step,
        computing=replace(trainer.computing, temperature=recipe.rollout.temperature),
        reference=reference if recipe.rl.kl else None,
        lr=learning_rate_of(recipe.rl, step, stage.falling),
    )


async def _held_out(context: StageContext, stream: GroupStream, step: int, *, last: bool) -> Metrics:
    """Evaluate the policy if the recipe has it after this step, or this is the last.

    All stages have the same problems, limits and tools. Training's draws do not depend on it, nor does the run's cost.
    Without a sandbox its rollouts count as lost to faults: the step is kept. The next step ends the run if it lacks a
    sandbox too."""
    trainer, stages = context.trainer, context.stages
    recipe = stages.recipe
    if not recipe.evaluate.every or (step % recipe.evaluate.every and not last):
        return {}
    note_curve(context.run.root, recipe)
    with trainer.off_the_clock():
        try:
            async with rollouts_for(recipe, stream.rollouts, context.tokenizer, stages.tasks) as rollouts:
                found = await rollouts.evaluated()
                async with rollouts.paused():
                    rollouts.rest()
        except SandboxUnavailable as error:
            LOG.warning("step %d: the evaluation failed, and its point of the curve is empty: %s", step, error)
            return dict(NOT_EVALUATED)
    return found


async def draw_groups(stream: GroupStream, *, step: int) -> StepGroups:
    """Take a step's groups, drop rollouts without comparison, and select.

    With dynamic sampling it repeats with more prompts, until enough groups are informative or a bound is met. Raises
    SandboxUnavailable if the first prompts lose all of their groups to faults, or most answers cannot be graded: the
    update would see only rollouts without an answer, which are wrong without a grader.
    """
    recipe = stream.rollouts.recipe
    dynamic = dynamic_sampling(recipe)
    drawn = StepGroups()
    missing = recipe.rl.prompts
    while True:
        for task, group in await stream.take(missing, step=step):
            left = comparable(group, recipe.rl)
            seed = derive("select", recipe.run.seed, step, task.id)
            drawn.add(group, recipe.select.select(left, recipe.rl.group, seed=seed) if left else [])
        if not any(sum(t.stop != "infrastructure" for t in group) > 1 for group in drawn.made):
            raise SandboxUnavailable(
                f"step {step}: infrastructure faults left fewer than two rollouts of every group"
                f"{stream.rollouts.context.faults.why}; see `retcon doctor`, then run the same command again to "
                "continue"
            )
        lost, answered = count_ungraded(t for group in drawn.made for t in group)
        if lost >= FEW and 2 * lost > answered:
            raise SandboxUnavailable(
                f"step {step}: {lost} of the {answered} rollouts that gave an answer could not be graded"
                f"{stream.rollouts.context.faults.why}: the rest would mislead the update; see `retcon doctor`, then "
                "run the same command again to continue"
            )
        missing = dynamic.to_draw(drawn.kept, rounds=drawn.rounds) if dynamic else 0
        if not missing:
            return drawn
        drawn.rounds += 1
