"""The ASGI application: what stands at which path, and who may ask."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retcon import __version__
from retcon.core.errors import nearest
from retcon.sandbox.service.calls import Calls
from retcon.sandbox.service.code_judge import CodeJudgeApi
from retcon.sandbox.service.fusion import FusionApi
from retcon.sandbox.service.http import Handler, answer, serving
from retcon.sandbox.service.metrics import CONTENT_TYPE, Metrics
from retcon.sandbox.service.own import OwnApi
from retcon.sandbox.service.refusal import Refused
from retcon.sandbox.service.sessions import SessionsApi
from retcon.sandbox.service.settings import Settings
from retcon.sandbox.types import Sandbox, Tier

OPEN_PATHS = ("/health",)
"""Answered without a token."""


def create_app(sandbox: Sandbox, tier: Tier, settings: Settings) -> ASGIApp:
    """The service over a sandbox, which the caller opens and closes. tier: what holds around its calls."""
    calls = Calls(sandbox, tier, settings)
    own, sessions, judge, fusion = OwnApi(calls), SessionsApi(calls), CodeJudgeApi(calls), FusionApi(calls)

    async def health(_: Request) -> Response:
        return answer({"status": "ok", "tier": tier, "workers": settings.workers, "version": __version__})

    async def metrics(_: Request) -> Response:
        gauges = {
            "queue_length": ("Calls that wait for a worker.", calls.queued),
            "workers": ("Calls that can run at a time.", settings.workers),
            "running": ("Calls that run.", min(calls.gate.inside, settings.workers)),
            "sessions": ("Sessions that are open.", len(sessions)),
        }
        return Response(calls.metrics.text(gauges), media_type=CONTENT_TYPE)

    async def ping(_: Request) -> Response:
        return answer("pong")

    def mine(method: str, path: str, handler: Handler) -> Route:
        return Route(path, serving(handler, Refused.as_own), methods=[method])

    def theirs(method: str, path: str, handler: Handler) -> Route:
        return Route(path, serving(handler, Refused.as_fastapi), methods=[method])

    session = "/v1/sessions/{session}"
    routes = [  # looked through in this order at every request
        mine("POST", "/v1/run", own.run),
        theirs("POST", "/run", judge.run),
        theirs("POST", "/run_code", fusion.run_code),
        mine("POST", f"{session}/run", sessions.run),
        mine("POST", "/v1/batch", own.batch),
        mine("POST", "/v1/sessions", sessions.open),
        mine("POST", f"{session}/checkpoints", sessions.checkpoint),
        mine("POST", f"{session}/rollback", sessions.rollback),
        mine("DELETE", f"{session}/checkpoints/{{checkpoint}}", sessions.discard),
        mine("DELETE", session, sessions.close),
        mine("GET", "/health", health),
        mine("GET", "/metrics", metrics),
        theirs("POST", "/run/batch", judge.run_batch),
        theirs("POST", "/run/long-batch", judge.run_long_batch),
        theirs("POST", "/judge", judge.judge),
        theirs("POST", "/judge/batch", judge.judge_batch),
        theirs("POST", "/judge/long-batch", judge.judge_long_batch),
        theirs("GET", "/status", judge.status),
        theirs("GET", "/ping", ping),
        theirs("GET", "/v1/ping", ping),
    ]
    paths = [route.path for route in routes]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error(paths), Exception: _broken},
    )
    return Front(app, settings.token, calls.metrics)


def _http_error(paths: list[str]) -> Callable[[Request, Exception], Any]:
    """Answers what no route takes: the path, or the method, is wrong."""

    async def handler(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        said = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            said = f"nothing is at {request.url.path}{nearest(request.url.path, paths)}"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            said = f"{request.url.path} does not take {request.method}"
        refused = Refused(error.status_code, "no_such_endpoint", said)
        return answer(refused.as_own(), error.status_code, dict(error.headers or {}))

    return handler


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of this program: its traceback goes to the log, not to the client."""
    return answer(Refused(500, "internal", f"{type(error).__name__}: see the server's log").as_own(), 500)


class Front:
    """Asks for the token and counts answers, around everything else."""

    def __init__(self, app: ASGIApp, token: str | None, metrics: Metrics) -> None:
        self._app = app
        self._wanted = None if token is None else f"Bearer {token}".encode()
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests[message["status"]] += 1
            await send(message)

        refused = None if scope["path"] in OPEN_PATHS else self._refused(scope)
        if refused is None:
            await self._app(scope, receive, counted)
            return
        response = answer(refused.as_own(), refused.status, {**(refused.headers or {}), "Connection": "close"})
        await response(scope, receive, counted)

    def _refused(self, scope: Scope) -> Refused | None:
        given = dict(scope["headers"])
        if self._wanted is not None:
            if hmac.compare_digest(given.get(b"authorization", b""), self._wanted):
                return None
            said = "give the server's token: Authorization: Bearer …"
            return Refused(401, "unauthorized", said, headers={"WWW-Authenticate": "Bearer"})
        if b"origin" in given:  # any page may send requests to its reader's own machine, and browsers say that it did
            return Refused(403, "from_a_browser", "a server without a token takes no requests of web pages")
        return None
