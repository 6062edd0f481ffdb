"""The ASGI application: what stands at which path, and who may ask."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from msgspec import Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retcon import __version__
from retcon.core.errors import nearest
from retcon.sandbox.service.apis.code_judge import (
    BatchJudged,
    BatchRan,
    BatchSubmission,
    CodeJudgeApi,
    Judged,
    Ran,
    Status,
    Submission,
)
from retcon.sandbox.service.apis.fusion import CodeRan, FusionApi, RunCode
from retcon.sandbox.service.apis.jupyter import JupyterApi, JupyterRan, RunJupyter
from retcon.sandbox.service.apis.languages import Languages
from retcon.sandbox.service.apis.own import Batch, Call, Cell, OwnApi, Results
from retcon.sandbox.service.apis.own_sessions import Checkpoint, Open, Opened, SessionsApi
from retcon.sandbox.service.calls import Calls
from retcon.sandbox.service.draining import Draining
from retcon.sandbox.service.http import answer, serving
from retcon.sandbox.service.metrics import CONTENT_TYPE, Metrics
from retcon.sandbox.service.openapi import Endpoint, document, page
from retcon.sandbox.service.refusal import RequestRefused
from retcon.sandbox.service.settings import Settings
from retcon.sandbox.types import Result, Sandbox, Tier

OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""Answered without a token: they say what every server of this version does."""
_SHAPES = {
    "retcon": RequestRefused.as_own,
    "code-judge": RequestRefused.as_fastapi,
    "SandboxFusion": RequestRefused.as_fastapi,
}


class Health(Struct):
    status: str
    tier: Tier
    workers: int
    version: str


def create_app(sandbox: Sandbox, tier: Tier, settings: Settings) -> Front:
    """The service over a sandbox, which the caller opens and closes. tier: what holds around its calls."""
    calls = Calls(sandbox, tier, settings)
    languages = Languages(calls)
    own, sessions = OwnApi(calls), SessionsApi(calls)
    judge, fusion, jupyter = CodeJudgeApi(calls, languages), FusionApi(calls, languages), JupyterApi(calls)

    async def health(_: Request) -> Response:
        return answer(Health("ok", tier, settings.workers, __version__))

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

    session = "/v1/sessions/{session}"
    ours, theirs = partial(Endpoint, "retcon"), partial(Endpoint, "code-judge")
    fusions = partial(Endpoint, "SandboxFusion")
    endpoints = [  # looked through in this order at every request
        ours("POST", "/v1/run", own.run, "Run a program.", Call, Result),
        theirs("POST", "/run", judge.run, "Run a program.", Submission, Ran),
        fusions("POST", "/run_code", fusion.run_code, "Run a program.", RunCode, CodeRan),
        ours("POST", f"{session}/run", sessions.run, "Run a cell.", Cell, Result),
        fusions("POST", "/run_jupyter", jupyter.run_jupyter, "Run a notebook's cells.", RunJupyter, JupyterRan),
        ours("POST", "/v1/batch", own.batch, "Run programs; with `stream` a line for each as it ends.", Batch, Results),
        ours("POST", "/v1/sessions", sessions.open, "Open a session.", Open, Opened, 201),
        ours("POST", f"{session}/checkpoints", sessions.checkpoint, "Freeze its state.", None, Checkpoint, 201),
        ours("POST", f"{session}/rollback", sessions.rollback, "Go to a checkpoint.", Checkpoint, Checkpoint),
        ours("DELETE", f"{session}/checkpoints/{{checkpoint}}", sessions.discard, "Free a checkpoint.", status=204),
        ours("DELETE", session, sessions.close, "Close a session.", status=204),
        ours("GET", "/health", health, "Whether the server is there; no token is needed.", None, Health),
        ours("GET", "/metrics", metrics, "Counts, in Prometheus' text format.", None, str),
        theirs("POST", "/run/batch", judge.run_batch, "Run programs.", BatchSubmission, BatchRan),
        theirs("POST", "/run/long-batch", judge.run_long_batch, "Run many programs.", BatchSubmission, BatchRan),
        theirs("POST", "/judge", judge.judge, "Run a program and compare its output.", Submission, Judged),
        theirs("POST", "/judge/batch", judge.judge_batch, "Judge programs.", BatchSubmission, BatchJudged),
        theirs("POST", "/judge/long-batch", judge.judge_long_batch, "Judge many.", BatchSubmission, BatchJudged),
        theirs("GET", "/status", judge.status, "How many calls wait, and how many can run at a time.", None, Status),
        theirs("GET", "/ping", ping, 'Answers "pong".'),
        fusions("GET", "/v1/ping", ping, 'Answers "pong".'),
    ]
    said = document(endpoints, __version__)
    pages = {"/openapi.json": answer(said), "/docs": HTMLResponse(page(said))}
    routes = [Route(one.path, serving(one.handler, _SHAPES[one.api]), methods=[one.method]) for one in endpoints]
    routes += [Route(path, partial(_same, response), methods=["GET"]) for path, response in pages.items()]
    paths = [route.path for route in routes]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _http_error(paths), Exception: _broken},
    )
    draining = Draining(settings.drain, lambda: calls.gate.inside + calls.gate.waiting + len(sessions))
    return Front(app, settings.token, calls.metrics, draining=draining)


async def _same(response: Response, _: Request) -> Response:
    return response


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
        refused = RequestRefused(error.status_code, "no_such_endpoint", said)
        return answer(refused.as_own(), error.status_code, dict(error.headers or {}))

    return handler


async def _broken(_: Request, error: Exception) -> Response:
    """A fault of this program: its traceback goes to the log, not to the client."""
    return answer(RequestRefused(500, "internal", f"{type(error).__name__}: see the server's log").as_own(), 500)


class Front:
    """Asks for the token and counts answers, around everything else. open_paths: answered without a token. shape: of
    an error's body. draining: what it does before it ends, if anything."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        metrics: Metrics,
        *,
        open_paths: Sequence[str] = OPEN_PATHS,
        shape: Callable[[RequestRefused], dict[str, Any]] = RequestRefused.as_own,
        draining: Draining | None = None,
    ) -> None:
        self._app = app
        self.draining = draining
        self._wanted = None if token is None else f"Bearer {token}".encode()
        self._metrics = metrics
        self._open_paths, self._shape = open_paths, shape

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.requests[message["status"]] += 1
            await send(message)

        refused = None if scope["path"] in self._open_paths else self._refused(scope)
        if refused is None and self.draining is not None:
            refused = self.draining.refused(scope["method"], scope["path"])
        if refused is None:
            await self._app(scope, receive, counted)
            return
        response = answer(self._shape(refused), refused.status, {**(refused.headers or {}), "Connection": "close"})
        await response(scope, receive, counted)

    def _refused(self, scope: Scope) -> RequestRefused | None:
        given = dict(scope["headers"])
        if self._wanted is not None:
            if hmac.compare_digest(given.get(b"authorization", b""), self._wanted):
                return None
            said = "give the server's token: Authorization: Bearer …"
            return RequestRefused(401, "unauthorized", said, headers={"WWW-Authenticate": "Bearer"})
        if b"origin" in given:  # any page may send requests to its reader's own machine, and browsers say that it did
            return RequestRefused(403, "from_a_browser", "a server without a token takes no requests of web pages")
        return None
