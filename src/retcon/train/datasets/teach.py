"""Demonstrations: a teacher's rollouts, written as trajectories for supervised training.

The teacher goes through the very loop that a model goes through, so its code really runs and its ids are what a model
will see. Nothing is filtered: failures, repairs and wrong answers stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from retcon.build import build_plain_sampling, build_tasks, open_context
from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.errors import RecipeError, SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.rollout.group import rollout_groups
from retcon.rollout.prompts import refuse_long
from retcon.rollout.teacher import Teacher
from retcon.store import jsonl
from retcon.tasks.registry import TaskSet, Taught

CHUNK = 64


async def demonstrations(
    recipe: Recipe, chat: Chat, *, tasks: TaskSet | None = None, on_progress: Callable[[int, int], None] | None = None
) -> list[Trajectory]:
    """`recipe.sft.demonstrations` graded teacher trajectories, on training problems alone, or as many as the task set
    has. tasks: whose teacher, None for the recipe's own.

    on_progress gets (done, total). Raises RecipeError for a task family without a teacher and for prompts that leave no
    room to answer, SandboxUnavailable where the sandbox lost more than one in twenty.
    """
    tasks = tasks or build_tasks(recipe)
    if not isinstance(tasks, Taught):
        raise RecipeError(
            f"task.kind = '{recipe.task.kind}': the task family '{tasks.name}' has no teacher to demonstrate it; give "
            "demonstrations of your own (`retcon sft --demonstrations FILE`), or a family that has `lessons`"
        )
    drawn = list(islice(tasks.lessons(recipe.run.seed), recipe.sft.demonstrations))
    total = len(drawn)
    refuse_long([task for task, _ in drawn], chat, recipe.rollout.max_tokens, "training problems")
    teacher = Teacher({f"{task.id}/0/0": lesson for task, lesson in drawn}, chat)
    made: list[Trajectory] = []
    async with open_context(recipe, teacher, chat) as opened:
        context = replace(
            opened,
            limits=replace(opened.limits, max_turns=recipe.sft.max_turns),
            sampling=build_plain_sampling(recipe),
            model="teacher",
        )
        for start in range(0, total, CHUNK):
            groups = await rollout_groups(
                [task for task, _ in drawn[start : start + CHUNK]],
                context,
                count=1,
                seed=recipe.run.seed,
                step=0,
                grade=tasks.grade,
            )
            made.extend(t for group in groups for t in group if t.stop != "infrastructure")
            if on_progress is not None:
                on_progress(min(start + CHUNK, total), total)
    if len(made) < 0.95 * total:
        raise SandboxUnavailable(f"the sandbox lost {total - len(made)} of {total} demonstrations; see `retcon doctor`")
    return made


def write_demonstrations(
    recipe: Recipe, chat: Chat, out: Path, *, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """The demonstrations of a recipe as JSONL in the file `out`, whole or not at all."""

    jsonl.write(out, asyncio.run(demonstrations(recipe, chat, on_progress=on_progress)))
    return out
