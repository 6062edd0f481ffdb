"""Measurement of training tasks' pass rates, in a file that grows meanwhile."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from retcon.build import build_engine_chat, build_policy, build_tasks, open_context, open_graders, resolve_lengths
from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.errors import RecordError, SandboxUnavailable
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.engine.types import Generator
from retcon.evaluate.runner import OnPlace
from retcon.planning.rollouts import check_rollouts_fit
from retcon.rollout.context import MAX_LOST_SHARE
from retcon.rollout.group import rollout_groups
from retcon.rollout.lengths import drop_long_prompts
from retcon.serve.harness import harness_fingerprint
from retcon.store.fingerprint import fingerprint
from retcon.store.pass_rates import PassRate, PassRateFile, read_pass_rates, select_model
from retcon.tasks.registry import TaskSet, training_prompts, try_grade
from retcon.tasks.types import Task, fingerprint_of

CHUNK = 64
"""Tasks that are rolled out at once."""


def run_difficulty(
    recipe: Recipe,
    checkpoint: Path,
    out: Path,
    *,
    tasks: int,
    rollouts: int,
    on_progress: Callable[[int, int], None] | None = None,
    on_place: OnPlace | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> list[PassRate]:
    """Measure pass rates of the first `tasks` that a run draws. Returns them in that order, without lost ones.

    Purification is off, the sampling that of the recipe's rollouts. Every task's line is added to `out` once its last
    rollout is graded; a task that has one of this model, of as many rollouts, is not measured again, unless other
    content has its id by now. One that lost rollouts to faults gets no line. on_progress gets (done, total) in tasks,
    on_place where the model computes.

    Tasks whose prompts leave no room to answer, which training leaves out too, are left out. Raises RecipeError where
    that is all of them, CheckpointError for a missing or broken checkpoint, RecordError for an `out` that is broken,
    cannot be written, or has rates of this model through another harness, SandboxUnavailable where more than one
    rollout in twenty was lost; what was measured is kept. MissingExtra without torch.
    """
    family = build_tasks(recipe, checkpoint)
    recipe, _ = resolve_lengths(recipe, checkpoint, family)
    chat = build_engine_chat(recipe, checkpoint, family)
    stream = drop_long_prompts(training_prompts(family, recipe.run.seed), chat, recipe.rollout.max_tokens)
    wanted = {t.id: t for t in islice(stream, tasks)}
    model = fingerprint(checkpoint) if recipe.engine.in_process else recipe.engine.subject(checkpoint)
    path = recipe.rollout.harness
    harness = f"{path} {harness_fingerprint(path)}" if path else ""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{out} cannot be written: {error}") from error
    with PassRateFile(out) as file:
        contents = {id: fingerprint_of([task]) for id, task in wanted.items()}
        there = list(read_pass_rates(out))
        for one in there:
            if one.model == model and one.harness not in (None, harness):
                by, now = (f"rollout.harness = {name}" if name else "no harness" for name in (one.harness, harness))
                raise RecordError(
                    f"{out} has rates of this model that were measured with {by}, now {now}: choose another --out"
                )
        known = select_model((one for one in there if one.content in (None, contents.get(one.task))), model)
        todo = [task for id, task in wanted.items() if id not in known or known[id].rollouts < rollouts]
        done = len(wanted) - len(todo)

        def add(task: str, passed: int) -> None:
            nonlocal done
            known[task] = PassRate(task, model, passed, rollouts, contents[task], harness)
            file.add(known[task])
            done += 1
            if on_progress is not None:
                on_progress(done, len(wanted))

        if todo:
            on_ready()
            check_rollouts_fit(recipe, checkpoint)
            engine = build_policy(recipe, checkpoint, chat, on_place)
            asyncio.run(measure(recipe, todo, rollouts=rollouts, engine=engine, chat=chat, on_task=add, family=family))
    return [known[id] for id in wanted if id in known]


async def measure(
    recipe: Recipe,
    tasks: Sequence[Task],
    *,
    rollouts: int,
    engine: Generator,
    chat: Chat,
    on_task: Callable[[str, int], None],
    family: TaskSet | None = None,
) -> None:
    """Roll out each task `rollouts` times; on_task gets its id and how many passed, once the last is graded.

    on_task is not called for a task that lost rollouts. The rollouts' seeds depend on the recipe's and the task
    alone. Raises SandboxUnavailable where more than one rollout in twenty was lost.
    """
    passed: dict[str, list[bool]] = defaultdict(list)
    lost = 0
    async with open_context(recipe, engine, chat) as context, open_graders(family or build_tasks(recipe)) as graders:

        async def counted(task: Task, trajectory: Trajectory) -> Trajectory:
            done = await try_grade(task, trajectory, graders.judged.grade, context.faults.add)
            if done.reward is not None:
                passed[task.id].append(done.reward > 0)
                if len(passed[task.id]) == rollouts:
                    on_task(task.id, sum(passed[task.id]))
            return done

        for start in range(0, len(tasks), CHUNK):
            groups = await rollout_groups(
                tasks[start : start + CHUNK],
                context,
                count=rollouts,
                seed=derive("difficulty", recipe.run.seed),
                step=0,
                grade=counted,
            )
            lost += sum(t.reward is None for group in groups for t in group)
            if lost > MAX_LOST_SHARE * len(tasks) * rollouts:
                raise SandboxUnavailable(
                    f"{lost} of {len(tasks) * rollouts} rollouts were lost to faults of the sandbox, the engine "
                    f"or a grader{context.faults.why}; what was measured is kept. See `retcon doctor`, then run the "
                    "same command again"
                )
