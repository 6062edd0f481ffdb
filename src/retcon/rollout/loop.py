"""Run one trajectory from its prompt to its end.

Training, evaluation and inference use the same coroutine, which knows the engine, tools and repair by their protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from retcon.chat.chat import Chat
from retcon.core.errors import CheckpointRefused, EngineError, InfrastructureFault
from retcon.core.seeds import derive
from retcon.core.types import (
    Observation,
    Provenance,
    RepairRecord,
    Segment,
    Stop,
    ToolCall,
    Trajectory,
    Turn,
    ids_of,
    token_count,
)
from retcon.engine.types import Generation, Generator, SamplingParams
from retcon.purify.types import Repair
from retcon.rollout.context import RolloutContext, RolloutLimits
from retcon.rollout.state import TurnState, open_tools
from retcon.rollout.subcalls import RolloutModel, SubcallBudget, TreePlace
from retcon.tasks.types import Task

OnGeneration = Callable[[Generation], Awaitable[None]]
"""Called with a generation before its calls run."""
Run = Callable[[Sequence[ToolCall]], Awaitable[tuple[Observation, ...]]]
"""Runs calls: one observation per call, in order."""


@dataclass(frozen=True, slots=True)
class TurnSampler:
    """Samples the turns of one rollout. id: its request id. seed: of its random streams."""

    id: str
    engine: Generator
    chat: Chat
    sampling: SamplingParams
    seed: int

    async def turn(
        self,
        history: Sequence[int],
        *,
        number: int,
        attempt: int,
        room: int,
        run: Run,
        on_generation: OnGeneration | None = None,
    ) -> Turn:
        """Generate a turn of at most `room` ids, and run its calls.

        history: ids, (T,). number, attempt: indices of turn and attempt (0 is the first), which name the random stream
        and the calls. Raises InfrastructureFault if the engine cannot be reached or a tool's state is unavailable.
        """
        params = replace(
            self.sampling,
            max_tokens=min(self.sampling.max_tokens, room),
            stop_ids=self.chat.stop_ids,
            seed=derive(self.seed, number, attempt),
        )
        with self._reaching_engine():
            generation = await self.engine.generate(self.id, history, params)
        if on_generation is not None:
            await on_generation(generation)
        entropy = fmean(generation.entropies) if generation.entropies else None
        parsed = self.chat.parse(generation.ids, prefix=f"{number}.{attempt}")
        written = Segment("sampled", parsed.text, generation.ids, generation.logprobs, generation.versions)
        if generation.stop == "length":
            return Turn((written,), stop="length", entropy=entropy)
        if not parsed.calls or not self.chat.tools:  # without tools a block of Python is an answer, not a call
            return Turn((written,), stop="answer", entropy=entropy)
        observations = await run(parsed.calls)
        answered = self.chat.observations(parsed.calls, observations, last_id=generation.ids[-1], written=parsed.text)
        return Turn((written, *answered), parsed.calls, observations, stop="call", entropy=entropy)

    async def scored(self, history: Sequence[int], turn: Turn) -> Turn:
        """Return the turn with log-probs of its spliced tokens, given `history`.

        Raises InfrastructureFault if the engine cannot be reached.
        """
        ids = list(history)
        segments: list[Segment] = []
        for segment in turn.segments:
            start = len(ids)
            ids.extend(segment.ids or ())
            if segment.kind == "spliced" and segment.logprobs is None:
                with self._reaching_engine():
                    logprobs = await self.engine.score(self.id, ids, start)
                segments.append(replace(segment, logprobs=None if logprobs is None else tuple(logprobs)))
            else:
                segments.append(segment)
        return replace(turn, segments=tuple(segments))

    @contextmanager
    def _reaching_engine(self) -> Iterator[None]:
        try:
            yield
        except (ConnectionError, TimeoutError) as error:
            raise InfrastructureFault(f"rollout {self.id}: the engine cannot be reached: {error}") from error


def has_tool_fault(turn: Turn) -> bool:
    """Whether a tool of this turn failed on its own account."""
    return any(o.status == "infrastructure" for o in turn.observations)


def truncate_to(turns: Sequence[Turn], room: int, chat: Chat) -> Sequence[Turn]:
    """Cut the last turn so that all have at most `room` ids.

    Its `observations` stay whole. Sampled ids always fit, so none of them is lost.
    """
    *before, last = turns
    room -= token_count(s for turn in before for s in turn.segments)
    if token_count(last.segments) <= room:
        return turns
    kept: list[Segment] = []
    for segment in last.segments:
        had = segment.ids or ()
        ids = had[: max(0, room - token_count(kept))]
        if ids == had:
            kept.append(segment)
        elif ids:
            kept.append(Segment(segment.kind, chat.tokenizer.decode(ids), ids))
    return (*before, replace(last, segments=tuple(kept)))


class TurnLookahead:
    """The lookahead at turn `number`, whose history h_t is `history`; implements `Lookahead`.

    Each attempt's calls run from the tools' state after h_t, since a fix will follow h_t directly. An attempt that
    relies on what the failed call had set before it failed will fail, and counts. (The paper has no sessions.)
    made: all attempts, also if a fault ended the repair.
    """

    def __init__(
        self, sampler: TurnSampler, limits: RolloutLimits, history: Sequence[int], number: int, state: TurnState
    ) -> None:
        self._sampler = sampler
        self._limits = limits
        self._history = tuple(history)
        self._number = number
        self._state = state
        self.made: list[Turn] = []

    async def begin(self) -> None:
        """Checkpoint the failure; see `TurnState.keep_failure`."""
        await self._state.keep_failure()

    async def attempt(self, shown: Sequence[Turn]) -> Turn | None:
        ids = self._history + ids_of(s for turn in shown for s in turn.segments)
        room = self._limits.max_tokens + self._limits.lookahead_tokens - len(ids)
        if room <= 0:
            return None
        turn = await self._sampler.turn(
            ids, number=self._number, attempt=len(self.made) + 1, room=room, run=self._state.run_again
        )
        self.made.append(turn)
        if has_tool_fault(turn):
            raise InfrastructureFault(f"rollout {self._sampler.id}: a tool failed on its own account in a lookahead")
        return turn

    async def replays_identically(self, turns: Sequence[Turn]) -> bool:
        return await self._state.replays_identically([(turn.calls, turn.observations) for turn in turns[1:]])

    def render_observations(
        self, written: Sequence[Segment], calls: Sequence[ToolCall], observations: Sequence[Observation]
    ) -> tuple[Segment, ...]:
        chat, ids = self._sampler.chat, ids_of(written) or self._history
        text = "".join(segment.text for segment in written)
        last = None if text.endswith(chat.family.closes) else ids[-1]
        return chat.observations(calls, observations, last_id=last, written=text)

    def fits(self, *turns: Turn) -> bool:
        if self._number + len(turns) > self._limits.max_turns:
            return False
        used = len(self._history) + token_count(s for turn in turns for s in turn.segments)
        return used < self._limits.max_tokens or (used == self._limits.max_tokens and turns[-1].stop == "answer")

    async def settle(self, failure: Turn, committed: Sequence[Turn]) -> list[Turn]:
        """Score a repair's turns, and put the tools into their last state.

        Raises InfrastructureFault.
        """
        ids = list(self._history)
        scored: list[Turn] = []
        for turn in committed:
            scored.append(await self._sampler.scored(ids, turn))
            ids.extend(ids_of(turn.segments))
        if [turn.calls for turn in scored if turn.calls][-1:] == [failure.calls]:
            await self._state.restore_failure()
        return scored


NO_CHECKPOINT = "no checkpoint"
"""Prefix of a repair record's reason if a tool could not keep its state."""
Watch = Callable[[Trajectory, Generation], Awaitable[None]]
"""Called with the trajectory so far and each first attempt's generation, before its calls run."""


