"""Grading of rollouts by their tasks' graders, in one sandbox.

async with Grading(GradeSettings(grader="code", rewards="binary")) as grading:
    trajectory = await grading.grade(task, trajectory)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Annotated, Self

from pydantic import Field

from retcon.core.errors import InfrastructureFault, RetconError
from retcon.core.texts import strip_turn_end
from retcon.core.types import Trajectory
from retcon.sandbox.types import Sandbox
from retcon.tasks.graders.text import final_answer
from retcon.tasks.grading.registry import (
    FUNCTION,
    Fault,
    Grader,
    Outcome,
    Reply,
    ScoreError,
    Verdict,
    kind_of,
    kinds,
    options_of,
    settings_for,
)
from retcon.tasks.registry import Rewards
from retcon.tasks.types import Task

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GradeSettings:
    """Settings of grading; a task's `meta["grader"]` overrides the grader."""

    grader: Annotated[
        str, Field(description="of tasks that name none: a name, or a function's my_package.my_module:my_grade")
    ] = "math"
    rewards: Annotated[
        Rewards,
        Field(description="signed: 1 right, -1 wrong; binary: 1 and 0; graded: the score, from 0 to 1"),
    ] = "signed"
    options: Annotated[
        Mapping[str, Mapping[str, object]],
        Field(description="settings of graders, by name; those of `function` are for all import paths"),
    ] = field(default_factory=dict)


def reward_of(verdict: Verdict, rewards: Rewards) -> float:
    """Return the reward of a verdict."""
    if rewards == "graded":
        return verdict.score
    return 1.0 if verdict.right else -1.0 if rewards == "signed" else 0.0


async def run_grader(grader: Grader, task: Task, reply: Reply, *, name: str = "grader") -> Outcome:
    """Grade a reply; exceptions other than ScoreError become a Fault of this reply. name: the grader's."""
    try:
        return await grader.grade(task, reply)
    except ScoreError:
        raise
    except (RetconError, ValueError) as error:
        return Fault(f"{name}: {error}")
    except Exception as error:  # noqa: BLE001 - a grader's exception must cost this one rollout alone
        LOG.warning("grader %s raised %s of task %s: %s", name, type(error).__name__, task.id, error)
        return Fault(f"{name}: it raised {type(error).__name__}: {error}")


async def grade_trajectory(
    grader: Grader, task: Task, trajectory: Trajectory, *, rewards: Rewards = "signed", name: str = "grader"
) -> tuple[Trajectory, Outcome]:
    """Grade a trajectory; return it with answer and reward, and the grader's outcome.

    One without an answer is wrong, whatever the grader. One that was lost before, or cannot be graded, has no reward
    and stop `infrastructure`.
    """
    if trajectory.stop == "infrastructure":
        return trajectory, Fault("the rollout was lost before it was graded")
    reply = Reply(strip_turn_end(trajectory.turns[-1].text) if trajectory.turns else "", trajectory)
    if not trajectory.turns or trajectory.stop != "answer":
        outcome: Outcome = Verdict.of(False, f"no answer: it ended by its limit of {trajectory.stop}")
    else:
        outcome = await run_grader(grader, task, reply, name=name)
    if isinstance(outcome, Fault):
        answer = final_answer(reply.text)
        return replace(trajectory, answer=answer, reward=None, stop="infrastructure"), outcome
    reward, reason = reward_of(outcome, rewards), outcome.why or None
    return replace(trajectory, answer=outcome.answer, reward=reward, reason=reason, grades=outcome.grades), outcome


class Grading:
    """Context (`async with`) that opens graders on first use, and grades.

    sandbox: for graders' programs; None: one is started when a grader first needs it, and ended with this. at_once:
    answers that each grader takes at a time, unless its settings say. Raises RecipeError for an unknown grader or key,
    before anything is started.
    """

    def __init__(
        self, settings: GradeSettings | None = None, *, sandbox: Sandbox | None = None, at_once: int | None = None
    ) -> None:
        self._at_once = at_once
        self.settings = settings or GradeSettings()
        kind_of(self.settings.grader)
        for name in {self.settings.grader, *self.settings.options} - {FUNCTION}:
            settings_for(name, self._options(name))
        self._given = sandbox
        self._open = AsyncExitStack()
        self._graders: dict[str, Grader] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()
        self._graders.clear()

    async def grade(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with its answer and its reward. One that cannot be graded has no reward and stop
        `infrastructure`. Fits `rollout_group(grade=…)`."""
        return (await self.judge(task, trajectory))[0]

    async def reward(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """Grade a trajectory; raises InfrastructureFault with the reason of a Fault."""
        made, outcome = await self.judge(task, trajectory)
        if isinstance(outcome, Fault):
            raise InfrastructureFault(outcome.why)
        return made

    async def right(self, task: Task, trajectory: Trajectory) -> Trajectory:
        """Grade a trajectory with reward 1 if right, else 0. Raises as `reward`."""
        made, outcome = await self.judge(task, trajectory)
        if isinstance(outcome, Fault):
            raise InfrastructureFault(outcome.why)
        return replace(made, reward=reward_of(outcome, "binary"))

    async def judge(self, task: Task, trajectory: Trajectory) -> tuple[Trajectory, Outcome]:
        """Grade a trajectory, and return it with the grader's outcome."""
        name = self.name_for(task)
        return await grade_trajectory(
            await self.grader(name), task, trajectory, rewards=self.settings.rewards, name=name
        )

    async def outcome(self, task: Task, reply: Reply) -> Outcome:
        """Grade a reply by the task's grader; errors while grading are a Fault of this reply.

        Raises RetconError where the grader cannot be opened: it is unknown, its settings are wrong, a package or the
        sandbox is missing. Raises ScoreError for scores outside 0 to 1.
        """
        name = self.name_for(task)
        return await run_grader(await self.grader(name), task, reply, name=name)

    async def check(self, task: Task) -> None:
        """Check that a task can be graded. Raises ValueError, RecipeError for an unknown grader."""
        await (await self.grader(self.name_for(task))).check(task)

    def name_for(self, task: Task) -> str:
        """Return the name of a task's grader: its own, else that of the settings."""
        named = task.meta.get("grader")
        return named if isinstance(named, str) and named else self.settings.grader

    async def grader(self, name: str) -> Grader:
        """Return an open grader by name. Raises RecipeError for an unknown one."""
        async with self._opening.setdefault(name, asyncio.Lock()):
            if name not in self._graders:
                opened = await kind_of(name).open(settings_for(name, self._options(name)), self)
                self._open.push_async_callback(opened.close)
                self._graders[name] = opened
            return self._graders[name]

    async def sandbox(self) -> Sandbox:
        """Return the shared sandbox, started. Raises SandboxUnavailable."""
        async with self._opening.setdefault("", asyncio.Lock()):
            if self._given is None:
                packages = {name: modules for kind in kinds().values() for name, modules in kind.packages.items()}
                from retcon.sandbox.pool import SandboxPool

                self._given = await self._open.enter_async_context(SandboxPool(packages=packages))
            return self._given

    def _options(self, name: str) -> Mapping[str, object]:
        given = options_of(name, self.settings.options)
        if self._at_once is not None and "at_once" in (f.name for f in fields(kind_of(name).settings)):
            return {"at_once": self._at_once, **given}
        return given
