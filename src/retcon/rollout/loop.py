"""The life of one trajectory.

The same coroutine runs in training, in evaluation and at inference: it knows an engine, tools and a repair by their
protocols alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from retcon.core.errors import CheckpointRefused, InfrastructureFault
from retcon.core.sample import ids_of, token_count
from retcon.core.types import Provenance, RepairRecord, Stop, Trajectory, Turn
from retcon.engine.types import Generation
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.lookahead import TurnLookahead
from retcon.rollout.state import TurnState, open_tools
from retcon.rollout.turns import TurnSampler, broken, within
from retcon.tasks.types import Task

NO_CHECKPOINT = "no checkpoint"
"""How the reason begins for which a turn was not repaired, where a tool could not keep its state."""
Watch = Callable[[Trajectory, Generation], Awaitable[None]]
"""Is told of each turn, at its first try and before its calls run, what came before it and what the model wrote."""


async def run_rollout(
    task: Task,
    context: RolloutContext,
    *,
    id: str,
    seed: int,
    provenance: Provenance | None = None,
    on_turn: Callable[[Turn], None] = lambda _: None,
    after: Trajectory | None = None,
    watch: Watch | None = None,
) -> Trajectory:
    """One trajectory, ungraded. Generate, run the calls, and again, until the model answers or a limit is reached.

    id: names the trajectory and, to the engine, all of its requests. The context's tools are shown to the model as its
    chat's family does; those that keep state are opened for this trajectory alone, rolled back with its history, and
    closed however the loop ends. The random stream of a generation depends on `seed`, the turn and the attempt alone,
    so that without a failure a repair changes nothing. Whether the context has a repair decides; its probability is for
    whoever rolls out many (`rollout_group`). on_turn: told each turn once it is committed. after: what has been said
    and done before, up to where the model's next turn opens, in place of a prompt made of the task: the trajectory goes
    on from its ids, its turns are the first, and count as such. watch: see `Watch`.

    A failed turn whose state a tool cannot keep (`CheckpointRefused`) is not repaired, and the rollout goes on. It
    ends with stop `infrastructure` where a tool says so, a tool's state is unavailable or the engine cannot be reached
    (ConnectionError, TimeoutError), with all turns so far. Raises EngineError where the engine refuses a request. The
    engine is told to release the trajectory however the loop ends, cancellation included.
    """
    engine, repair = context.engine, context.repair
    chat = context.chat.showing([tool.spec for tool in context.tools.values()])
    sampler = TurnSampler(id, engine, chat, context.sampling, seed)
    prompt = chat.prompt(task.question, task.system, task.before) if after is None else after.prompt
    limits = context.limits.after(token_count(prompt))
    turns: list[Turn] = [] if after is None else list(after.turns)
    history = list(ids_of((*prompt, *(s for turn in turns for s in turn.segments))))
    stop: Stop | None = "length" if len(history) >= limits.max_tokens else None
    try:
        async with open_tools(context.tools, id, task=task.id) as opened:
            while stop is None:
                state = TurnState(opened)
                turn = await sampler.turn(
                    history,
                    number=len(turns),
                    attempt=0,
                    room=limits.max_tokens - len(history),
                    run=state.run if repair is not None and repair.attempts else opened.run,
                    told=partial(watch, Trajectory(id, task.id, prompt, tuple(turns))) if watch else None,
                )
                committed: Sequence[Turn] = [turn]
                if repair is not None and not broken(turn) and repair.failed(turn):
                    lookahead = TurnLookahead(sampler, limits, history, len(turns), state)
                    committed, stop = await _repaired(repair, turn, lookahead, partial(context.faults.add, id))
                committed = within(committed, limits.max_tokens - len(history), chat)
                turns.extend(committed)
                for one in committed:
                    on_turn(one)
                history.extend(ids_of(s for t in committed for s in t.segments))
                stop = stop or _stop(turns, len(history), limits)
                if broken(turns[-1]):
                    context.faults.add(id, _told_by_tool(turns[-1]))
                if stop is None:
                    await state.discard()
    except InfrastructureFault as fault:
        context.faults.add(id, str(fault))
        stop = "infrastructure"
    finally:
        await engine.release(id)
    provenance = replace(provenance or Provenance(), seed=seed, purified=repair is not None)
    return Trajectory(id, task.id, prompt, tuple(turns), stop=stop, provenance=provenance)


async def _repaired(
    repair: Repair, turn: Turn, lookahead: TurnLookahead, lost: Callable[[str], None]
) -> tuple[Sequence[Turn], Stop | None]:
    """What to commit for a failed turn, scored; the failure as it is where the tools' state cannot be kept, and on an
    infrastructure fault, which is an end."""
    stop: Stop | None = None
    try:
        if repair.attempts:
            await lookahead.begin()
        return await lookahead.settle(turn, await repair.repair(turn, lookahead)), None
    except CheckpointRefused as refused:
        reason = f"{NO_CHECKPOINT}: {refused}"
    except InfrastructureFault as fault:
        lost(str(fault))
        reason, stop = "infrastructure fault", "infrastructure"
    record = RepairRecord("unrepaired", attempts=len(lookahead.made), reason=reason)
    return [replace(turn, abandoned=tuple(lookahead.made), repair=record)], stop


def _told_by_tool(turn: Turn) -> str:
    return next(f"a tool's fault: {o.text}" for o in turn.observations if o.status == "infrastructure")


def _stop(turns: Sequence[Turn], used: int, limits: RolloutLimits) -> Stop | None:
    """Whether and why the rollout ends after its last turn; used: ids of the history."""
    last = turns[-1]
    if broken(last):
        return "infrastructure"
    if last.stop == "length":
        return "length"
    if not last.calls:
        return "answer"
    if len(turns) >= limits.max_turns:
        return "turns"
    return "length" if used >= limits.max_tokens else None
