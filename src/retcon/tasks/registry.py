"""Protocol of task sets: training, evaluation, grading. Families are in `tasks/kinds`."""

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
"""Attributes of a task set (`retcon.tasks.registry.TaskSet`)."""
EVERY = 1_000_000
"""As `evaluate.problems`: all problems."""
ENDLESS = 10_000
"""Problems from which a task set may be endless, and is not evaluated as a whole."""


def is_task_set(tasks: object) -> bool:
    """Return whether an object has all attributes of a task set."""
    return all(hasattr(tasks, name) for name in PARTS)


def check_task_set(tasks: object, kind: str) -> None:
    """Raise RecipeError where a kind's class did not build a task set."""
    lacking = [name for name in PARTS if not hasattr(tasks, name)]
    if lacking:
        raise RecipeError(
            f"task.kind = '{kind}': its build() returned {tasks!r:.80}, which is no task set: it lacks "
            f"{', '.join(lacking)} (retcon.tasks.registry.TaskSet)"
        )


def training_tasks(tasks: TaskSet, seed: int) -> Iterator[Task]:
    """Draw training tasks. Raises RecipeError where the task set raises, or gives anything else."""
    return _checked(lambda: tasks.train(seed), f"{class_path(tasks)}.train(seed)")


def evaluation_tasks(tasks: TaskSet, count: int, seed: int) -> list[Task]:
    """Draw evaluation tasks. Raises RecipeError where the task set raises, or gives anything else."""
    return list(_checked(lambda: tasks.evaluation(count, seed), f"{class_path(tasks)}.evaluation(count, seed)"))


def _checked(give: Callable[[], object], source: str) -> Iterator[Task]:
    """Yield the given tasks. source: names their origin. Raises RecipeError for anything else than tasks of text."""
    for task in _given(give, source):
        if not isinstance(task, Task):
            raise RecipeError(f"{source} gave {task!r:.80}, where a retcon.Task belongs")
        for name in ("id", "question", "answer"):
            if not isinstance(value := getattr(task, name), str):
                raise RecipeError(f"{source}: the {name} of task {task.id!r:.80} is {value!r:.80}, where text belongs")
        yield task


def _given(give: Callable[[], object], source: str) -> Iterator[object]:
    with reraise_as(RecipeError, source):
        given = give()
        try:
            stream = iter(given)  # type: ignore[call-overload]
        except TypeError:
            raise RecipeError(f"{source} returned {given!r:.80}, where tasks (retcon.Task) belong") from None
        yield from stream


def draw_problems(recipe: Recipe, tasks: TaskSet, count: int) -> list[Task]:
    """Draw at most `count` problems of an evaluation. Raises RecipeError without any, and where two have the same id,
    which names rollouts."""
    if found := evaluation_tasks(tasks, count, recipe.evaluate.seed):
        _check_ids(found, tasks)
        return found
    reason = (
        "task.evaluation_share, task.evaluation_path or task.evaluation_split says which to hold out"
        if "evaluation_share" in type(recipe.task).model_fields
        else f"{class_path(tasks)}.evaluation(count, seed) gives none"
    )
    raise RecipeError(f"there is no problem to evaluate on: {reason}")


def _check_ids(found: Sequence[Task], tasks: TaskSet) -> None:
    ids = Counter(task.id for task in found)
    id, times = ids.most_common(1)[0]
    if times > 1:
        gave = f"{class_path(tasks)}.evaluation(count, seed)"
        if source_of := getattr(tasks, "source_of", None):  # with several sources, name those of the tasks
            gave = " and ".join(dict.fromkeys(source_of(task) for task in found if task.id == id))
        raise RecipeError(
            f"{gave} gave {counted(times, 'task')} with the id {id!r:.80}: an id names "
            "one problem; give each its own, and no more problems than there are"
        )


