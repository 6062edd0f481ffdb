"""Demonstrations of a task family's own weak teacher."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from retcon.core.errors import RecipeError
from retcon.core.types import Trajectory
from retcon.rollout.prompts import refuse_long
from retcon.rollout.teacher import Teacher
from retcon.tasks.registry import Taught
from retcon.tasks.types import Lesson, Task
from retcon.train.demos.drawing import Drawn
from retcon.train.demos.rolling import Roller, open_roller, rejections, tried
from retcon.train.demos.types import DemoSetup, Made

if TYPE_CHECKING:
    from retcon.train.demos.kinds.teacher import FamilyTeacher


@dataclass
class TeacherSource:
    """Implements `Source`. At a problem there are `tries` rollouts at most, until one is right; where wrong ones are
    kept too, there is one."""

    lessons: Drawn[tuple[Task, Lesson]]
    roller: Roller
    keep: str
    tries: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    chunk: int = 64
    ends: bool = False

    async def make(self, start: int, stop: int, kept: int) -> Made:
        """See `Source.make`."""
        drawn = self.lessons.part(start, stop)
        tasks = [task for task, _ in drawn]

        async def attempt(tasks: list[Task], number: int) -> list[Trajectory]:
            lessons = {f"{task.id}/{number}/0": lesson for task, lesson in drawn}
            return await self.roller.roll(tasks, Teacher(lessons, self.roller.context.chat), attempt=number)

        made = await tried(tasks, attempt, keep=self.keep, tries=self.tries)
        return Made(len(tasks), *rejections(made))


@asynccontextmanager
async def open_teacher(section: FamilyTeacher, setup: DemoSetup) -> AsyncIterator[TeacherSource]:
    """Raises RecipeError for a family without a teacher, and for prompts that leave no room to answer."""
    recipe, tasks = setup.recipe, setup.tasks()
    if not isinstance(tasks, Taught):
        raise RecipeError(
            f"task.kind = '{recipe.task.kind}': the task family '{tasks.name}' has no teacher to demonstrate it; give "
            "demonstrations of your own (`retcon sft --demonstrations FILE`), another demos.kind "
            "(docs/data/demonstrations.md), or a family that has `lessons`"
        )
    lessons = Drawn(tasks.lessons(recipe.run.seed))
    first = [task for task, _ in lessons.part(0, recipe.sft.demonstrations)]
    refuse_long(first, setup.chat, recipe.rollout.max_tokens, "training problems")
    nobody = Teacher({}, setup.chat)
    async with open_roller(setup, tasks, nobody, model="teacher") as roller:
        yield TeacherSource(lessons, roller, section.keep, section.tries)
