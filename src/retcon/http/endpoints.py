"""What all endpoints share: reading a body, answering JSON, and ending work that nobody waits for any more."""

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

    status: of HTTP. kind: a word that programs can rely on. field: path to what is wrong (`calls[3].timeout`), None
    where it is no field of the body. headers: of the answer. extra: further members of its body.
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
"""The body of a refusal, as an API has it."""
DISCARDED_BODIES = 4
"""Of a body that is too long, this many times the limit is still read, so that its sender gets to read the answer."""

_encoder = msgspec.json.Encoder()


def encode_json(value: Any) -> bytes:
    """JSON. Text that is no Unicode (lone surrogates, which JSON can carry and UTF-8 cannot) is escaped."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode_json(value), status, headers, "application/json")


def error_response(refused: RequestRefused, shape: Shape, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is not served. headers: beside the refusal's own."""
    return json_response(shape(refused), refused.status, {**refused.headers, **(headers or {})})


def with_error_responses(handler: Handler, shape: Shape) -> Handler:
    """The handler, its refusals answered in the shape that its API has for errors."""

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
    """Handlers of an application's exceptions: for what none of its routes takes, as the path or the method is wrong,
    and for faults of this program, whose traceback goes to the log, not to the client. paths: of the routes."""

    async def no_such(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        said = error.detail
        if error.status_code == HTTPStatus.NOT_FOUND:
            said = f"nothing is at {request.url.path}{nearest(request.url.path, paths)}"
        elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            said = f"{request.url.path} does not take {request.method}"
        return error_response(RequestRefused(error.status_code, "no_such_endpoint", said), shape, error.headers)

    async def broken(_: Request, error: Exception) -> Response:
        said = f"{type(error).__name__}: see the server's log"
        return error_response(RequestRefused(500, "internal", said), shape)

    return {HTTPException: no_such, Exception: broken}


async def read_body(request: Request, limit: int) -> bytes:
    """Raises RequestRefused (413) where it is longer than `limit` bytes, ClientDisconnected where it breaks off."""
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
    """Whoever asked has closed the connection."""


async def cancel_on_disconnect(
    request: Request, work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """What `work` comes to. It is cancelled, and ClientDisconnected raised, when the client closes the connection.

    undo: of a result that came and that nobody is there to read.
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
    """Waits until the client closes the connection; what it sends before is passed over."""
    while (await receive())["type"] != "http.disconnect":
        pass


Body = TypeVar("Body", bound=msgspec.Struct)

_FIELD = re.compile(r"(?:(unknown)|missing required) field `(.*)`", re.DOTALL)
_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
SHOWN = 100
"""Characters of a name or value of the caller's that an error repeats."""


def parse_body(body: bytes, kind: type[Body]) -> Body:
    """The body as a `kind`.

    Read by the standard library's parser: it takes lone surrogates, which a model's program may hold, and whose error
    is then the program's own. Raises RequestRefused (400 for what is no JSON, 422 for what is no `kind`).
    """
    try:
        data = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(400, "invalid_json", f"the body is not JSON: {error}") from error
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _named(str(error), kind) from error
    except UnicodeEncodeError as error:  # of the name of a field, or of what has to be one of some words
        raise RequestRefused.invalid(None, f"a name in it is not Unicode: {error.reason}") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _named(message: str, kind: type[msgspec.Struct]) -> RequestRefused:
    """Name the field, and the nearest valid name or choice of any body of this kind."""
    # msgspec's own words stand at the end: what the caller wrote may hold the same, thousands of times.
    said, found, place = message.rpartition(" - at `$")
    message, path = (said, place.strip(".`")) if found and len(place) <= SHOWN else (message, "")
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
    """Counts the calls inside, running or queued, `room` at most.

    A single call that finds no room is refused at once. Calls of a batch, whose request the service holds anyway, may
    wait for room instead.
    """

    def __init__(self, room: int) -> None:
        self.inside = self.waiting = 0
        self._places = asyncio.Semaphore(room)

    async def enter(self, *, patient: bool = False) -> None:
        """Raises RequestRefused (503 with Retry-After) where there is no room, unless the call is patient."""
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
class Draining:
    """seconds: for what is open; 0: it gets none. busy: how many calls and sessions are open. Begins with `begin`."""

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
        """Whether nothing is open any more, or its time is up."""
        return self._until is not None and (time.monotonic() >= self._until or not self.busy())

    def refused(self, method: str, path: str) -> RequestRefused | None:
        """What a request is told that would begin something; also whoever asks whether the server is there."""
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


class Front:
    """Asks for the token and counts answers, around everything else. A request whose task is cancelled, as the server
    ends before its answer begins, is told to ask another one (503).

    token: that requests must carry, None to ask for none. open_paths: answered without it. shape: of an error's body.
    answered: how many requests were, by HTTP status. draining: what the server does before it ends, if anything.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        open_paths: Sequence[str],
        shape: Shape,
        answered: Counter[int],
        draining: Draining | None = None,
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
            said = "give the server's token: Authorization: Bearer …"
            return RequestRefused(401, "unauthorized", said, headers={"WWW-Authenticate": "Bearer"})
        if b"origin" in given:  # any page may send requests to its reader's own machine, and browsers say that it did
            return RequestRefused(403, "from_a_browser", "a server without a token takes no requests of web pages")
        host = given.get(b"host", b"").decode("latin-1")
        if _is_here((scope.get("server") or ("",))[0]) and not _is_no_pages_name(host):
            said = f"a server without a token takes no requests for {host!r}, as a page of that name may send them"
            return RequestRefused(403, "from_a_browser", f"{said}: ask for localhost, or give the server a token")
        return None


def _is_here(address: str) -> bool:
    """Whether it is one of this machine's addresses that only this machine reaches; of IPv4's also as a server that
    listens on `::` is told of them, `::ffff:127.0.0.1`."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _is_no_pages_name(host: str) -> bool:
    """Whether a `Host` is an address, localhost, or a name without a dot: none that lies in anyone's domain.

    A name that does may be made to lead here while a page of that name is shown: to the browser the server is then the
    page's own, and it sends no `Origin` with what it reads.
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
