"""Groups: the same task rolled out many times, everything at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from retcon.chat.chat import Chat
from retcon.core.seeds import derive
from retcon.core.types import Provenance, Trajectory
from retcon.engine.types import Generator, SamplingParams
from retcon.purify.mixing import purified
from retcon.purify.types import Repair
from retcon.rollout.limits import Limits
from retcon.rollout.loop import rollout
from retcon.tasks.types import Task
from retcon.tools.types import StatefulTool, Tool

T = TypeVar("T")
Grade = Callable[[Task, Trajectory], Trajectory | Awaitable[Trajectory]]
"""The trajectory with its reward and answer filled in; awaited where the grader runs something (`ProgramGrader`)."""


async def rollout_group(
    task: Task,
    *,
    count: int,
    engine: Generator,
    tools: Mapping[str, Tool | StatefulTool],
    chat: Chat,
    limits: Limits,
    sampling: SamplingParams,
    seed: int,
    step: int,
    grade: Grade,
    repair: Repair | None = None,
    probability: float = 1.0,
    model: str | None = None,
) -> list[Trajectory]:
    """`count` graded rollouts of one task, in order, their ids `{task.id}/{step}/{index}`.

    Each is purified with `probability`, a draw from (seed, step, task, index), and sampled from a seed that does not
    depend on it. A rollout that an infrastructure fault ended keeps reward None. The first error ends the others.
    """

    async def one(index: int) -> Trajectory:
        armed = repair if purified(probability, seed, step, task.id, index) else None
        trajectory = await rollout(
            task,
            id=f"{task.id}/{step}/{index}",
            engine=engine,
            tools=tools,
            chat=chat,
            limits=limits,
            sampling=sampling,
            seed=derive("rollout", seed, step, task.id, index),
            repair=armed,
            provenance=Provenance(step=step, index=index, model=model),
        )
        if trajectory.stop == "infrastructure":
            return trajectory
        graded = grade(task, trajectory)
        return await graded if isinstance(graded, Awaitable) else graded

    return await _all(one(index) for index in range(count))


async def rollout_groups(
    tasks: Sequence[Task],
    *,
    count: int,
    engine: Generator,
    tools: Mapping[str, Tool | StatefulTool],
    chat: Chat,
    limits: Limits,
    sampling: SamplingParams,
    seed: int,
    step: int,
    grade: Grade,
    repair: Repair | None = None,
    probability: float = 1.0,
    model: str | None = None,
) -> list[list[Trajectory]]:
    """A group for every task, in order, all of them at once; otherwise as `rollout_group`."""
    return await _all(
        rollout_group(
            task,
            count=count,
            engine=engine,
            tools=tools,
            chat=chat,
            limits=limits,
            sampling=sampling,
            seed=seed,
            step=step,
            grade=grade,
            repair=repair,
            probability=probability,
            model=model,
        )
        for task in tasks
    )


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order. The first error is raised as it is, once the others are cancelled and have cleaned up."""
    running = [asyncio.ensure_future(c) for c in coroutines]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        for future in running:
            future.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
