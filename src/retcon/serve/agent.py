"""From a request to the exchange that answers it, by the coroutine that every rollout goes through."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from retcon.chat.chat import Chat
from retcon.chat.family import Family
from retcon.core.seeds import derive
from retcon.core.types import Observation, Provenance, ToolCall, ToolSpec, Trajectory, Turn, ids_of, token_count
from retcon.engine.types import Generation, Generator, SamplingParams, SetsAside, SpeaksText
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


class HeldEngine:
    """Implements `Generator`: what a rollout releases stays open until `end`."""

    def __init__(self, engine: Generator) -> None:
        self._engine = engine

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        return await self._engine.generate(request_id, ids, params)

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        return await self._engine.score(request_id, ids, start)

    async def release(self, request_id: str) -> None:
        """The conversation may go on, whenever its client says so."""
        if isinstance(self._engine, SetsAside):
            self._engine.set_aside(request_id)

    async def end(self, request_id: str) -> None:
        await self._engine.release(request_id)


PYTHON = "python"
"""What a family's calls are of that does not name tools."""


class ClientTool:
    """Implements `Tool`: a call that its schema takes is the client's to run. What came of it is in a later request."""

    def __init__(self, spec: ToolSpec) -> None:
        self.name, self.spec = spec.name, spec

    async def __call__(self, call: ToolCall) -> Observation:
        return Observation(call.id, "", "ok")


@dataclass(frozen=True, slots=True)
class ClientTools:
    """The tools of a request, as the model knows them. names: what the client calls them."""

    tools: Mapping[str, ClientTool]
    names: Mapping[str, str]


def client_tools(specs: Sequence[ToolSpec], family: Family) -> ClientTools:
    """Raises RequestRefused where the family cannot say which tool it calls, and it is not plain which is meant."""
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
    """The message that a client is given of a turn, and its text with the stop string that ended it.

    names: what the client calls its tools; None where calls are nobody's but ours. (OpenAI's API leaves the stop string
    out; some harnesses put it back.)
    """
    ids, text, family = ids_of(turn.generated), turn.text, chat.family
    if ids and ids[-1] in chat.stop_ids:
        text = text.removesuffix(chat.tokenizer.decode(ids[-1:]))
    if turn.calls:
        said = family.visible_text(text[: turn.calls[0].char]).rstrip()
        calls = () if names is None else tuple(_called(call, names) for call in turn.calls)
        return ChatMessage("assistant", said, calls), said
    cuts = [at for stop in stops if (at := text.find(stop)) >= 0]
    return ChatMessage("assistant", family.visible_text(text[: min(cuts, default=len(text))])), family.visible_text(
        text
    )


def _called(call: ToolCall, names: Mapping[str, str]) -> MessageCall:
    given = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return MessageCall(f"call_{secrets.token_hex(12)}", names.get(call.name, call.name), given)


TOO_LONG = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Reply:
    """An exchange, and what its request was told of it. before: ids of the history that it went on from; known: those
    of them that stood already."""

    session: str
    exchange: Exchange
    before: int
    known: int


class Agent:
    """Answers requests with the model of a context: its tools for those that bring none, its repair for all. Sampling
    and limits are the context's, but for what a request asks for. record: where conversations go."""

    def __init__(self, context: RolloutContext, settings: ServeSettings, record: Record) -> None:
        self.settings, self.sessions = settings, Sessions(settings.sessions, settings.idle, record.numbers)
        self.engine, self._record = HeldEngine(context.engine), record
        self._context = replace(context, engine=self.engine)
        encoded_by = context.engine.encoded_by if isinstance(context.engine, SpeaksText) else None
        self.provenance = Provenance(
            model=context.model, purified=context.repair is not None, encoded_by=encoded_by
        )  # fmt: skip

    async def answer(self, asked: ChatRequest, session: str | None, task: str | None) -> Reply:
        """Raises RequestRefused; a caller that is gone cancels it, which frees what the engine keeps for it."""
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
            except RequestRefused:  # the client learns nothing of the answer, and asks again
                place.session.take_back(node, place.first)
                raise
        return reply

    def keep(self, session: AgentSession, node: Node | None = None) -> None:
        """Keeps what an open session has come to, for a server that takes it in if this one is killed. node: the
        exchange that is new, where one is. Raises RequestRefused."""
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
            said = f"This model's maximum context length is {room} tokens. However, your messages have {history}."
            raise invalid_request("messages", said, TOO_LONG)
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
            own = (_alone(own[-1], calls=names is not None),)
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
        """The context of one request, and what the client calls its own tools, None where it has none."""
        if asked.tools:
            given = client_tools(asked.tools, self._context.chat.family)
            tools: Mapping[str, AnyTool] = dict(given.tools)
            return replace(self._context, tools=tools), given.names
        return (replace(self._context, tools={}, repair=None) if asked.plain else self._context), None

    def _sampling(self, asked: ChatRequest, place: Place) -> SamplingParams:
        """What the request asks for, within what the server allows. Raises RequestRefused."""
        own, most = self._context.sampling, self.settings.answer_tokens
        if self.settings.session_tokens:
            left = self.settings.session_tokens - place.session.tokens
            if left < 1:
                said = f"the session has been given {place.session.tokens} tokens, which is all that it gets"
                raise invalid_request("session", said, "session_tokens")
            most = min(most, left)
        wanted = min(most, asked.max_tokens or most)
        as_text = self.provenance.encoded_by is not None  # by tokens of the client's kind, and not of the stand-in's
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
        """The id under which the engine is asked, and the request's number. What it keeps for it goes where there was
        no answer, and the number is free again."""
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
                self.sessions.close(session)  # nothing came of it

    async def end(self, session: AgentSession) -> list[Trajectory]:
        """Ends a session, and gives its trajectories, which are on the record then. Raises RequestRefused."""
        self.sessions.refuse_running(session)
        return await self._finished(session)

    async def discard(self, session: AgentSession) -> None:
        """Ends a session of which nothing is kept. Raises RequestRefused."""
        self.sessions.refuse_running(session)
        self.sessions.close(session)
        self._record.drop(session.id)
        await self._freed(session)

    async def end_idle(self) -> None:
        for session in self.sessions.idle():
            await self.end(session)

    async def end_all(self) -> None:
        """At the end of the server: what is open goes on the record, whatever still runs. Raises what keeps a session
        from it, once all others are there."""
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
        while session.engines:  # of which a request that is cancelled meanwhile takes out its own
            await self.engine.end(session.engines.pop())


async def _refuse_too_long(turns: int, history: Trajectory, generation: Generation) -> None:
    """Raises RequestRefused where a server that counts for itself has no room for what the client sent, turns: so many
    of them; what tools have added since is cut off with what was made, as by this server's own limit."""
    if generation.too_long and len(history.turns) == turns:
        raise invalid_request("messages", generation.too_long, TOO_LONG)


def conversation_scope(asked: ChatRequest) -> list[str]:
    """What a conversation is another one for, besides its messages."""
    plain = "plain" if asked.plain and not asked.tools else ""
    tools = (json.dumps(spec.as_function(), sort_keys=True) for spec in asked.tools)
    return [*filter(None, [asked.agent]), plain, *tools]


def _alone(turn: Turn, *, calls: bool) -> Turn:
    """What the model wrote: what its calls came to is not known here. calls: whether there are any in it."""
    kept = turn.calls if calls else ()
    return replace(turn, segments=turn.generated, calls=kept, observations=(), stop=turn.stop if kept else _ended(turn))


def _ended(turn: Turn) -> Literal["length", "answer"]:
    return "length" if turn.stop == "length" else "answer"
