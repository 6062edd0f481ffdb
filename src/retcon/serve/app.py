"""ASGI application of the endpoint: routes, responses and streams."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retcon import __version__
from retcon.core.errors import nearest
from retcon.core.types import REPLACED, Trajectory, Turn, token_count
from retcon.http.endpoints import (
    AccessMiddleware,
    Gate,
    Handler,
    RequestRefused,
    cancel_on_disconnect,
    encode_json,
    error_response,
    exception_handlers,
    json_response,
    read_body,
    wait_for_disconnect,
    with_error_responses,
)
from retcon.serve.agent import Agent, Reply
from retcon.serve.errors import invalid_request, openai_error_body, parse_request
from retcon.serve.requests import PLAIN, ChatRequest, read_request
from retcon.serve.sessions import SESSION, TASK, AgentSession, Exchange
from retcon.store import jsonl

CHUNK = 400
"""Characters of a chunk of the text."""
DONE = b"data: [DONE]\n\n"
WORKING = b": working\n\n"
"""A comment that keeps a connection alive."""


def completion(asked: ChatRequest, reply: Reply, id: str) -> dict[str, Any]:
    """Render a reply as a chat completion."""
    exchange = reply.exchange
    message: dict[str, Any] = {"role": "assistant", "content": _content(exchange), "refusal": None}
    if exchange.shown.calls:
        message["tool_calls"] = _calls(exchange)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(exchange)}
    about = _reply_head(asked, id, "chat.completion")
    return {**about, "choices": [choice], "usage": _usage(reply), "retcon": retcon(reply)}


def chunks(asked: ChatRequest, reply: Reply, id: str) -> Iterator[bytes]:
    """Render a reply as server-sent events, after all repairs."""
    exchange, about = reply.exchange, _reply_head(asked, id, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**about, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    text = _content(exchange) or ""
    for start in range(0, len(text), CHUNK):
        yield chunk({"content": text[start : start + CHUNK]})
    for n, call in enumerate(_calls(exchange)):
        yield chunk({"tool_calls": [{"index": n, **call}]})
    yield chunk({}, _finish(exchange), retcon=retcon(reply))
    if asked.usage:
        yield event({**about, "choices": [], "usage": _usage(reply)})
    yield DONE


def event(value: object) -> bytes:
    return b"data: " + encode_json(value) + b"\n\n"


def retcon(reply: Reply) -> dict[str, Any]:
    """Return statistics of a reply. turns: of the clean history. calls, failed: run here, as they happened. repairs:
    failures and their replacements. known_tokens: of the history, encoded before. abandoned_tokens: generated but not
    in the history."""
    turns = reply.exchange.turns
    raw = [attempt for turn in turns for attempt in turn.raw()]
    kept = token_count(s for turn in turns for s in turn.generated)
    return {
        "session": reply.session,
        "turns": len(turns),
        "calls": sum(len(turn.observations) for turn in raw),
        "failed": sum(turn.failures for turn in raw),
        "repairs": [_repair(n, turn) for n, turn in enumerate(turns) if turn.repair is not None],
        "known_tokens": reply.known,
        "abandoned_tokens": reply.exchange.sampled_tokens - kept,
    }


def _repair(number: int, turn: Turn) -> dict[str, Any]:
    assert turn.repair is not None
    replaced = turn.repair.decision in REPLACED
    failed = turn.abandoned[:-1] if replaced else turn.raw()
    about: dict[str, Any] = {
        "turn": number,
        "decision": turn.repair.decision,
        "attempts": turn.repair.attempts,
        "similarity": turn.repair.similarity,
        "reason": turn.repair.reason,
        "failed": [one for attempt in failed for one in _made(attempt)],
    }
    return {**about, "replaced_by": _made(turn)} if replaced else about


def _made(turn: Turn) -> list[dict[str, Any]]:
    """Return a turn's calls, with known observations."""
    observations = {o.call_id: o for o in turn.observations}
    found = []
    for call in turn.calls:
        one: dict[str, Any] = {"name": call.name, "arguments": call.arguments}
        if (observation := observations.get(call.id)) is not None:
            one |= {"status": observation.status, "error_type": observation.error_type, "output": observation.text}
        found.append(one)
    return found


