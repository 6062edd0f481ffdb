"""One rollout of a group, graded."""

from __future__ import annotations

from dataclasses import replace

from retcon.core.seeds import derive
from retcon.core.types import Provenance, Segment, Trajectory, Turn
from retcon.engine.types import SpeaksText
from retcon.purify.mixing import purified
from retcon.rollout.context import Rolled, RolloutContext
from retcon.rollout.loop import Watch, run_rollout
from retcon.tasks.grade import BOX
from retcon.tasks.graders.text import chosen_letter, final_answer, heard
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
    """A harness's rollout with its reward, which may be the harness's own."""
    made, answer = rolled.trajectory, rolled.answer
    if made.reward is not None:
        return made
    if answer is None:
        return await graded(task, made, grade, context.faults.add)
    reply = Turn((Segment("sampled", _as_reply(answer)),))
    judged = await graded(task, replace(made, turns=(reply,)), grade, context.faults.add)
    return replace(judged, turns=made.turns)


def _as_reply(answer: str) -> str:
    """In a box, where it is one line that is nothing but the answer: graders look for that in a reply. A sentence that
    chooses a letter says so without one, and not within."""
    said = heard(answer).strip()
    boxed = f"{BOX}{said}}}"
    if final_answer(answer) is not None or len(said.splitlines()) != 1 or chosen_letter(boxed) != chosen_letter(answer):
        return answer
    return boxed


def member_id(task: Task, step: int, index: int) -> str:
    return f"{task.id}/{step}/{index}"
