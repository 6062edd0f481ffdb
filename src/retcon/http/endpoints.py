"""Shared parts of HTTP endpoints: request bodies, JSON responses, errors and cancellation."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retcon.core.errors import nearest
from retcon.core.texts import counted


class RequestRefused(Exception):
    """A request that is answered by an HTTP error.

    status: of HTTP. kind: a stable identifier for programs. field: path to the invalid field (`calls[3].timeout`), None
    if no field is at fault. headers: of the response. extra: further members of its body.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.field = field
        self.headers = headers or {}
        self.extra = extra or {}

    @classmethod
    def invalid(cls, field: str | None, message: str) -> RequestRefused:
        return cls(422, "invalid", message, field=field)


T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
Shape = Callable[[RequestRefused], dict[str, Any]]
"""Renders the body of an error response in one API's format."""
DISCARDED_BODIES = 4
"""Multiple of the limit up to which a body is still read, so that its sender can read the response."""

_encoder = msgspec.json.Encoder()


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON; lone surrogates, which UTF-8 cannot hold, are escaped."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, headers, "application/json")


def error_response(refused: RequestRefused, shape: Shape, headers: Mapping[str, str] | None = None) -> Response:
    """Render a refusal as a response. headers: added to the refusal's own."""
    return json_response(shape(refused), refused.status, {**refused.headers, **(headers or {})})


def with_error_responses(handler: Handler, shape: Shape) -> Handler:
    """Wrap a handler so that refusals become error responses of its API."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRefused as refused:
            return error_response(refused, shape)
        except ClientDisconnected:
            return Response(status_code=499)

    return endpoint


def exception_handlers(
    paths: Sequence[str], shape: Shape
) -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
    """Return exception handlers of an application: for unknown paths and methods, and for internal errors.

    Tracebacks go to the log, not to the client. paths: of the routes."""

    async def not_found(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        reason = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            reason = f"nothing is at {request.url.path}{nearest(request.url.path, paths)}"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            reason = f"{request.url.path} does not take {request.method}"
        return error_response(RequestRefused(error.status_code, "no_such_endpoint", reason), shape, error.headers)

    async def internal_error(_: Request, error: Exception) -> Response:
        reason = f"{type(error).__name__}: see the server's log"
        return error_response(RequestRefused(500, "internal", reason), shape)

    return {HTTPException: not_found, Exception: internal_error}


async def read_body(request: Request, limit: int) -> bytes:
    """Read a request's body. Raises RequestRefused (413) above `limit` bytes, ClientDisconnected."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            parts.clear()
            if size > DISCARDED_BODIES * limit:
                raise _too_long(size, limit, at_least=True)
        else:
            parts.append(part)
        if not message.get("more_body", False):
            break
    if size > limit:
        raise _too_long(size, limit)
    return b"".join(parts)


def _too_long(size: int, limit: int, *, at_least: bool = False) -> RequestRefused:
    more = " or more" if at_least else ""
    return RequestRefused(
        413, "too_long", f"a body of {size} bytes{more}: at most {limit}", headers={"Connection": "close"}
    )


class ClientDisconnected(Exception):
    """The client has closed the connection."""


async def cancel_on_disconnect(
    request: Request, work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Return the result of `work`, unless the client disconnects first.

    Then `work` is cancelled and ClientDisconnected raised. undo: called with a result whose client has disconnected.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(request.receive))
    read = False
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientDisconnected
        read = True
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not read and not task.cancelled() and task.exception() is None and undo is not None:
            await undo(task.result())


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client closes the connection; ignore what it sends before."""
    while (await receive())["type"] != "http.disconnect":
        pass


Body = TypeVar("Body", bound=msgspec.Struct)

_FIELD = re.compile(r"(?:(unknown)|missing required) field `(.*)`", re.DOTALL)
_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
SHOWN = 100
"""Most characters of a client's name or value that an error quotes."""


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """Parse a body as a `kind`.

    The standard library's parser accepts lone surrogates, which a model's program may hold: they are then that
    program's error. Raises RequestRefused (400 if it is not JSON, 422 if it is not a `kind`).
    """
    try:
        data = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "invalid_json", f"the body is not JSON: {error}") from error
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _describe_invalid(str(error), kind) from error
    except UnicodeEncodeError as error:  # in a field's name, or in an enum's value
        raise RequestRefused.invalid(None, f"a name in it is not Unicode: {error.reason}") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _describe_invalid(message: str, kind: type[msgspec.Struct]) -> RequestRefused:
    """Return a refusal that names the field and the nearest valid name or choice."""
    # msgspec's path stands at the end: the client's text may hold the same words thousands of times.
    reason, found, place = message.rpartition(" - at `$")
    message, path = (reason, place.strip(".`")) if found and len(place) <= SHOWN else (message, "")
    fields = [
        one for schema in msgspec.json.schema_components([kind])[1].values() for one in schema["properties"].items()
    ]
    if field := _FIELD.search(message):
        name = _shown(field[2])
        path = f"{path}.{name}" if path else name
        if not field[1]:
            return RequestRefused.invalid(path, f"the field '{name}' is missing")
        hint = nearest(name, [other for other, _ in fields if other != name])
        return RequestRefused.invalid(path, f"unknown field '{name}'{hint}")
    if choice := _CHOICE.search(message):
        about = [schema for name, schema in fields if name == path.rpartition(".")[2]]
        valid = [v for schema in about for one in (schema, *schema.get("anyOf", ())) for v in one.get("enum", ())]
        what = f"'{_shown(choice[1])}' is not one of {', '.join(valid)}{nearest(choice[1], valid)}"
        return RequestRefused.invalid(path, what)
    return RequestRefused.invalid(path or None, message.replace("`", ""))