def _reply_head(asked: ChatRequest, id: str, kind: str) -> dict[str, Any]:
    return {"id": id, "object": kind, "created": int(time.time()), "model": asked.model}


def _content(exchange: Exchange) -> str | None:
    """Return a message's text, None if it has only calls."""
    return exchange.shown.text or (None if exchange.shown.calls else "")


def _calls(exchange: Exchange) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in exchange.shown.calls
    ]


def _finish(exchange: Exchange) -> str:
    if exchange.shown.calls:
        return "tool_calls"
    return "stop" if exchange.stop == "answer" else "length"


def _usage(reply: Reply) -> dict[str, Any]:
    """Return token counts. prompt_tokens: of the history. completion_tokens: generated, with abandoned attempts."""
    made = reply.exchange.sampled_tokens
    return {
        "prompt_tokens": reply.before,
        "completion_tokens": made,
        "total_tokens": reply.before + made,
        "prompt_tokens_details": {"cached_tokens": reply.known},
    }


PATIENCE = 5.0
"""Seconds after which a response begins without its answer; an earlier error has its own HTTP status."""
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]


class EventStream(Response):
    """Response of the events that `work` returns. An error after the response began is an event. When the client
    disconnects, `work` is cancelled. done: called at the end in any case."""

    def __init__(self, work: Coroutine[Any, Any, Iterable[bytes]], done: Callable[[], None]) -> None:
        self._work, self._done = work, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task, gone = asyncio.ensure_future(self._work), asyncio.ensure_future(wait_for_disconnect(receive))
        begun = False
        try:
            while not (task.done() or gone.done()):
                await asyncio.wait((task, gone), timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                if not (task.done() or gone.done()):
                    await self._send(send, WORKING, begin=not begun)
                    begun = True
            if not task.done():
                return
            try:
                parts = task.result()
            except RequestRefused as refused:
                if not begun:
                    await error_response(refused, openai_error_body)(scope, receive, send)
                    return
                parts = [event(openai_error_body(refused))]
            await self._send(send, b"".join(parts), begin=not begun, more=False)
        finally:
            gone.cancel()
            task.cancel()
            await asyncio.wait((task,))
            self._done()

    async def _send(self, send: Send, body: bytes, *, begin: bool, more: bool = True) -> None:
        if begin:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": body, "more_body": more})


class RewardBody(msgspec.Struct, forbid_unknown_fields=True):
    """A reward. trajectory: of the session, None: all without their own. end: whether to end the session."""

    reward: float
    trajectory: str | None = None
    end: bool = True


class Endpoint:
    """Handlers of the endpoint, which may raise RequestRefused."""

    def __init__(self, agent: Agent) -> None:
        self._agent, self._settings, self._began = agent, agent.settings, int(time.time())
        self._gate = Gate(agent.settings.at_once)

    def routes(self) -> list[Route]:
        session = "/v1/sessions/{session}"
        return [
            _route("POST", "/v1/chat/completions", self.chat),
            _route("POST", "/agents/{agent:path}/v1/chat/completions", self.chat),
            _route("GET", "/v1/models", self.models),
            _route("GET", "/v1/models/{model:path}", self.model),
            _route("GET", "/health", self.health),
            _route("GET", "/v1/sessions", self.sessions),
            _route("GET", session, self.session),
            _route("GET", f"{session}/trajectories", self.trajectories),
            _route("POST", f"{session}/reward", self.reward),
            _route("POST", f"{session}/end", self.end),
            _route("DELETE", session, self.discard),
        ]

    async def chat(self, request: Request) -> Response:
        asked = read_request(await read_body(request, self._settings.max_body), self._settings.name)
        asked = replace(asked, agent=request.path_params.get("agent", ""))
        id = f"chatcmpl-{secrets.token_hex(12)}"
        names = request.headers.get(SESSION), _as_sent(request.headers.get(TASK))
        await self._gate.enter()
        if asked.stream:
            return EventStream(self._streamed(asked, names, id), self._gate.leave)
        try:
            reply = await cancel_on_disconnect(request, self._agent.answer(asked, *names))
        finally:
            self._gate.leave()
        return json_response(completion(asked, reply, id), headers={SESSION: reply.session})

    async def _streamed(self, asked: ChatRequest, names: tuple[str | None, str | None], id: str) -> Iterable[bytes]:
        return chunks(asked, await self._agent.answer(asked, *names), id)

    async def models(self, _: Request) -> Response:
        name = self._settings.name
        return json_response({"object": "list", "data": [self._model(one) for one in (name, name + PLAIN)]})

    async def model(self, request: Request) -> Response:
        name, names = request.path_params["model"], (self._settings.name, self._settings.name + PLAIN)
        if not name:  # `/v1/models/`
            return await self.models(request)
        if name not in names:
            raise RequestRefused(404, "model_not_found", f"there is no model '{name}'{nearest(name, names)}")
        return json_response(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._began, "owned_by": "retcon"}

    async def health(self, _: Request) -> Response:
        about = {"status": "ok", "version": __version__, "model": self._settings.name}
        return json_response({**about, "sessions": len(self._agent.sessions), "running": self._gate.inside})

    async def sessions(self, _: Request) -> Response:
        return json_response({"object": "list", "data": [_about(one) for one in self._agent.sessions]})

    async def session(self, request: Request) -> Response:
        return json_response(_about(self._named(request)))

    async def trajectories(self, request: Request) -> Response:
        lines = map(jsonl.line_of, self._named(request).trajectories(self._agent.provenance))
        return Response(b"".join(lines), media_type="application/jsonl")

    async def reward(self, request: Request) -> Response:
        body = parse_request(await read_body(request, self._settings.max_body), RewardBody)
        session = self._named(request)
        if not math.isfinite(body.reward):
            raise invalid_request("reward", f"{body.reward} is not a finite number")
        known = [t.id for t in session.trajectories(self._agent.provenance)]
        if body.trajectory is not None and body.trajectory not in known:
            hint = nearest(body.trajectory, known)
            raise invalid_request("trajectory", f"the session has no trajectory '{body.trajectory}'{hint}")
        if body.end:  # before any change
            self._agent.sessions.check_not_running(session)
        before = dict(session.rewards)
        session.rewards[body.trajectory or ""] = body.reward
        if body.end:
            return await self.end(request)
        try:
            self._agent.keep(session)
        except RequestRefused:
            session.rewards = before
            raise
        return json_response(_about(session))

    async def end(self, request: Request) -> Response:
        session = self._named(request)
        return json_response(
            {**_about(session), "open": False, "data": list(map(_brief, await self._agent.end(session)))}
        )

    async def discard(self, request: Request) -> Response:
        session = self._named(request)
        await self._agent.discard(session)
        return json_response({**_about(session), "open": False})

    def _named(self, request: Request) -> AgentSession:
        return self._agent.sessions.get(request.path_params["session"])


@asynccontextmanager
async def open_app(agent: Agent) -> AsyncIterator[ASGIApp]:
    """Provide an agent's application, and end all sessions after the block."""
    endpoint = Endpoint(agent)
    routes = endpoint.routes()
    paths = [route.path for route in routes]
    app = Starlette(routes=routes, exception_handlers=exception_handlers(paths, openai_error_body))
    try:
        yield AccessMiddleware(app, agent.settings.token, ("/health",), openai_error_body, Counter())
    finally:
        await agent.end_all()


def _route(method: str, path: str, handler: Handler) -> Route:
    return Route(path, with_error_responses(handler, openai_error_body), methods=[method])


def _as_sent(header: str | None) -> str | None:
    """Decode a header as UTF-8, which starlette reads as Latin-1."""
    try:
        return None if header is None else header.encode("latin-1").decode()
    except UnicodeDecodeError:
        return header


def _about(session: AgentSession) -> dict[str, Any]:
    return {
        "id": session.id,
        "object": "session",
        "task": session.task,
        "open": True,
        "requests": session.requests,
        "running": session.running,
        "trajectories": sum(1 for _ in session.nodes()),
        "tokens": session.tokens,
        "reward": session.rewards.get(""),
    }


def _brief(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "id": trajectory.id,
        "turns": len(trajectory.turns),
        "calls": trajectory.raw_calls,
        "failed": trajectory.raw_failures,
        "reward": trajectory.reward,
    }
