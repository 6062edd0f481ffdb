"""One rollout of a group, graded."""

from __future__ import annotations

from dataclasses import replace

from retcon.core.seeds import derive
from retcon.core.types import Provenance, Trajectory
from retcon.engine.types import SpeaksText
from retcon.purify.mixing import purified
from retcon.rollout.context import Rolled, RolloutContext
from retcon.rollout.loop import Watch, run_rollout
from retcon.tasks.registry import Grade, as_returned, graded
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
    in `run_rollout`; a context's harness knows neither.

    It is purified with the context's probability, a draw from (seed, step, task, index), and sampled from a seed that
    does not depend on it. One that an infrastructure fault ended keeps reward None.
    """
    encoded_by = context.engine.encoded_by if isinstance(context.engine, SpeaksText) else None
    armed = purified(context.probability, seed, step, task.id, index)
    context = context if armed else replace(context, repair=None)
    id, own = member_id(task, step, index), derive("rollout", seed, step, task.id, index)
    provenance = Provenance(step=step, index=index, model=context.model, encoded_by=encoded_by)
    if context.harness is not None:
        rolled = await context.harness.rolled(task, context, id=id, seed=own, provenance=provenance)
        return await _graded(task, rolled, context, grade)
    trajectory = await run_rollout(
        task, context, id=id, seed=own, provenance=provenance, after=after, watch=watch
    )  # fmt: skip
    return await graded(task, trajectory, grade, context.faults.add)


async def _graded(task: Task, rolled: Rolled, context: RolloutContext, grade: Grade) -> Trajectory:
    """A harness's rollout with its reward, which may be the harness's own, and what was returned."""
    made = rolled.trajectory
    if made.reward is not None:
        return replace(made, returned=made.reward)
    made = replace(made, returned=rolled.answer)
    judged = await graded(task, as_returned(made), grade, context.faults.add)
    return replace(judged, turns=made.turns)


def member_id(task: Task, step: int, index: int) -> str:
    return f"{task.id}/{step}/{index}"
