"""Groups: the same task rolled out many times, everything at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from retcon.core.seeds import derive
from retcon.core.types import Provenance, Trajectory
from retcon.engine.types import SpeaksText
from retcon.purify.mixing import purified
from retcon.rollout.context import RolloutContext
from retcon.rollout.loop import run_rollout
from retcon.tasks.registry import Grade
from retcon.tasks.types import Task

T = TypeVar("T")


async def rollout_group(
    task: Task, context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade
) -> list[Trajectory]:
    """`count` graded rollouts of one task, in order, their ids `{task.id}/{step}/{index}`.

    Each is purified with the context's probability, a draw from (seed, step, task, index), and sampled from a seed that
    does not depend on it. A rollout that an infrastructure fault ended keeps reward None. The first error ends the
    others.
    """
    return await _all(rollout_member(task, context, index, seed=seed, step=step, grade=grade) for index in range(count))


async def rollout_member(
    task: Task, context: RolloutContext, index: int, *, seed: int, step: int, grade: Grade
) -> Trajectory:
    """The rollout at `index` of the group that `rollout_group` makes, whoever makes the others."""
    encoded_by = context.engine.encoded_by if isinstance(context.engine, SpeaksText) else None
    armed = purified(context.probability, seed, step, task.id, index)
    trajectory = await run_rollout(
        task,
        context if armed else replace(context, repair=None),
        id=f"{task.id}/{step}/{index}",
        seed=derive("rollout", seed, step, task.id, index),
        provenance=Provenance(step=step, index=index, model=context.model, encoded_by=encoded_by),
    )
    if trajectory.stop == "infrastructure":
        return trajectory
    graded = grade(task, trajectory)
    return await graded if isinstance(graded, Awaitable) else graded


async def rollout_groups(
    tasks: Sequence[Task], context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade
) -> list[list[Trajectory]]:
    """A group for every task, in order, all of them at once; otherwise as `rollout_group`."""
    return await _all(rollout_group(task, context, count=count, seed=seed, step=step, grade=grade) for task in tasks)


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
