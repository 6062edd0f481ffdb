"""One turn: generate, parse, run the calls, render what they gave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean

from retcon.chat.chat import Chat
from retcon.core.errors import InfrastructureFault
from retcon.core.sample import token_count
from retcon.core.seeds import derive
from retcon.core.types import Observation, Segment, ToolCall, Turn
from retcon.engine.types import Generation, Generator, SamplingParams

Told = Callable[[Generation], Awaitable[None]]
"""Is told what the model has written, before its calls are run."""
Run = Callable[[Sequence[ToolCall]], Awaitable[tuple[Observation, ...]]]
"""How calls are run: one observation per call, in order."""


@dataclass(frozen=True, slots=True)
class TurnSampler:
    """What the turns of one rollout have in common. id: the request id of all of them; seed: of all that is sampled."""

    id: str
    engine: Generator
    chat: Chat
    sampling: SamplingParams
    seed: int

    async def turn(
        self, history: Sequence[int], *, number: int, attempt: int, room: int, run: Run, told: Told | None = None
    ) -> Turn:
        """The turn that follows `history` (ids, (T,)), of at most `room` ids that the model writes.

        number, attempt: which turn of the trajectory and which try at it (0 where nothing failed): they name the
        random stream and the calls. run: what runs them; a generation that was cut off has none. Raises
        InfrastructureFault where the engine cannot be reached, or a tool's state is unavailable.
        """
        params = replace(
            self.sampling,
            max_tokens=min(self.sampling.max_tokens, room),
            stop_ids=self.chat.stop_ids,
            seed=derive(self.seed, number, attempt),
        )
        with self._reaching_engine():
            generation = await self.engine.generate(self.id, history, params)
        if told is not None:
            await told(generation)
        entropy = fmean(generation.entropies) if generation.entropies else None
        parsed = self.chat.parse(generation.ids, prefix=f"{number}.{attempt}")
        written = Segment("sampled", parsed.text, generation.ids, generation.logprobs, generation.versions)
        if generation.stop == "length":
            return Turn((written,), stop="length", entropy=entropy)
        if not parsed.calls:
            return Turn((written,), stop="answer", entropy=entropy)
        observations = await run(parsed.calls)
        answered = self.chat.observations(parsed.calls, observations, last_id=generation.ids[-1], written=parsed.text)
        return Turn((written, *answered), parsed.calls, observations, stop="call", entropy=entropy)

    async def scored(self, history: Sequence[int], turn: Turn) -> Turn:
        """The turn with log-probs on its spliced tokens, under `history` and what of the turn goes before them, as far
        as the engine knows any.

        Raises InfrastructureFault where the engine cannot be reached.
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


def broken(turn: Turn) -> bool:
    """Whether a tool of this turn had a fault of its own."""
    return any(o.status == "infrastructure" for o in turn.observations)


def within(turns: Sequence[Turn], room: int, chat: Chat) -> Sequence[Turn]:
    """These turns with no more than `room` ids: what is too much is cut from the end of the last one's segments.

    Its observations stay whole. What the model wrote fits, so that no id of its own is lost; nothing follows a cut.
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
