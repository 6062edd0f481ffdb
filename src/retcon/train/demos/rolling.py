"""Demonstrations by rollouts: a teacher's turns in the usual rollout loop."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from retcon.build import build_plain_sampling, open_context, open_graders
from retcon.chat.chat import Chat
from retcon.core.errors import EngineError, RecipeError
from retcon.core.seeds import derive
from retcon.core.types import Trajectory
from retcon.engine.types import Generation, Generator, SamplingParams
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_groups
from retcon.rollout.lengths import PATIENCE, check_lengths, count_prompt_ids
from retcon.tasks.registry import AnswersSubcalls, TaskSet, Taught
from retcon.tasks.types import Lesson, Task
from retcon.train.demos.types import LOST, DemoBatch, DemoSetup

if TYPE_CHECKING:
    from retcon.train.demos.kinds.teacher import FamilyTeacher

WRONG = "wrong to the grader"
TOO_LONG = "no room in rollout.max_tokens"
UNANSWERED = "no answer within sft.max_turns"


@dataclass(frozen=True, slots=True)
class Roller:
    """Runner of one graded rollout per task, with any engine."""

    context: RolloutContext
    graders: TaskSet
    seed: int

    async def roll(self, tasks: Sequence[Task], engine: Generator, *, attempt: int = 0) -> list[Trajectory]:
        """Return a graded rollout of each task, with id `{task.id}/{attempt}/0`."""
        context = replace(self.context, engine=engine)
        groups = await rollout_groups(tasks, context, count=1, seed=self.seed, step=attempt, grade=self.graders.grade)
        return [trajectory for (trajectory,) in groups]

    def fits(self, task: Task) -> bool:
        """Return whether a task's prompt leaves room to answer."""
        return count_prompt_ids(self.context.chat, task) < self.context.limits.max_tokens


@asynccontextmanager
async def open_roller(
    setup: DemoSetup,
    tasks: TaskSet,
    engine: Generator,
    *,
    model: str,
    chat: Chat | None = None,
    sampling: SamplingParams | None = None,
    harnessed: bool = False,
) -> AsyncIterator[Roller]:
    """Open a roller with the recipe's sandbox, tools and graders, and sft.max_turns. model: the writer, for the record.
    chat: the engine's, None for the learner's. sampling: None for T = 1 without truncation. harnessed: whether the
    recipe's harness makes the rollouts, which needs a model that answers any prompt. Raises SandboxUnavailable,
    RecipeError."""
    recipe = setup.recipe
    async with open_context(recipe, engine, chat or setup.chat) as opened, open_graders(tasks) as graders:
        context = replace(
            opened,
            limits=replace(opened.limits, max_turns=recipe.sft.max_turns),
            sampling=sampling or build_plain_sampling(recipe),
            model=model,
            harness=opened.harness if harnessed else None,
        )
        yield Roller(context, graders.judged, recipe.run.seed)


def check_python(roller: Roller, kind: str) -> None:
    """Check that the recipe has the tool python, which this kind calls. Raises RecipeError."""
    if "python" not in roller.context.tools:
        raise RecipeError(f"rollout.tools: demos.kind = '{kind}' calls the tool python, which is missing: add it")


def why_rejected(trajectory: Trajectory) -> str | None:
    """Return why a demonstration is not right, None if it is."""
    if trajectory.stop == "infrastructure":
        return LOST
    if trajectory.stop == "length":
        return TOO_LONG
    if trajectory.stop == "turns":
        return UNANSWERED
    return None if (trajectory.reward or 0) > 0 else WRONG


Attempt = Callable[[list[Task], int], Awaitable[list[Trajectory]]]
"""A rollout of each of these tasks, in order; the number of the attempt, 0-based."""


async def try_tasks(
    tasks: Sequence[Task], attempt: Attempt, *, keep: str, tries: int
) -> list[tuple[Trajectory, str | None]]:
    """Return each task's rollout, and why it is rejected or None: the first right one of `tries`, else the last; with
    `keep` = all the first one, rejected only if it was lost."""
    found: dict[int, tuple[Trajectory, str | None]] = {}
    for number in range(tries if keep == "right" else 1):
        left = [n for n in range(len(tasks)) if n not in found or found[n][1] is not None]
        if not left:
            break
        for n, made in zip(left, await attempt([tasks[n] for n in left], number), strict=True):
            why = why_rejected(made)
            found[n] = made, why if keep == "right" or why == LOST else None
    return [found[n] for n in range(len(tasks))]


def split_rejected(made: Sequence[tuple[Trajectory, str | None]]) -> tuple[tuple[Trajectory, ...], Counter[str]]:
    """Split rollouts into kept ones and counts of rejections by reason."""
    kept = tuple(trajectory for trajectory, why in made if why is None)
    return kept, Counter(why for _, why in made if why is not None)


