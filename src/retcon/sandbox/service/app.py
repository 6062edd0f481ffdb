"""ASGI application of the sandbox: routes, `/openapi.json` and `/docs`."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from html import escape
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from retcon import __version__
from retcon.http.endpoints import (
    AccessMiddleware,
    DrainState,
    Handler,
    cancel_on_disconnect,
    exception_handlers,
    json_response,
    parse_body,
    read_body,
    with_error_responses,
)
from retcon.sandbox.pool.paths import WRITABLE
from retcon.sandbox.service.calls import (
    CONTENT_TYPE,
    Calls,
    ServedSandbox,
    Settings,
    fastapi_error_body,
    own_error_body,
)
from retcon.sandbox.service.foreign import (
    BatchJudgeResult,
    BatchRunResult,
    BatchSubmission,
    CodeJudgeApi,
    FusionApi,
    JudgeResult,
    Languages,
    RunCode,
    RunCodeResponse,
    RunJupyter,
    RunJupyterResponse,
    RunResult,
    Status,
    Submission,
    busy_as_504,
)
from retcon.sandbox.service.own import Batch, Call, Cell, Checkpoint, Open, Opened, OwnApi, Results, SessionsApi
from retcon.sandbox.types import Result, Tier

REFERENCE = "#/components/schemas/"
JSON = "application/json"


class Endpoint(NamedTuple):
    """One route.

    Args:
        api: format of its bodies and errors.
        says: its purpose, in one sentence.
        asks, answers: types of the bodies, None without one; `str` for text.
        status: of a success.
    """

    api: Literal["retcon", "code-judge", "SandboxFusion"]
    method: str
    path: str
    handler: Handler
    says: str
    asks: Any = None
    answers: Any = None
    status: int = 200


class Fault(Struct):
    """An error. type: a stable identifier. field: path to the invalid field of the body, null if none is."""

    type: str
    field: str | None
    message: str


class Refusal(Struct):
    error: Fault


class Detail(Struct):
    type: str
    loc: list[str | int]
    msg: str


class Details(Struct):
    """An error in FastAPI's format."""

    detail: list[Detail]


