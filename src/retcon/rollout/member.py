"""One rollout of a group, graded."""

from __future__ import annotations

from dataclasses import replace

from retcon.core.seeds import derive
from retcon.core.types import Provenance, Trajectory
from retcon.engine.types import SpeaksText
from retcon.purify.mixing import purified
from retcon.rollout.context import RolloutContext
from retcon.rollout.loop import Watch, run_rollout
from retcon.tasks.registry import Grade, graded
from retcon.tasks.types import Task


async def rollout_member(
    task: Task,
    context: RolloutContext,
    index: int,
    *,
    seed: int,
    step: int,
    grade: Grade,
    after: Trajectory | None = None,
    watch: Watch | None = None,
) -> Trajectory:
    """The rollout at `index` of a group, whoever makes the others, its id `{task.id}/{step}/{index}`. after, watch: as
    in `run_rollout`.

    It is purified with the context's probability, a draw from (seed, step, task, index), and sampled from a seed that
    does not depend on it. One that an infrastructure fault ended keeps reward None.
    """
    encoded_by = context.engine.encoded_by if isinstance(context.engine, SpeaksText) else None
    armed = purified(context.probability, seed, step, task.id, index)
    trajectory = await run_rollout(
        task,
        context if armed else replace(context, repair=None),
        id=member_id(task, step, index),
        seed=derive("rollout", seed, step, task.id, index),
        provenance=Provenance(step=step, index=index, model=context.model, encoded_by=encoded_by),
        after=after,
        watch=watch,
    )
    return await graded(task, trajectory, grade, context.faults.add)


def member_id(task: Task, step: int, index: int) -> str:
    return f"{task.id}/{step}/{index}"