T = TypeVar("T")


class LazyList(Generic[T]):
    """A list that grows from a stream, which may be endless."""

    def __init__(self, stream: Iterator[T]) -> None:
        self._stream = stream
        self._drawn: list[T] = []

    def part(self, start: int, stop: int) -> list[T]:
        """Return the items from start to stop; fewer at the stream's end."""
        self._drawn += islice(self._stream, max(0, stop - len(self._drawn)))
        return self._drawn[start:stop]


def drawn_tasks(tasks: TaskSet, seed: int) -> Iterator[Task]:
    """Yield each training task once, in another order than a run's prompts. Repeated ones, as in a mix of sources with
    weights, are left out: rollouts are named, and drawn, by their task. Ends after PATIENCE repeated ones in a row, as
    some task sets repeat without end."""
    had: set[str] = set()
    again = 0
    for task in tasks.train(derive("demonstrations", seed)):
        if task.id not in had:
            had.add(task.id)
            again = 0
            yield task
        elif (again := again + 1) == PATIENCE:
            return


class Teacher:
    """An engine that plays a teacher by lessons of request ids.

    It reads the output of tools from the ids, as a model would. It has no log-probs: `score` raises EngineError.

    Args:
        below: answers prompts of calls of the model by the teacher's programs (`AnswersSubcalls`).
    """

    def __init__(self, lessons: Mapping[str, Lesson], chat: Chat, below: AnswersSubcalls | None = None) -> None:
        self._lessons = lessons
        self._chat = chat
        self._below = below

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        rng = random.Random(derive(params.seed, "teacher"))
        if request_id not in self._lessons and self._below is not None:
            words, code = self._below.answer_subcall(self._chat.tokenizer.decode(tuple(ids)), rng), None
        else:
            words, code = self._lessons[request_id](self._chat.observations_in(ids), rng)
        return as_generation(self._chat, words, code, params.max_tokens)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float]:
        raise EngineError("the teacher has no probabilities: its texts cannot be scored")

    async def release(self, request_id: str) -> None:
        """Do nothing: no state is kept."""


def as_generation(chat: Chat, words: str, code: str | None, max_tokens: int) -> Generation:
    """Return a text as a generation of the chat's model: words, then a call of `python` for any code; cut off at
    `max_tokens`, without log-probs."""
    written = chat.render_turn(words, [] if code is None else [("python", {"code": code})]).ids or ()
    if len(written) > max_tokens:
        return Generation(written[:max_tokens], None, "length")
    return Generation(written, None, "stop")


@dataclass
class TeacherSource:
    """A `Source` of a teacher's rollouts. A problem has up to `tries` rollouts, until one is right; only one if wrong
    ones are kept too."""

    lessons: LazyList[tuple[Task, Lesson]]
    roller: Roller
    keep: str
    tries: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    below: AnswersSubcalls | None = None
    chunk: int = 64
    ends: bool = False

    async def make(self, start: int, stop: int, kept: int) -> DemoBatch:
        """Roll the teacher's lessons out."""
        drawn = self.lessons.part(start, stop)
        tasks = [task for task, _ in drawn]

        async def attempt(tasks: list[Task], number: int) -> list[Trajectory]:
            lessons = {f"{task.id}/{number}/0": lesson for task, lesson in drawn}
            return await self.roller.roll(tasks, Teacher(lessons, self.roller.context.chat, self.below), attempt=number)

        made = await try_tasks(tasks, attempt, keep=self.keep, tries=self.tries)
        return DemoBatch(len(tasks), *split_rejected(made))


@asynccontextmanager
async def open_teacher(section: FamilyTeacher, setup: DemoSetup) -> AsyncIterator[TeacherSource]:
    """Open a family's teacher. Raises RecipeError if it has none, or prompts leave no room to answer."""
    recipe, tasks = setup.recipe, setup.tasks()
    if not isinstance(tasks, Taught):
        raise RecipeError(
            f"task.kind = '{recipe.task.kind}': the task family '{tasks.name}' has no teacher to demonstrate it; give "
            "your own demonstrations (`retcon sft --demonstrations FILE`), another demos.kind "
            "(docs/data/demonstrations.md), or a family that has `lessons`"
        )
    lessons = LazyList(tasks.lessons(recipe.run.seed))
    first = [task for task, _ in lessons.part(0, recipe.sft.demonstrations)]
    check_lengths(first, setup.chat, recipe.rollout.max_tokens, "training problems")
    async with open_roller(setup, tasks, Teacher({}, setup.chat), model="teacher") as roller:
        below = tasks if isinstance(tasks, AnswersSubcalls) else None
        yield TeacherSource(lessons, roller, section.keep, section.tries, below=below)
