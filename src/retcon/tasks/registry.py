"""Task sets: what trains, what evaluates, and how a trajectory is graded. The families are in `tasks/kinds`."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from retcon.config.schema import TaskSection
from retcon.core.errors import InfrastructureFault, RecipeError, TaskWarning, reraise_as
from retcon.core.seeds import derive
from retcon.core.texts import counted
from retcon.core.types import EXPECTED_LENGTH, Segment, Trajectory, Turn
from retcon.tasks.types import Lesson, Task

if TYPE_CHECKING:
    from retcon.config.schema import Recipe

PARTS = ("name", "system", "train", "evaluation", "grade")
"""What a task set has (`retcon.tasks.registry.TaskSet`)."""
EVERY = 1_000_000
"""More problems than there are: as `evaluate.problems`, all of them."""
ENDLESS = 10_000
"""Problems that a task set has at least which is not evaluated on as a whole: it may have no end."""


def serves(tasks: object) -> bool:
    """Whether it has all that a task set has."""
    return all(hasattr(tasks, name) for name in PARTS)


def check_task_set(tasks: object, kind: str) -> None:
    """Raises RecipeError where what the class of `kind` has built is no task set."""
    lacking = [name for name in PARTS if not hasattr(tasks, name)]
    if lacking:
        raise RecipeError(
            f"task.kind = '{kind}': its build() returned {tasks!r:.80}, which is no task set: it lacks "
            f"{', '.join(lacking)} (retcon.tasks.registry.TaskSet)"
        )


def training_tasks(tasks: TaskSet, seed: int) -> Iterator[Task]:
    """`TaskSet.train`. Raises RecipeError where it gives anything else, or raises."""
    return _checked(lambda: tasks.train(seed), f"{named(tasks)}.train(seed)")


def evaluation_tasks(tasks: TaskSet, count: int, seed: int) -> list[Task]:
    """`TaskSet.evaluation`, likewise."""
    return list(_checked(lambda: tasks.evaluation(count, seed), f"{named(tasks)}.evaluation(count, seed)"))


def _checked(give: Callable[[], object], said_by: str) -> Iterator[Task]:
    """What it gives. said_by: names it. Raises RecipeError at one that is no task, or holds no text."""
    for task in _given(give, said_by):
        if not isinstance(task, Task):
            raise RecipeError(f"{said_by} gave {task!r:.80}, where a retcon.Task belongs")
        for name in ("id", "question", "answer"):
            if not isinstance(value := getattr(task, name), str):
                raise RecipeError(f"{said_by}: the {name} of task {task.id!r:.80} is {value!r:.80}, where text belongs")
        yield task


def _given(give: Callable[[], object], said_by: str) -> Iterator[object]:
    with reraise_as(RecipeError, said_by):
        given = give()
        try:
            stream = iter(given)  # type: ignore[call-overload]
        except TypeError:
            raise RecipeError(f"{said_by} returned {given!r:.80}, where tasks (retcon.Task) belong") from None
        yield from stream


def held_out(recipe: Recipe, tasks: TaskSet, count: int) -> list[Task]:
    """`count` problems of an evaluation, or as many as there are. Raises RecipeError where there is none, and where two
    have one id, by which rollouts are told apart."""
    if found := evaluation_tasks(tasks, count, recipe.evaluate.seed):
        _refuse_alike(found, tasks)
        return found
    said = (
        "task.evaluation_share, task.evaluation_path or task.evaluation_split says which to hold out"
        if "evaluation_share" in type(recipe.task).model_fields
        else f"{named(tasks)}.evaluation(count, seed) gives none"
    )
    raise RecipeError(f"there is no problem to evaluate on: {said}")


def _refuse_alike(found: Sequence[Task], tasks: TaskSet) -> None:
    ids = Counter(task.id for task in found)
    id, times = ids.most_common(1)[0]
    if times > 1:
        gave = f"{named(tasks)}.evaluation(count, seed)"
        if source_of := getattr(tasks, "source_of", None):  # of several, it is they who gave them
            gave = " and ".join(dict.fromkeys(source_of(task) for task in found if task.id == id))
        raise RecipeError(
            f"{gave} gave {counted(times, 'task')} with the id {id!r:.80}: an id names "
            "one problem; give each its own, and no more problems than there are"
        )


def problems_of(recipe: Recipe, tasks: TaskSet) -> list[Task]:
    """What a recipe's evaluations are on. Raises RecipeError where there is nothing, or all of what may have no end is
    asked for, and warns (TaskWarning) where `evaluate.problems` names more than there are."""
    section = recipe.evaluate
    if section.problems == EVERY:
        _refuse_endless(tasks, section.seed)
    found = held_out(recipe, tasks, section.problems)
    if len(found) < section.problems < EVERY and "problems" in section.model_fields_set:
        warnings.warn(
            f"evaluate.problems = {section.problems}: there {'is' if len(found) == 1 else 'are'} "
            f"{counted(len(found), 'problem')} to evaluate on, and all of them are",
            TaskWarning,
            stacklevel=2,
        )
    return found


def _refuse_endless(tasks: TaskSet, seed: int) -> None:
    """Raises RecipeError where a task set makes its problems, and so many that they may have no end."""
    if getattr(tasks, "ends", False):  # it was read
        return
    if len(evaluation_tasks(tasks, ENDLESS, seed)) >= ENDLESS:
        raise RecipeError(
            f"the task set {tasks.name} has {ENDLESS:,} problems or more, and may have no end: say how many of them to "
            "evaluate on, such as evaluate.problems=48"
        )


def named(tasks: object) -> str:
    """Whose code a task set is."""
    return f"{type(tasks).__module__}:{type(tasks).__qualname__}"


def is_own(tasks: object) -> bool:
    """Whether it is somebody's own class, and none of Retcon's."""
    return type(tasks).__module__.partition(".")[0] != "retcon"


@dataclass(frozen=True, slots=True)
class CheckedGrades:
    """A task set whose grades are looked at: what is no grade costs its rollout alone, as with graders. Implements
    `TaskSet`."""

    tasks: TaskSet

    @property
    def name(self) -> str:
        return self.tasks.name

    @property
    def system(self) -> str | None:
        return self.tasks.system

    def train(self, seed: int) -> Iterator[Task]:
        """Its own."""
        return self.tasks.train(seed)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """Its own."""
        return self.tasks.evaluation(count, seed)

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """As `TaskSet.grade`. Raises InfrastructureFault, which says why, where that raises, or gives no trajectory
        with a finite reward; other errors of Retcon's, such as of a grader that cannot be had, are not the
        rollout's."""
        set_of = getattr(self.tasks, "set_of", None)  # of several, and of files
        said_by = f"{named(set_of(task) if set_of else self.tasks)}.grade"
        with reraise_as(InfrastructureFault, said_by):  # it costs this rollout alone
            given = self.tasks.grade(task, trajectory)
            made = await given if isinstance(given, Awaitable) else given
        if not isinstance(made, Trajectory):
            raise InfrastructureFault(f"{said_by} returned {made!r:.80}, where the trajectory with its reward belongs")
        if made.stop == "infrastructure" and made.reward is None:
            return made
        return made if type(made.reward) is float and math.isfinite(made.reward) else _with_number(made, said_by)


