"""What all endpoints share: reading a body, answering JSON, and ending work that nobody waits for any more."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NoReturn, TypeVar, get_type_hints

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from retcon.core.errors import nearest


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


Body = TypeVar("Body", bound=msgspec.Struct)

_PLACE = " - at `"
_PATH = re.compile(r"(?:key in )?\$\.?(.*)`", re.DOTALL)
_INDEX = re.compile(r"\[[^][]*+]")
_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(.*)`")
_CHOICE = re.compile(r"Invalid enum value '(.*)'", re.DOTALL)
SHOWN = 100
"""Characters of a name or value of the caller's that an error repeats."""


def parse(body: bytes, kind: type[Body]) -> Body:
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
    # msgspec's own words stand at the end: what the caller wrote may hold the same, thousands of times.
    said, _, place = message.rpartition(_PLACE)
    path = ""
    if (found := _PATH.fullmatch(place)) and _leads_somewhere(kind, found[1]):
        message, path = said, found[1]
    if unknown := _UNKNOWN.search(message):
        valid, name = _fields_at(kind, path), _shown(unknown[1])
        hint = nearest(unknown[1], valid) or f" (there are {', '.join(valid)})"
        return RequestRefused.invalid(_join(path, name), f"unknown field '{name}'{hint}")
    if missing := _MISSING.search(message):
        return RequestRefused.invalid(_join(path, missing[1]), f"the field '{missing[1]}' is missing")
    if choice := _CHOICE.search(message):
        valid = _choices_at(kind, path)
        what = f"'{_shown(choice[1])}' is not one of {', '.join(valid)}{nearest(choice[1], valid)}"
        return RequestRefused.invalid(path, what)
    return RequestRefused.invalid(path or None, message.replace("`", ""))


def _shown(name: str) -> str:
    return name if len(name) <= SHOWN else name[: SHOWN - 1] + "…"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _fields_at(kind: Any, path: str) -> list[str]:
    inner = _type_at(kind, path)
    return list(inner.__struct_fields__) if hasattr(inner, "__struct_fields__") else []


def _choices_at(kind: Any, path: str) -> list[str]:
    parent, _, name = path.rpartition(".")
    hint = get_type_hints(_type_at(kind, parent))[name]
    info = msgspec.inspect.type_info(hint)
    kinds = info.types if isinstance(info, msgspec.inspect.UnionType) else (info,)
    return [str(v) for k in kinds if isinstance(k, msgspec.inspect.LiteralType) for v in k.values]


def _leads_somewhere(kind: Any, path: str) -> bool:
    """Whether a path is msgspec's own, and not part of a name that the caller chose."""
    for part in _parts(path):
        if kind is None or part not in (hints := get_type_hints(kind)):
            return False
        kind = _struct_in(msgspec.inspect.type_info(hints[part]))
    return True


def _parts(path: str) -> Iterator[str]:
    return filter(None, _INDEX.sub("", path).split("."))


def _type_at(kind: Any, path: str) -> Any:
    """The struct that a path such as `calls[3].limits` leads to."""
    for part in _parts(path):
        info = msgspec.inspect.type_info(get_type_hints(kind)[part])
        kind = _struct_in(info)
    return kind


def _struct_in(info: Any) -> Any:
    if isinstance(info, msgspec.inspect.StructType):
        return info.cls
    if isinstance(info, msgspec.inspect.ListType):
        return _struct_in(info.item_type)
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for part in info.types if (found := _struct_in(part)) is not None), None)
    return None