def document(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    """Describe the endpoints as an OpenAPI 3.1 document."""
    endpoints = list(endpoints)
    kinds = [kind for one in endpoints for kind in (one.asks, one.answers) if kind not in (None, str)]
    kinds += [Refusal, Details]
    references, components = msgspec.json.schema_components(kinds, ref_template=REFERENCE + "{name}")
    schemas = {id(kind): schema for kind, schema in zip(kinds, references, strict=True)}
    paths: dict[str, Any] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Retcon's sandbox",
            "version": version,
            "description": "Runs untrusted Python. Where the server has a token, send it: `Authorization: Bearer …`.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(one: Endpoint, schemas: dict[int, Any]) -> dict[str, Any]:
    refusal = schemas[id(Refusal if one.api == "retcon" else Details)]
    responses: dict[str, Any] = {str(one.status): {"description": "It was served."}}
    if one.answers is not None:
        content = {"text/plain": {}} if one.answers is str else {JSON: {"schema": schemas[id(one.answers)]}}
        responses[str(one.status)]["content"] = content
    responses["default"] = {"description": "It was refused.", "content": {JSON: {"schema": refusal}}}
    operation: dict[str, Any] = {"summary": one.says, "tags": [one.api], "responses": responses}
    if one.asks is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[id(one.asks)]}}}
    if names := re.findall(r"{(\w+)}", one.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    return operation


STYLE = "body { font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto } b { color: #06c } pre { color: #444 }"


def page(document: dict[str, Any]) -> str:
    """Render the document as HTML without scripts: each endpoint, then the JSON schema of each body."""
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    parts = [f"<h1>{title}</h1><p>{escape(document['info']['description'])}</p>"]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>.</p>')
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            bodies = dict.fromkeys(re.findall(rf"{REFERENCE}(\w+)", msgspec.json.encode(operation).decode()))
            links = " · ".join(f'<a href="#{name}">{name}</a>' for name in bodies)
            parts.append(f"<h3><b>{method.upper()}</b> {escape(path)} ({operation['tags'][0]})</h3>")
            parts.append(f"<p>{escape(operation['summary'])} {links}</p>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = msgspec.json.format(msgspec.json.encode(schema), indent=1).decode()
        parts.append(f'<h3 id="{name}">{name}</h3><pre>{escape(text)}</pre>')
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        + "".join(parts)
    )


OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""Served without a token: they describe every server of this version."""
_SHAPES = {
    "retcon": own_error_body,
    "code-judge": fastapi_error_body,
    "SandboxFusion": fastapi_error_body,
}


class Health(Struct):
    status: str
    tier: Tier
    workers: int
    version: str


def create_app(
    sandbox: ServedSandbox, tier: Tier, settings: Settings, folders: Collection[str] = WRITABLE
) -> AccessMiddleware:
    """Create the service of a sandbox, which the caller opens and closes. tier: protection around its calls. folders:
    where they take files by absolute path, in the tier `namespaces`."""
    calls = Calls(sandbox, tier, settings, folders)
    languages = Languages(calls)
    own, sessions = OwnApi(calls), SessionsApi(calls)
    judge, fusion = CodeJudgeApi(calls, languages), FusionApi(calls, languages)

    async def health(_: Request) -> Response:
        return json_response(Health("ok", tier, settings.workers, __version__))

    async def metrics(_: Request) -> Response:
        gauges = {
            "queue_length": ("Calls that wait for a worker.", calls.queued),
            "workers": ("Calls that can run at a time.", settings.workers),
            "running": ("Calls that run.", min(calls.gate.inside, settings.workers)),
            "sessions": ("Sessions that are open.", sandbox.open_sessions),
        }
        return Response(calls.metrics.text(gauges), media_type=CONTENT_TYPE)

    async def ping(_: Request) -> Response:
        return json_response("pong")

    session = "/v1/sessions/{session}"
    ours, theirs, fusions = (partial(Endpoint, api) for api in ("retcon", "code-judge", "SandboxFusion"))

    def run(work: Callable[[Any], Coroutine[Any, Any, Struct | Result]], kind: type[Struct]) -> Handler:
        """Make a handler: parse the body as `kind`, return the result of `work`."""

        async def handle(request: Request) -> Response:
            body = parse_body(await read_body(request, settings.max_body), kind)
            return json_response(await cancel_on_disconnect(request, work(body)))

        return handle

    def judging(
        path: str, work: Callable[[Any], Coroutine[Any, Any, Struct]], says: str, *kinds: type[Struct]
    ) -> Endpoint:
        asks, answers = kinds
        return theirs("POST", path, run(work, asks), says, asks, answers)

    run_code = busy_as_504(calls, run(fusion.run_code, RunCode), RunCodeResponse)
    run_jupyter = busy_as_504(calls, run(fusion.run_jupyter, RunJupyter), RunJupyterResponse)
    run_long, judge_long = partial(judge.run_batch, patient=True), partial(judge.judge_batch, patient=True)
    endpoints = [  # searched in this order at every request
        ours("POST", "/v1/run", run(own.run, Call), "Run a program.", Call, Result),
        judging("/run", judge.run, "Run a program.", Submission, RunResult),
        fusions("POST", "/run_code", run_code, "Run a program.", RunCode, RunCodeResponse),
        ours("POST", f"{session}/run", sessions.run, "Run a cell.", Cell, Result),
        fusions("POST", "/run_jupyter", run_jupyter, "Run a notebook's cells.", RunJupyter, RunJupyterResponse),
        ours("POST", "/v1/batch", own.batch, "Run programs; with `stream` a line for each as it ends.", Batch, Results),
        ours("POST", "/v1/sessions", sessions.open, "Open a session.", Open, Opened, 201),
        ours("POST", f"{session}/checkpoints", sessions.checkpoint, "Freeze its state.", None, Checkpoint, 201),
        ours("POST", f"{session}/rollback", sessions.rollback, "Go to a checkpoint.", Checkpoint, Checkpoint),
        ours("DELETE", f"{session}/checkpoints/{{checkpoint}}", sessions.discard, "Free a checkpoint.", status=204),
        ours("GET", session, sessions.show, "Whether the session is there, and to keep one that is new.", None, Opened),
        ours("DELETE", session, sessions.close, "Close a session.", status=204),
        ours("GET", "/health", health, "Whether the server is there; no token is needed.", None, Health),
        ours("GET", "/metrics", metrics, "Counts, in Prometheus' text format.", None, str),
        judging("/run/batch", judge.run_batch, "Run programs.", BatchSubmission, BatchRunResult),
        judging("/run/long-batch", run_long, "Run many programs.", BatchSubmission, BatchRunResult),
        judging("/judge", judge.judge, "Run a program and compare its output.", Submission, JudgeResult),
        judging("/judge/batch", judge.judge_batch, "Judge programs.", BatchSubmission, BatchJudgeResult),
        judging("/judge/long-batch", judge_long, "Judge many.", BatchSubmission, BatchJudgeResult),
        theirs("GET", "/status", judge.status, "How many calls wait, and how many can run at a time.", None, Status),
        theirs("GET", "/ping", ping, 'Answers "pong".'),
        fusions("GET", "/v1/ping", ping, 'Answers "pong".'),
    ]
    described = document(endpoints, __version__)
    pages = {"/openapi.json": json_response(described), "/docs": HTMLResponse(page(described))}
    routes = [
        Route(one.path, with_error_responses(one.handler, _SHAPES[one.api]), methods=[one.method]) for one in endpoints
    ]
    routes += [Route(path, partial(_same, response), methods=["GET"]) for path, response in pages.items()]
    paths = [route.path for route in routes]
    app = Starlette(routes=routes, exception_handlers=exception_handlers(paths, own_error_body))
    draining = DrainState(settings.drain, lambda: calls.gate.inside + calls.gate.waiting + sandbox.open_sessions)
    return AccessMiddleware(app, settings.token, OPEN_PATHS, own_error_body, calls.metrics.requests, draining)


async def _same(response: Response, _: Request) -> Response:
    return response