def problems_of(recipe: Recipe, tasks: TaskSet) -> list[Task]:
    """Return the problems of a recipe's evaluations. Raises RecipeError without any, and for all of a possibly endless
    set; warns (TaskWarning) where `evaluate.problems` exceeds their number."""
    section = recipe.evaluate
    if section.problems == EVERY:
        _check_finite(tasks, section.seed)
    found = draw_problems(recipe, tasks, section.problems)
    if len(found) < section.problems < EVERY and "problems" in section.model_fields_set:
        warnings.warn(
            f"evaluate.problems = {section.problems}: there {'is' if len(found) == 1 else 'are'} "
            f"{counted(len(found), 'problem')} to evaluate on, and all of them are",
            TaskWarning,
            stacklevel=2,
        )
    return found


def _check_finite(tasks: TaskSet, seed: int) -> None:
    """Raise RecipeError where a task set makes so many problems that it may be endless."""
    if getattr(tasks, "ends", False):  # it was read
        return
    if len(evaluation_tasks(tasks, ENDLESS, seed)) >= ENDLESS:
        raise RecipeError(
            f"the task set {tasks.name} has {ENDLESS:,} problems or more, and may have no end: say how many of them to "
            "evaluate on, such as evaluate.problems=48"
        )


def class_path(tasks: object) -> str:
    """Return the import path of a task set's class."""
    return f"{type(tasks).__module__}:{type(tasks).__qualname__}"


def is_user_class(tasks: object) -> bool:
    """Return whether a task set's class is outside Retcon."""
    return type(tasks).__module__.partition(".")[0] != "retcon"


@dataclass(frozen=True, slots=True)
class CheckedGrades:
    """Task set whose grades are checked; an invalid one costs only its rollout. Implements `TaskSet`."""

    tasks: TaskSet

    @property
    def name(self) -> str:
        return self.tasks.name

    @property
    def system(self) -> str | None:
        return self.tasks.system

    def train(self, seed: int) -> Iterator[Task]:
        return self.tasks.train(seed)

    def evaluation(self, count: int, seed: int) -> list[Task]:
        return self.tasks.evaluation(count, seed)

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """Grade a trajectory and check its reward. Raises InfrastructureFault with the reason for an exception, and for
        anything but a trajectory with a finite reward; other errors of Retcon, such as of an unavailable grader, pass
        through."""
        set_of = getattr(self.tasks, "set_of", None)  # of several, and of files
        source = f"{class_path(set_of(task) if set_of else self.tasks)}.grade"
        with reraise_as(InfrastructureFault, source):  # costs this rollout alone
            given = self.tasks.grade(task, trajectory)
            made = await given if isinstance(given, Awaitable) else given
        if not isinstance(made, Trajectory):
            raise InfrastructureFault(f"{source} returned {made!r:.80}, where the trajectory with its reward belongs")
        if made.stop == "infrastructure" and made.reward is None:
            return made
        return made if type(made.reward) is float and math.isfinite(made.reward) else _with_float(made, source)


def _with_float(made: Trajectory, source: str) -> Trajectory:
    """Convert the reward, such as a number of NumPy or torch, to a float."""
    value: object = made.reward
    try:
        if value is None or isinstance(value, str | bytes | Mapping):
            raise TypeError
        reward = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise InfrastructureFault(f"{source} gave a reward of {value!r:.80}, where a number belongs") from None
    if not math.isfinite(reward):
        raise InfrastructureFault(f"{source} gave a reward of {reward}, where a finite number belongs")
    return replace(made, reward=reward)


RIGHT, WRONG = 1.0, -1.0
Rewards = Literal["signed", "binary", "graded"]
"""Rewards of verdicts: 1 or -1; 1 or 0; the grader's score, from 0 to 1."""
CountTokens = Callable[[Task], int]
"""Counts the tokens of a task's rendered prompt."""


