"""Demonstrations: a teacher's rollouts, written as trajectories for supervised training.

The teacher goes through the very loop that a model goes through, so its code really runs and its ids are what a model
will see. Nothing is filtered: failures, repairs and wrong answers stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from retcon.chat.chat import Chat
from retcon.config.schema import Recipe
from retcon.core.errors import SandboxUnavailable
from retcon.core.types import Trajectory
from retcon.engine.types import SamplingParams
from retcon.rollout.prompts import refuse_long
from retcon.rollout.teacher import Teacher
from retcon.rollout.world import open_world
from retcon.store import jsonl
from retcon.tasks.numbers import problems
from retcon.tasks.registry import task_set
from retcon.tasks.teacher import WEAK, Rates

CHUNK = 64


async def demonstrations(
    recipe: Recipe, chat: Chat, *, rates: Rates = WEAK, on_progress: Callable[[int, int], None] | None = None
) -> list[Trajectory]:
    """`recipe.sft.demonstrations` graded teacher trajectories, on training problems alone.

    on_progress gets (done, total). Raises RecipeError for prompts that leave no room to answer, SandboxUnavailable
    where the sandbox lost more than one in twenty.
    """
    total = recipe.sft.demonstrations
    drawn = list(islice(problems(recipe.run.seed, "train"), total))
    tasks = task_set(recipe.task.name)
    rollout = recipe.rollout.model_copy(update={"max_turns": recipe.sft.max_turns})
    recipe = recipe.model_copy(update={"rollout": rollout})
    teacher = Teacher({f"{p.task().id}/0/0": p for p in drawn}, chat, rates)
    refuse_long([p.task() for p in drawn], chat, recipe.rollout.max_tokens, "training problems")
    made: list[Trajectory] = []
    async with open_world(recipe, teacher, chat) as world:
        for start in range(0, total, CHUNK):
            groups = await world.roll_out(
                [p.task() for p in drawn[start : start + CHUNK]],
                count=1,
                sampling=SamplingParams(max_tokens=recipe.rollout.max_tokens),
                seed=recipe.run.seed,
                step=0,
                grade=tasks.grade,
                model="teacher",
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
