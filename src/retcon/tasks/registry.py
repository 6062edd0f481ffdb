"""Task sets by name: what trains, what evaluates, and how a trajectory is graded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

from retcon.core.errors import RecipeError, nearest
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.tasks.grade import boxed
from retcon.tasks.numbers import problems
from retcon.tasks.types import Task

RIGHT, WRONG = 1.0, -1.0


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

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its answer and reward (±1). No reward after an infrastructure fault."""
        ...


@dataclass(frozen=True, slots=True)
class NumberTasks:
    """The number problems of `retcon.tasks.numbers`; graded by exact match of the boxed integer."""

    name: str = "numbers"
    system: str | None = None

    def train(self, seed: int) -> Iterator[Task]:
        return (p.task() for p in problems(seed, "train"))

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return [p.task() for p in islice(problems(seed, "evaluation"), count)]

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        if trajectory.stop == "infrastructure":
            return trajectory
        answer = boxed(trajectory.turns[-1].text) if trajectory.turns and trajectory.stop == "answer" else None
        return replace(trajectory, answer=answer, reward=RIGHT if answer == task.answer else WRONG)


def training_prompts(tasks: TaskSet, seed: int, epoch: int = 0) -> Iterator[Task]:
    """The stream that a run with this seed draws its prompts from; demonstrations use another one."""
    return tasks.train(derive("prompts", seed, epoch) if epoch else derive("prompts", seed))


TASK_SETS: dict[str, TaskSet] = {"numbers": NumberTasks()}


def task_set(name: str) -> TaskSet:
    """The task set of that name; raises RecipeError with the nearest name."""
    if name not in TASK_SETS:
        raise RecipeError(f"no task set '{name}'{nearest(name, TASK_SETS)}; there are: {', '.join(TASK_SETS)}")
    return TASK_SETS[name]
