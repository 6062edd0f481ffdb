"""Groups: the same task rolled out many times, everything at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retcon.core.together import together
from retcon.core.types import Trajectory
from retcon.rollout.branching import branching_group
from retcon.rollout.context import RolloutContext
from retcon.rollout.member import rollout_member
from retcon.tasks.registry import Grade
from retcon.tasks.types import Task


async def rollout_group(
    task: Task, context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade, first: int = 0
) -> list[Trajectory]:
    """`count` graded rollouts of one task, in order (see `rollout_member`), which branch where the context's strategy
    says so. Where the context has probes, these are rolled out first, and the others once they have ended. first: index
    of the first one, where others of the task are made at once. The first error ends the others."""

    async def members(indices: range, context: RolloutContext) -> list[Trajectory]:
        return await together(
            rollout_member(task, context, first + index, seed=seed, step=step, grade=grade) for index in indices
        )

    if context.strategy is not None:
        return await branching_group(task, context, count=count, seed=seed, step=step, grade=grade, first=first)
    probes = context.probes
    if probes is None or context.repair is None:
        return await members(range(count), context)
    made = await members(range(min(probes.count, count)), replace(context, repair=None))
    share = probes.share(context.probability, made)
    return made + await members(range(len(made), count), replace(context, probability=share))


async def rollout_groups(
    tasks: Sequence[Task], context: RolloutContext, *, count: int, seed: int, step: int, grade: Grade
) -> list[list[Trajectory]]:
    """A group for every task, in order, all of them at once; otherwise as `rollout_group`."""
    return await together(
        rollout_group(task, context, count=count, seed=seed, step=step, grade=grade) for task in tasks
    )
