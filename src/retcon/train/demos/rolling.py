"""Demonstrations by rollouts: somebody else's turns through the very loop that a model goes through."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from retcon.build import build_plain_sampling, open_context, open_graders
from retcon.chat.chat import Chat
from retcon.core.errors import RecipeError
from retcon.core.types import Trajectory
from retcon.engine.types import Generator, SamplingParams
from retcon.rollout.context import RolloutContext
from retcon.rollout.group import rollout_groups
from retcon.rollout.prompts import prompt_ids
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task
from retcon.train.demos.types import LOST, DemoSetup

WRONG = "wrong to the grader"
TOO_LONG = "no room in rollout.max_tokens"
UNANSWERED = "no answer within sft.max_turns"


@dataclass(frozen=True, slots=True)
class Roller:
    """Rolls tasks out, each once, with whatever engine, and grades them."""

    context: RolloutContext
    graders: TaskSet
    seed: int

    async def roll(self, tasks: Sequence[Task], engine: Generator, *, attempt: int = 0) -> list[Trajectory]:
        """A graded rollout of each, in order, its id `{task.id}/{attempt}/0`."""
        context = replace(self.context, engine=engine)
        groups = await rollout_groups(tasks, context, count=1, seed=self.seed, step=attempt, grade=self.graders.grade)
        return [trajectory for (trajectory,) in groups]

    def fits(self, task: Task) -> bool:
        """Whether a task's prompt leaves room to answer."""
        return prompt_ids(self.context.chat, task) < self.context.limits.max_tokens


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
    """With the recipe's sandbox, tools and graders, and sft.max_turns. model: who writes, for the record. chat: the
    engine's, None for that of the model that will learn. sampling: T = 1 and nothing cut off where None. harnessed:
    whether the recipe's harness makes the rollouts, which needs a model that answers whatever it is asked. Raises
    SandboxUnavailable, RecipeError."""
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


def need_python(roller: Roller, kind: str) -> None:
    """Raises RecipeError where the recipe has no tool of that name, which this kind's programs are for."""
    if "python" not in roller.context.tools:
        raise RecipeError(f"rollout.tools: demos.kind = '{kind}' writes calls of the tool python, which is not there")


def why_rejected(trajectory: Trajectory) -> str | None:
    """Why a demonstration that is to be right is not kept, None where it is."""
    if trajectory.stop == "infrastructure":
        return LOST
    if trajectory.stop == "length":
        return TOO_LONG
    if trajectory.stop == "turns":
        return UNANSWERED
    return None if (trajectory.reward or 0) > 0 else WRONG


Attempt = Callable[[list[Task], int], Awaitable[list[Trajectory]]]
"""A rollout of each of these tasks, in order; the number of the attempt, 0-based."""


async def tried(
    tasks: Sequence[Task], attempt: Attempt, *, keep: str, tries: int
) -> list[tuple[Trajectory, str | None]]:
    """The rollout of each task that counts, with why it is rejected, None where it is not: the first that is right of
    `tries`, else the last one; with `keep` = all, the first one, rejected only where it was lost."""
    found: dict[int, tuple[Trajectory, str | None]] = {}
    for number in range(tries if keep == "right" else 1):
        left = [n for n in range(len(tasks)) if n not in found or found[n][1] is not None]
        if not left:
            break
        for n, made in zip(left, await attempt([tasks[n] for n in left], number), strict=True):
            why = why_rejected(made)
            found[n] = made, why if keep == "right" or why == LOST else None
    return [found[n] for n in range(len(tasks))]


def rejections(made: Sequence[tuple[Trajectory, str | None]]) -> tuple[tuple[Trajectory, ...], Counter[str]]:
    """What is kept, and how many are not, by why."""
    kept = tuple(trajectory for trajectory, why in made if why is None)
    return kept, Counter(why for _, why in made if why is not None)
