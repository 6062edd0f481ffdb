"""What all endpoints share: reading a body, answering JSON, and ending work that nobody waits for any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from retcon.core.errors import nearest
from retcon.http.refusal import RequestRefused

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
Shape = Callable[[RequestRefused], dict[str, Any]]
"""The body of a refusal, as an API has it."""
DISCARDED_BODIES = 4
"""Of a body that is too long, this many times the limit is still read, so that its sender gets to read the answer."""

_encoder = msgspec.json.Encoder()


def encoded(value: Any) -> bytes:
    """JSON. Text that is no Unicode (lone surrogates, which JSON can carry and UTF-8 cannot) is escaped."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded(value), status, headers, "application/json")


def refusal(refused: RequestRefused, shape: Shape, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that is not served. headers: beside the refusal's own."""
    return answer(shape(refused), refused.status, {**refused.headers, **(headers or {})})


def serving(handler: Handler, shape: Shape) -> Handler:
    """The handler, its refusals answered in the shape that its API has for errors."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except RequestRefused as refused:
            return refusal(refused, shape)
        except ClientGone:
            return Response(status_code=499)

    return endpoint


def unserved(paths: Sequence[str], shape: Shape) -> dict[Any, Callable[[Request, Exception], Awaitable[Response]]]:
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
        return refusal(RequestRefused(error.status_code, "no_such_endpoint", said), shape, error.headers)

    async def broken(_: Request, error: Exception) -> Response:
        said = f"{type(error).__name__}: see the server's log"
        return refusal(RequestRefused(500, "internal", said), shape)

    return {HTTPException: no_such, Exception: broken}


async def read_body(request: Request, limit: int) -> bytes:
    """Raises RequestRefused (413) where it is longer than `limit` bytes, ClientGone where it breaks off."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
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


class ClientGone(Exception):
    """Whoever asked has closed the connection."""


async def unless_gone(
    request: Request, work: Coroutine[Any, Any, T], *, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """What `work` comes to. It is cancelled, and ClientGone raised, when the client closes the connection.

    undo: of a result that came and that nobody is there to read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(closed(request.receive))
    read = False
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientGone
        read = True
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
        if not read and not task.cancelled() and task.exception() is None and undo is not None:
            await undo(task.result())


async def closed(receive: Receive) -> None:
    """Waits until the client closes the connection; what it sends before is passed over."""
    while (await receive())["type"] != "http.disconnect":
        pass
