"""Agent behind the endpoint: answers requests by `rollout.loop`, with its engine in another thread."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Literal, TypeVar

from retcon.chat.chat import Chat
from retcon.chat.family import Family
from retcon.core.seeds import derive
from retcon.core.types import Observation, Provenance, ToolCall, ToolSpec, Trajectory, Turn, ids_of, token_count
from retcon.engine.types import Generation, Generator, ParkableEngine, SamplingParams, TextEngine
from retcon.http.endpoints import RequestRefused
from retcon.rollout.context import Faults, RolloutContext
from retcon.rollout.loop import run_rollout
from retcon.serve.errors import ServeSettings, invalid_request, reraise_as_refusal, unavailable
from retcon.serve.recording import Record
from retcon.serve.requests import ChatRequest
from retcon.serve.sessions import (
    AgentSession,
    ChatMessage,
    Exchange,
    MessageCall,
    Node,
    Place,
    Sessions,
    message_keys,
    render_history,
)
from retcon.tasks.types import Task
from retcon.tools.types import AnyTool

T = TypeVar("T")


class ThreadedEngine:
    """A `Generator` that runs `engine` in another thread's event loop.

    It works within `async with`. Calls keep their order. On exit calls under way are cancelled, after the current
    forward.
    """

    def __init__(self, engine: Generator) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="retcon-engine", daemon=True)

    async def __aenter__(self) -> ThreadedEngine:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        return await self._there(self._engine.generate(request_id, ids, params))

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        return await self._there(self._engine.score(request_id, ids, start))

    async def release(self, request_id: str) -> None:
        await self._there(self._engine.release(request_id))

    def set_aside(self, request_id: str) -> None:
        """Pass on to an engine that waits for requests."""
        if isinstance(self._engine, ParkableEngine):
            self._loop.call_soon_threadsafe(self._engine.set_aside, request_id)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread; cancelling it here cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._end.wait())


class KeepAliveEngine:
    """Engine that keeps released requests open until `end`; implements `Generator`."""

    def __init__(self, engine: Generator) -> None:
        self._engine = engine

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        return await self._engine.generate(request_id, ids, params)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        return await self._engine.score(request_id, ids, start)

    async def release(self, request_id: str) -> None:
        """Set the request aside, as its client may continue the conversation."""
        if isinstance(self._engine, ParkableEngine):
            self._engine.set_aside(request_id)

    async def end(self, request_id: str) -> None:
        await self._engine.release(request_id)


PYTHON = "python"
"""Tool of all calls in a family that does not name tools."""


class ClientTool:
    """A tool that the client runs; its result comes in a later request. Implements `Tool`."""

    def __init__(self, spec: ToolSpec) -> None:
        self.name, self.spec = spec.name, spec

    async def __call__(self, call: ToolCall) -> Observation:
        return Observation(call.id, "", "ok")


@dataclass(frozen=True, slots=True)
class ClientTools:
    """Tools of a request, by the model's names. names: the client's."""

    tools: Mapping[str, ClientTool]
    names: Mapping[str, str]


def client_tools(specs: Sequence[ToolSpec], family: Family) -> ClientTools:
    """Return a request's tools. Raises RequestRefused if the family's calls are ambiguous."""
    if family.names_calls:
        return ClientTools({spec.name: ClientTool(spec) for spec in specs}, {spec.name: spec.name for spec in specs})
    runs = [spec for spec in specs if _takes_code(spec)]
    if len(runs) != 1:
        raise invalid_request(
            "tools",
            f"this model's calls are blocks of Python that name no tool (chat style '{family.name}'): there must be "
            f"exactly one tool that takes 'code', and there are {len(runs)}",
        )
    return ClientTools({PYTHON: ClientTool(replace(runs[0], name=PYTHON))}, {PYTHON: runs[0].name})


def _takes_code(spec: ToolSpec) -> bool:
    arguments = spec.parameters.get("properties")
    return isinstance(arguments, Mapping) and "code" in arguments


def client_message(
    turn: Turn, chat: Chat, names: Mapping[str, str] | None, stops: Sequence[str]
) -> tuple[ChatMessage, str]:
    """Return a turn's message to the client, and its uncut text.

    names: the client's tool names; None if it has no tools. (OpenAI's API cuts the stop string off; some harnesses
    put it back.)
    """
    ids, text, family = ids_of(turn.generated), turn.text, chat.family
    if ids and ids[-1] in chat.stop_ids:
        text = text.removesuffix(chat.tokenizer.decode(ids[-1:]))
    if turn.calls:
        spoken = family.visible_text(text[: turn.calls[0].char]).rstrip()
        calls = () if names is None else tuple(_message_call(call, names) for call in turn.calls)
        return ChatMessage("assistant", spoken, calls), spoken
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    return ChatMessage("assistant", family.visible_text(text[: min(cuts, default=len(text))])), family.visible_text(
        text
    )


def _message_call(call: ToolCall, names: Mapping[str, str]) -> MessageCall:
    given = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return MessageCall(f"call_{secrets.token_hex(12)}", names.get(call.name, call.name), given)


TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Reply:
    """An exchange, with token counts for the response. before: ids of the history that it continues; known: those that
    were encoded before."""

    session: str
    exchange: Exchange
    before: int
    known: int


class Agent:
    """Agent that answers requests with a context's model and repair. Requests without tools get the context's. Sampling
    and limits are the context's unless a request sets them. record: of the conversations."""

    def __init__(self, context: RolloutContext, settings: ServeSettings, record: Record) -> None:
        self.settings, self.sessions = settings, Sessions(settings.sessions, settings.idle, record.numbers)
        self.engine, self._record = KeepAliveEngine(context.engine), record
        self._context = replace(context, engine=self.engine)
        encoded_by = context.engine.encoded_by if isinstance(context.engine, TextEngine) else None
        self.provenance = Provenance(
            model=context.model, purified=context.repair is not None, encoded_by=encoded_by
        )  # fmt: skip

    async def answer(self, asked: ChatRequest, session: str | None, task: str | None) -> Reply:
        """Answer a request. Raises RequestRefused. Cancelling it frees the engine's cache for it."""
        await self.end_idle()
        context, names = self._for(asked)
        place = self.sessions.find(session, task, conversation_scope(asked), asked.messages, asked.agent)
        with place.session.asked_by(asked.agent) as above:
            return await self._answered(asked, place, context, names, above)

    async def _answered(
        self,
        asked: ChatRequest,
        place: Place,
        context: RolloutContext,
        names: Mapping[str, str] | None,
        above: Node | None,
    ) -> Reply:
        async with self._running(place) as (id, number):
            with reraise_as_refusal():
                reply = await self._exchanged(asked, place, context, names, id, number)
            node = place.session.add(place, reply.exchange, id, above)
            try:
                self.keep(place.session, node)
            except RequestRefused:  # the client does not get the answer, and asks again
                place.session.take_back(node, place.first)
                raise
        return reply

    def keep(self, session: AgentSession, node: Node | None = None) -> None:
        """Save an open session, in case this server is killed. node: the new exchange, if any. Raises
        RequestRefused."""
        with reraise_as_refusal():
            self._record.keep(session, self.provenance, node)

    async def _exchanged(
        self,
        asked: ChatRequest,
        place: Place,
        context: RolloutContext,
        names: Mapping[str, str] | None,
        id: str,
        number: int,
    ) -> Reply:
        chat = context.chat.with_tools([tool.spec for tool in context.tools.values()])
        standing = render_history(place, chat, asked.messages)
        before, history = standing.trajectory, token_count(standing.trajectory.segments)
        room, turns = context.limits.max_tokens, len(standing.trajectory.turns)
        if history >= room:
            # in OpenAI's words, by which litellm and the harnesses over it know that a history must be condensed
            message = f"This model's maximum context length is {room} tokens. However, your messages have {history}."
            raise invalid_request("messages", message, TOO_LONG)
        most = 1 if asked.alone else asked.turns or context.limits.max_turns
        faults = Faults()
        made = await run_rollout(
            Task(place.session.task, "", ""),
            replace(
                context,
                limits=replace(context.limits, max_turns=turns + most),
                sampling=self._sampling(asked, place),
                faults=faults,
            ),
            id=id,
            seed=self._seed(asked, place.session, number),
            after=before,
            watch=partial(_refuse_too_long, turns),
        )
        if made.stop == "infrastructure":
            raise unavailable(f"it was lost in the middle of an answer ({faults.first})")
        own, stop = made.turns[turns:], made.stop
        refused = names is not None and any(one.status != "ok" for one in own[-1].observations)
        if asked.alone:
            own = (_without_results(own[-1], calls=names is not None),)
            stop = "turns" if own[-1].calls else _ended(own[-1])
        shown, whole = client_message(own[-1], chat, names, asked.stop)
        exchange = Exchange(
            message_keys(asked.messages[place.start :]),
            standing.given,
            standing.observations,
            own,
            shown,
            whole,
            stop,
            refused,
            place.added,
        )
        return Reply(place.session.id, exchange, history, history - token_count(standing.given))

    def _for(self, asked: ChatRequest) -> tuple[RolloutContext, Mapping[str, str] | None]:
        """Return a request's context, and the client's names of its own tools, None without any."""
        if asked.tools:
            given = client_tools(asked.tools, self._context.chat.family)
            tools: Mapping[str, AnyTool] = dict(given.tools)
            return replace(self._context, tools=tools), given.names
        return (replace(self._context, tools={}, repair=None) if asked.plain else self._context), None

    def _sampling(self, asked: ChatRequest, place: Place) -> SamplingParams:
        """Return the request's sampling parameters within the server's limits. Raises RequestRefused."""
        own, most = self._context.sampling, self.settings.answer_tokens
        if self.settings.session_tokens:
            left = self.settings.session_tokens - place.session.tokens
            if left < 1:
                message = f"the session has generated {place.session.tokens} tokens, its limit (--session-tokens)"
                raise invalid_request("session", message, "session_tokens")
            most = min(most, left)
        wanted = min(most, asked.max_tokens or most)
        as_text = self.provenance.encoded_by is not None  # the client's tokens count, not the stand-in's
        return SamplingParams(
            own.temperature if asked.temperature is None else asked.temperature,
            own.top_p if asked.top_p is None else asked.top_p,
            own.top_k if asked.top_k is None else asked.top_k,
            own.min_p if asked.min_p is None else asked.min_p,
            max_tokens=self._context.limits.max_tokens if as_text else wanted,
            stop=asked.stop,
            message_tokens=wanted if as_text else 0,
        )

    def _seed(self, asked: ChatRequest, session: AgentSession, number: int) -> int:
        if asked.seed is not None:
            return derive("asked", asked.seed)
        return derive("served", self.settings.seed, session.id, session.after, session.first, number)

    @asynccontextmanager
    async def _running(self, place: Place) -> AsyncIterator[tuple[str, int]]:
        """Yield the engine's id and the number of a request. Without an answer both are freed."""
        session = place.session
        id, number = session.engine_for(place.parent), session.take_number()
        session.running += 1
        session.busy.add(id)
        session.engines.add(id)
        try:
            yield id, number
        except BaseException:
            session.freed.add(number)
            session.engines.discard(id)
            await self.engine.end(id)
            raise
        finally:
            session.running -= 1
            session.busy.discard(id)
            self.sessions.touch(session)
            if not session.requests and not session.running:
                self.sessions.close(session)  # it has no answers

    async def end(self, session: AgentSession) -> list[Trajectory]:
        """End a session and record its trajectories; return them. Raises RequestRefused."""
        self.sessions.check_not_running(session)
        return await self._finished(session)

    async def discard(self, session: AgentSession) -> None:
        """End a session without recording it. Raises RequestRefused."""
        self.sessions.check_not_running(session)
        self.sessions.close(session)
        self._record.drop(session.id)
        await self._freed(session)

    async def end_idle(self) -> None:
        for session in self.sessions.idle():
            await self.end(session)

    async def end_all(self) -> None:
        """Record all open sessions, at the server's end, even with running requests. Raises a session's error after
        recording all others."""
        async with AsyncExitStack() as ending:
            for session in reversed(list(self.sessions)):
                ending.push_async_callback(self._finished, session)

    async def _finished(self, session: AgentSession) -> list[Trajectory]:
        found = session.trajectories(self.provenance)
        with reraise_as_refusal():
            self._record.finish(session.id, found)
        self.sessions.close(session)
        await self._freed(session)
        return found

    async def _freed(self, session: AgentSession) -> None:
        while session.engines:  # a request that is cancelled meanwhile removes its own
            await self.engine.end(session.engines.pop())


async def _refuse_too_long(turns: int, history: Trajectory, generation: Generation) -> None:
    """Raise RequestRefused if the client's messages are too long for an engine with its own token counts. turns: number
    of the client's; later ones with tool outputs are truncated, as by this server's own limit."""
    if generation.too_long and len(history.turns) == turns:
        raise invalid_request("messages", generation.too_long, TOO_LONG)


def conversation_scope(asked: ChatRequest) -> list[str]:
    """Return what distinguishes conversations besides messages: mode and tools."""
    plain = "plain" if asked.plain and not asked.tools else ""
    tools = (json.dumps(spec.as_function(), sort_keys=True) for spec in asked.tools)
    return [*filter(None, [asked.agent]), plain, *tools]


def _without_results(turn: Turn, *, calls: bool) -> Turn:
    """Return a turn without results, which only the client knows. calls: whether to keep its calls."""
    kept = turn.calls if calls else ()
    return replace(turn, segments=turn.generated, calls=kept, observations=(), stop=turn.stop if kept else _ended(turn))


def _ended(turn: Turn) -> Literal["length", "answer"]:
    return "length" if turn.stop == "length" else "answer"