async def run_rollout(
    task: Task,
    context: RolloutContext,
    *,
    id: str,
    seed: int,
    provenance: Provenance | None = None,
    on_turn: Callable[[Turn], None] = lambda _: None,
    after: Trajectory | None = None,
    replay: bool = False,
    watch: Watch | None = None,
    place: TreePlace | None = None,
) -> Trajectory:
    """Run one trajectory, ungraded: generate and run calls until the model answers or a limit is reached.

    Stateful tools are opened for this trajectory, rolled back with its history, and closed however it ends; so is its
    request at the engine. A generation's random stream depends on `seed`, turn and attempt alone, so that a repair
    changes nothing without a failure. The context's repair always applies; `rollout_group` draws its probability.

    A failed turn whose state a tool cannot keep (`CheckpointRefused`) is not repaired. The trajectory ends with stop
    `infrastructure`, and its turns so far, if a tool fails on its own account, its state is unavailable, or the engine
    cannot be reached (ConnectionError, TimeoutError). Raises EngineError if the engine refuses a request; a child ends
    with stop `infrastructure` then, and the error as its reason.

    Args:
        id: of the trajectory, and of its requests at the engine.
        on_turn: called with each committed turn.
        after: a trajectory to continue from its ids, up to where the model's next turn opens.
        replay: whether the calls of `after` run again first, where a tool keeps state.
        watch: see `Watch`.
        place: in a tree of rollouts; a root of its own where None.
    """
    engine, repair = context.engine, context.repair
    provenance = replace(provenance or Provenance(), seed=seed, purified=repair is not None)
    place = place or TreePlace(SubcallBudget(context.subcalls))
    model = RolloutModel(task, context, id, seed, place, run_rollout, provenance=provenance)
    chat = context.chat.with_tools([tool.spec for tool in context.tools.values()])
    sampler = TurnSampler(id, engine, chat, context.sampling, seed)
    prompt = chat.prompt(task.question, task.system, task.before) if after is None else after.prompt
    limits = context.limits.after(token_count(prompt))
    turns: list[Turn] = [] if after is None else list(after.turns)
    history = list(ids_of((*prompt, *(s for turn in turns for s in turn.segments))))
    stop: Stop | None = "length" if len(history) >= limits.max_tokens else None
    refusal: str | None = None
    try:
        async with open_tools(context.tools, id, task=task.id, model=model) as opened:
            for earlier in turns if replay else ():
                if opened.needs_state(earlier.calls):
                    again = await opened.run(earlier.calls)
                    if any(observation.status == "infrastructure" for observation in again):
                        raise InfrastructureFault("a tool failed on its own account as earlier calls ran again")
            while stop is None:
                model.turn = len(turns)
                state = TurnState(opened)
                turn = await sampler.turn(
                    history,
                    number=len(turns),
                    attempt=0,
                    room=limits.max_tokens - len(history),
                    run=state.run if repair is not None and repair.attempts else opened.run,
                    on_generation=partial(watch, Trajectory(id, task.id, prompt, tuple(turns))) if watch else None,
                )
                committed: Sequence[Turn] = [turn]
                if repair is not None and not has_tool_fault(turn) and repair.failed(turn):
                    lookahead = TurnLookahead(sampler, limits, history, len(turns), state)
                    committed, stop = await _repaired(repair, turn, lookahead, partial(context.faults.add, id))
                committed = truncate_to(committed, limits.max_tokens - len(history), chat)
                turns.extend(committed)
                for one in committed:
                    on_turn(one)
                history.extend(ids_of(s for t in committed for s in t.segments))
                stop = stop or _stop(turns, len(history), limits)
                if has_tool_fault(turns[-1]):
                    context.faults.add(id, _tool_fault_reason(turns[-1]))
                if stop is None:
                    await state.discard()
    except InfrastructureFault as fault:
        context.faults.add(id, str(fault))
        stop = "infrastructure"
    except EngineError as error:
        if place.parent is None:
            raise
        stop, refusal = "infrastructure", str(error)
    finally:
        await engine.release(id)
    return Trajectory(
        id, task.id, prompt, tuple(turns), stop=stop, provenance=provenance, reason=refusal,
        returned=_submitted(turns[-1]) if turns else None, parent=place.parent, children=model.children,
        refused=0 if place.depth else place.budget.refused,
    )  # fmt: skip


async def _repaired(
    repair: Repair, turn: Turn, lookahead: TurnLookahead, lost: Callable[[str], None]
) -> tuple[Sequence[Turn], Stop | None]:
    """Return the turns to commit for a failed turn: its scored repair, or the failure itself.

    An infrastructure fault also ends the rollout.
    """
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


def _tool_fault_reason(turn: Turn) -> str:
    return next(f"a tool's fault: {o.text}" for o in turn.observations if o.status == "infrastructure")


def _submitted(turn: Turn) -> str | None:
    return next((o.submitted for o in turn.observations if o.submitted is not None), None)


def _stop(turns: Sequence[Turn], used: int, limits: RolloutLimits) -> Stop | None:
    """Return why the rollout ends after its last turn, None if it continues. used: ids of the history."""
    last = turns[-1]
    if has_tool_fault(last):
        return "infrastructure"
    if last.stop == "length":
        return "length"
    if not last.calls or _submitted(last) is not None:
        return "answer"
    if len(turns) >= limits.max_turns:
        return "turns"
    return "length" if used >= limits.max_tokens else None