def _shown(name: str) -> str:
    return name if len(name) <= SHOWN else name[: SHOWN - 1] + "…"


RETRY_AFTER_SECONDS = 1


class Gate:
    """Limit on concurrent calls, running or queued: `room` at most.

    A single call beyond it is refused at once. Calls of a batch, whose request the service holds anyway, may wait.
    """

    def __init__(self, room: int) -> None:
        self.inside = self.waiting = 0
        self._places = asyncio.Semaphore(room)

    async def enter(self, *, patient: bool = False) -> None:
        """Take a place. Without room a patient call waits, others raise RequestRefused (503 with Retry-After)."""
        if not patient and self._places.locked():
            raise RequestRefused(
                503,
                "busy",
                f"this server takes {counted(self.inside, 'call')} at a time, running or queued: try again later",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self.waiting += 1
        try:
            await self._places.acquire()
        finally:
            self.waiting -= 1
        self.inside += 1

    def leave(self) -> None:
        self.inside -= 1
        self._places.release()


_OPEN_SESSIONS = "/v1/sessions/"


@dataclass(slots=True)
class DrainState:
    """State of a graceful shutdown. seconds: for what is open, 0: none. busy: counts open calls and sessions."""

    seconds: float
    busy: Callable[[], int]
    _until: float | None = None

    @property
    def on(self) -> bool:
        return self._until is not None

    def begin(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        """Whether nothing is open any more or the time is up."""
        return self._until is not None and (time.monotonic() >= self._until or not self.busy())

    def refused(self, method: str, path: str) -> RequestRefused | None:
        """Return the refusal of new work and of health checks; None for other requests."""
        if not self.on or path.startswith(_OPEN_SESSIONS) or (method == "GET" and path != "/health"):
            return None
        return RequestRefused(503, "draining", "this server is about to end and takes nothing new: ask another one")


_ENDED = RequestRefused(
    503,
    "unavailable",
    "this server has ended before the answer was there: ask another one",
    headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
)
_HOST = re.compile(r"\[([^]]*)](?::\d*)?|([^:]*)(?::\d*)?")


class AccessMiddleware:
    """Outermost middleware: checks the token, and counts responses by HTTP status.

    A request that is cancelled at shutdown, before its response begins, gets a 503. token: that requests must carry, if
    not None. open_paths: served without it. shape: of an error's body. draining: graceful shutdown, if any.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        open_paths: Sequence[str],
        shape: Shape,
        answered: Counter[int],
        draining: DrainState | None = None,
    ) -> None:
        self._app = app
        self.draining = draining
        self._wanted = None if token is None else f"Bearer {token}".encode()
        self._open_paths, self._shape, self._answered = open_paths, shape, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._answered[message["status"]] += 1
            await send(message)

        refused = None if scope["path"] in self._open_paths else self._refused(scope)
        if refused is None and self.draining is not None:
            refused = self.draining.refused(scope["method"], scope["path"])
        if refused is None:
            try:
                await self._app(scope, receive, counted)
            except asyncio.CancelledError:
                if not begun:
                    await self._refuse(_ENDED, scope, receive, counted)
                raise
            return
        await self._refuse(refused, scope, receive, counted)

    async def _refuse(self, refused: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
        response = error_response(refused, self._shape, {"Connection": "close"})
        await response(scope, receive, send)

    def _refused(self, scope: Scope) -> RequestRefused | None:
        given = dict(scope["headers"])
        if self._wanted is not None:
            if hmac.compare_digest(given.get(b"authorization", b""), self._wanted):
                return None
            reason = "give the server's token: Authorization: Bearer …"
            return RequestRefused(401, "unauthorized", reason, headers={"WWW-Authenticate": "Bearer"})
        if b"origin" in given:  # browsers set it when a page sends requests to its reader's machine
            return RequestRefused(403, "from_a_browser", "a server without a token takes no requests of web pages")
        host = given.get(b"host", b"").decode("latin-1")
        if _is_here((scope.get("server") or ("",))[0]) and not _is_not_public(host):
            reason = f"a server without a token takes no requests for {host!r}, as a page of that name may send them"
            return RequestRefused(403, "from_a_browser", f"{reason}: ask for localhost, or give the server a token")
        return None


def _is_here(address: str) -> bool:
    """Whether it is a loopback address; also IPv4's as a server on `::` sees it, `::ffff:127.0.0.1`."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _is_not_public(host: str) -> bool:
    """Whether a `Host` is an address, localhost or a name without a dot, so in no public domain.

    A public name can be pointed here while a page of that name is open (DNS rebinding): the browser then takes the
    server for the page's own, and sends no `Origin` with reads.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2] or "").rstrip(".").lower()
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