def _with_number(made: Trajectory, said_by: str) -> Trajectory:
    """With a reward that is a float: numbers of NumPy and torch are none yet."""
    said: object = made.reward
    try:
        if said is None or isinstance(said, str | bytes | Mapping):
            raise TypeError
        reward = float(said)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise InfrastructureFault(f"{said_by} gave a reward of {said!r:.80}, where a number belongs") from None
    if not math.isfinite(reward):
        raise InfrastructureFault(f"{said_by} gave a reward of {reward}, where a finite number belongs")
    return replace(made, reward=reward)


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
        every further epoch of a run (see `retcon.tasks.types`)."""
        ...

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """`count` distinct tasks that no training stream can give."""
        ...

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory | Awaitable[Trajectory]:
        """The trajectory with its answer and reward, above 0 where it is right. No reward after an infrastructure
        fault. Awaited where the grader runs something. Raises InfrastructureFault, which says why, where nobody can
        tell; what is no grade, or raises anything else, is taken for that (`retcon.tasks.registry`)."""
        ...


Grade = Callable[[Task, Trajectory], Trajectory | Awaitable[Trajectory]]
"""As `TaskSet.grade`."""


async def graded(task: Task, trajectory: Trajectory, grade: Grade, lost: Callable[[str, str], None]) -> Trajectory:
    """What `grade` makes of it. A rollout that an infrastructure fault ended, before or in grading, has reward None.
    lost: told the id of one that could not be graded, and why. What the task expects stands in it afterwards."""
    trajectory = replace(trajectory, expected=task.answer[:EXPECTED_LENGTH])
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


@runtime_checkable
class AnswersSubcalls(Protocol):
    """A task set whose teacher also answers the calls of the model that its programs make (`rollout.tools = rlm`)."""

    def answer_subcall(self, prompt: str, rng: random.Random) -> str:
        """What the teacher answers. prompt: as the model sees it, template and all."""
        ...


def training_prompts(tasks: TaskSet, seed: int, epoch: int = 0) -> Iterator[Task]:
    """The stream that a run with this seed draws its prompts from; demonstrations use another one. Raises RecipeError
    where the task set gives anything else."""
    return training_tasks(tasks, derive("prompts", seed, epoch) if epoch else derive("prompts", seed))


def task_set(kind: str) -> TaskSet:
    """The task set of a family with its defaults, by name or import path. Raises RecipeError with the nearest name."""
    tasks: TaskSet = TaskSection.kinds.find(kind)().build()
    return tasks
