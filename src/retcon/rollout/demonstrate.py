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
from retcon.rollout.group import rollout_groups
from retcon.rollout.limits import Limits
from retcon.rollout.teacher import Teacher
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Limits as SandboxLimits
from retcon.store import jsonl
from retcon.tasks.numbers import problems
from retcon.tasks.registry import task_set
from retcon.tools.python import PythonTool
from retcon.tools.types import Tool

CHUNK = 64


async def demonstrations(
    recipe: Recipe, chat: Chat, tool: Tool, *, on_progress: Callable[[int, int], None] | None = None
) -> list[Trajectory]:
    """`recipe.sft.demonstrations` graded teacher trajectories, on training problems alone.

    on_progress gets (done, total). Raises SandboxUnavailable where the sandbox lost more than one in twenty.
    """
    total = recipe.sft.demonstrations
    drawn = list(islice(problems(recipe.run.seed, "train"), total))
    tasks = task_set(recipe.task.name)
    teacher = Teacher({f"{p.task().id}/0/0": p for p in drawn}, chat)
    made: list[Trajectory] = []
    for start in range(0, total, CHUNK):
        groups = await rollout_groups(
            [p.task() for p in drawn[start : start + CHUNK]],
            count=1,
            engine=teacher,
            tools={tool.name: tool},
            chat=chat,
            limits=Limits(recipe.rollout.max_ids, recipe.rollout.max_turns, recipe.rollout.lookahead_ids),
            sampling=SamplingParams(),
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

    async def make() -> list[Trajectory]:
        section = recipe.sandbox
        limits = SandboxLimits(
            cpu_seconds=section.cpu_seconds, wall_seconds=section.wall_seconds, memory_mb=section.memory_mb
        )
        async with SandboxPool(workers=section.workers, limits=limits) as sandbox:
            tool = PythonTool(sandbox, output_chars=section.output_chars)
            return await demonstrations(recipe, chat, tool, on_progress=on_progress)

    jsonl.write(out, asyncio.run(make()))
    return out