class TaskSet(Protocol):
    """A family of problems with two splits that cannot overlap."""

    @property
    def name(self) -> str: ...

    @property
    def system(self) -> str | None:
        """Return the system prompt of every task, if any."""
        ...

    def train(self, seed: int) -> Iterator[Task]:
        """Draw the training tasks; equal seeds give equal streams. One that ends is drawn anew, with another seed, for
        every further epoch of a run (`retcon.tasks.types`)."""
        ...

    def evaluation(self, count: int, seed: int) -> list[Task]:
        """Draw `count` distinct tasks that no training stream can give."""
        ...

    def grade(self, task: Task, trajectory: Trajectory) -> Trajectory | Awaitable[Trajectory]:
        """Return the trajectory with its answer and reward, above 0 if right. No reward after an infrastructure fault.
        Awaited where the grader runs something. Raises InfrastructureFault with the reason where grading fails; an
        invalid grade or another exception counts as one (`CheckedGrades`)."""
        ...


Grade = Callable[[Task, Trajectory], Trajectory | Awaitable[Trajectory]]
"""The type of `TaskSet.grade`."""


async def try_grade(task: Task, trajectory: Trajectory, grade: Grade, lost: Callable[[str, str], None]) -> Trajectory:
    """Grade a trajectory; an infrastructure fault leaves it without a reward. lost: called with the id of one that
    could not be graded, and the reason. The result holds the task's expected answer."""
    trajectory = replace(trajectory, expected=task.answer[:EXPECTED_LENGTH])
    if trajectory.stop == "infrastructure":
        return trajectory
    try:
        given = grade(task, trajectory)
        return await given if isinstance(given, Awaitable) else given
    except InfrastructureFault as fault:
        lost(trajectory.id, str(fault))
        return replace(trajectory, reward=None, stop="infrastructure")


def with_returned_reply(trajectory: Trajectory) -> Trajectory:
    """Return the rollout to grade: a text returned by its harness replaces the turns."""
    if not isinstance(trajectory.returned, str):
        return trajectory
    return replace(trajectory, stop="answer", turns=(Turn((Segment("sampled", trajectory.returned),)),))


@runtime_checkable
class Ungraded(Protocol):
    """Task set whose tasks name graders (`meta["grader"]`) that have to be opened."""

    @property
    def rewards(self) -> Rewards: ...

    @property
    def graders(self) -> frozenset[str]:
        """Return the names of the graders that its tasks name."""
        ...

    def graded_by(self, grader: Grade) -> TaskSet:
        """Return the task set with `grader` for its rollouts."""
        ...


def grader_options(tasks: Ungraded) -> Mapping[str, Mapping[str, object]]:
    """Return a task set's `grader_options`, settings of graders by name, or {}."""
    options: Mapping[str, Mapping[str, object]] = getattr(tasks, "grader_options", {})
    return options


@runtime_checkable
class Taught(Protocol):
    """Task set with a teacher, who writes demonstrations for a cold start."""

    def lessons(self, seed: int) -> Iterator[tuple[Task, Lesson]]:
        """Draw training tasks with the teacher's solutions; equal seeds give equal streams."""
        ...


@runtime_checkable
class AnswersSubcalls(Protocol):
    """Task set whose teacher also answers programs' model calls (`rollout.tools = rlm`)."""

    def answer_subcall(self, prompt: str, rng: random.Random) -> str:
        """Return the teacher's answer. prompt: rendered, with its template."""
        ...


def training_prompts(tasks: TaskSet, seed: int, epoch: int = 0) -> Iterator[Task]:
    """Draw a run's stream of training prompts; demonstrations use another one. Raises RecipeError where the task set
    gives anything else."""
    return training_tasks(tasks, derive("prompts", seed, epoch) if epoch else derive("prompts", seed))


def task_set(kind: str) -> TaskSet:
    """Build a family's task set with its defaults. kind: a name or import path; RecipeError names the nearest one."""
    tasks: TaskSet = TaskSection.kinds.find(kind)().build()
    return tasks
