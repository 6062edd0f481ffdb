"""Task sets: what trains, what evaluates, and how a trajectory is graded. The families are in `tasks/kinds`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from retcon.config.schema import TaskSection
from retcon.core.errors import InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.types import Segment, Trajectory, Turn
from retcon.tasks.checked import training_tasks
from retcon.tasks.types import Lesson, Task

RIGHT, WRONG = 1.0, -1.0
Rewards = Literal["signed", "binary", "graded"]
"""What a verdict is worth: 1 or -1; 1 or 0; the grader's score, from 0 to 1."""
CountTokens = Callable[[Task], int]
"""Tokens of a task's prompt, as the model will be given it."""


class TaskSet(Protocol):
    """A family of problems with two splits that cannot overlap."""

    @property
    def name(self) -> str: ...

    @property
    def system(self) -> str | None:
        """The system prompt of every task, if any."""
        ...

    def train(self, seed: int) -> Iterator[Task]:
        """The training tasks; the same seed gives the same stream. One that ends is drawn anew, with another seed, for
        every further epoch of a run (see `retcon.tasks.epochs`)."""
        ...

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """`count` distinct tasks that no training stream can give."""
        ...

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory | Awaitable[Trajectory]:
        """The trajectory with its answer and reward, above 0 where it is right. No reward after an infrastructure
        fault. Awaited where the grader runs something. Raises InfrastructureFault, which says why, where nobody can
        tell; what is no grade, or raises anything else, is taken for that (`retcon.tasks.checked`)."""
        ...


Grade = Callable[[Task, Trajectory], Trajectory | Awaitable[Trajectory]]
"""As `TaskSet.grade`."""


async def graded(task: Task, trajectory: Trajectory, grade: Grade, lost: Callable[[str, str], None]) -> Trajectory:
    """What `grade` makes of it. A rollout that an infrastructure fault ended, before or in grading, has reward None.
    lost: told the id of one that could not be graded, and why."""
    if trajectory.stop == "infrastructure":
        return trajectory
    try:
        given = grade(task, trajectory)
        return await given if isinstance(given, Awaitable) else given
    except InfrastructureFault as fault:
        lost(trajectory.id, str(fault))
        return replace(trajectory, reward=None, stop="infrastructure")


def as_returned(trajectory: Trajectory) -> Trajectory:
    """What is graded of a rollout: of one whose harness returned text, a reply with this text alone."""
    if not isinstance(trajectory.returned, str):
        return trajectory
    return replace(trajectory, stop="answer", turns=(Turn((Segment("sampled", trajectory.returned),)),))


@runtime_checkable
class Ungraded(Protocol):
    """A task set whose tasks say how they are graded (`meta["grader"]`), which it leaves to whoever opens graders."""

    @property
    def rewards(self) -> Rewards: ...

    @property
    def graders(self) -> frozenset[str]:
        """The names of those that its tasks ask for."""
        ...

    def graded_by(self, grader: Grade) -> TaskSet:
        """The same tasks, whose rollouts `grader` grades."""
        ...


def grader_options(tasks: Ungraded) -> Mapping[str, Mapping[str, object]]:
    """Its `grader_options`, the settings of graders by name, which a task set may have besides; else none."""
    options: Mapping[str, Mapping[str, object]] = getattr(tasks, "grader_options", {})
    return options


@runtime_checkable
class Taught(Protocol):
    """A task set that has a teacher, whose demonstrations a cold start can be made of."""

    def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
        """Training tasks, each with the teacher's way through it; the same seed gives the same stream."""
        ...


def training_prompts(tasks: TaskSet, seed: int, epoch: int = 0) -> Iterator[Task]:
    """The stream that a run with this seed draws its prompts from; demonstrations use another one. Raises RecipeError
    where the task set gives anything else."""
    return training_tasks(tasks, derive("prompts", seed, epoch) if epoch else derive("prompts", seed))


def task_set(kind: str) -> TaskSet:
    """The task set of a family with its defaults, by name or import path. Raises RecipeError with the nearest name."""
    tasks: TaskSet = TaskSection.kinds.find(kind)().build()
    return tasks
