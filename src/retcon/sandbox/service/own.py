"""This service's own API: calls, batches and sessions."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retcon.core.concurrency import cancel_all, gather_or_cancel
from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.http.endpoints import (
    ClientDisconnected,
    RequestRefused,
    cancel_on_disconnect,
    encode_json,
    json_response,
    parse_body,
    read_body,
)
from retcon.sandbox.pool.paths import check_room
from retcon.sandbox.service.calls import (
    Calls,
    ServedSession,
    check_paths,
    check_text,
    decode_files,
    own_error_body,
    unavailable,
)
from retcon.sandbox.types import MOST, SEEDS, TIERS, TOO_LONG, Limits, Program, Result, Tier

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0, le=MOST)]
Output = Annotated[int, Meta(gt=0, le=64 << 20)]
"""Bytes: held by the worker and by this process until the answer is sent."""
Wait = Annotated[float, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=SEEDS - 1)]
NUL = "SyntaxError: source code string cannot contain null bytes"
NDJSON = "application/x-ndjson"


class LimitFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """Members of `Limits`, the server's own where absent."""

    cpu_seconds: Seconds | None = None
    wall_seconds: Seconds | None = None
    memory_mb: Count | None = None
    output_bytes: Output | None = None
    file_mb: Count | None = None
    open_files: Count | None = None
    processes: Count | None = None


class Cell(Struct, forbid_unknown_fields=True, kw_only=True):
    """A program and what it may use: the parameters of `Sandbox.run`, files in base64."""

    code: str
    stdin: str = ""
    timeout: Seconds | None = None
    memory: Count | None = None
    limits: LimitFields | None = None
    files: dict[str, str] = {}
    fetch: list[str] = []
    echo: bool = True


class Call(Cell, forbid_unknown_fields=True, kw_only=True):
    """A cell that runs on its own. tier: the weakest that the caller takes. wait: seconds that it may wait to start.
    seed: of the generators of random numbers, another one in each call where absent."""

    wait: Wait | None = None
    seed: Seed | None = None
    tier: Tier | None = None


class Batch(Struct, forbid_unknown_fields=True, kw_only=True):
    """stream: each result as soon as it is there, rather than all in order."""

    calls: Annotated[list[Call], Meta(min_length=1)]
    stream: bool = False


class Results(Struct):
    """What `/v1/batch` answers, in the calls' order; streamed it is lines of `index` and `result`."""

    results: list[Result]


class ProgramRefused(RequestRefused):
    """No request may have such code; but a model may have written it, and to a caller who runs what models write it is
    a failed program like others. result: that it would have; the body of the refusal has it too."""

    def __init__(self, message: str, *, field: str, result: Result) -> None:
        super().__init__(422, "invalid", message, field=field, extra={"result": msgspec.to_builtins(result)})
        self.result = result


class OwnApi:
    """`/v1/run` and `/v1/batch`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run(self, call: Call) -> Result:
        return await self._run(checked_call(self._calls, call))

    async def batch(self, request: Request) -> Response:
        batch = parse_body(await read_body(request, self._calls.settings.max_body), Batch)
        self._calls.check_count(batch.calls, "calls")
        programs = await cancel_on_disconnect(request, self._checked(batch.calls))
        if batch.stream:
            return Streamed(self._stream(programs))
        results = cancel_on_disconnect(
            request, gather_or_cancel([self._settled(i, program) for i, program in enumerate(programs)])
        )
        return json_response(Results(await results))

    async def _checked(self, calls: Sequence[Call]) -> list[Program | Result]:
        """What each call runs, or its result where Python takes no such program. Other requests are served between any
        two: a call may have thousands of paths."""
        programs: list[Program | Result] = []
        for i, call in enumerate(calls):
            try:
                programs.append(checked_call(self._calls, call, f"calls[{i}]."))
            except ProgramRefused as refused:
                programs.append(refused.result)
            await asyncio.sleep(0)
        return programs

    async def _run(self, program: Program, *, patient: bool = False) -> Result:
        return await self._calls.run("v1", lambda: self._calls.sandbox.run(program), patient=patient)

    async def _of_batch(self, program: Program | Result) -> Result:
        return program if isinstance(program, Result) else await self._run(program, patient=True)

    async def _settled(self, index: int, program: Program | Result) -> Result:
        """A call of a batch, whose other results are not lost where there is no room for it, or no worker."""
        try:
            return await self._of_batch(program)
        except RequestRefused as refused:
            if refused.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise RequestRefused.invalid(f"calls[{index}]", refused.message) from refused
            return Result("infrastructure", stderr=refused.message)

    async def _stream(self, programs: list[Program | Result]) -> AsyncGenerator[bytes, None]:
        """A line for each call as it ends: its place in the batch, and its result or what is wrong with it."""

        async def one(index: int, program: Program | Result) -> bytes:
            try:
                line: dict[str, Any] = {"index": index, "result": await self._of_batch(program)}
            except RequestRefused as refused:
                line = {"index": index, **own_error_body(refused)}
            return encode_json(line) + b"\n"

        tasks = [asyncio.ensure_future(one(i, program)) for i, program in enumerate(programs)]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            await cancel_all(tasks)


def checked_call(calls: Calls, call: Call, at: str = "") -> Program:
    """What the sandbox is asked to run. Raises RequestRefused that names the field, behind `at`."""
    if call.tier is not None and TIERS.index(call.tier) < TIERS.index(calls.tier):
        raise RequestRefused.invalid(
            f"{at}tier", f"tier '{call.tier}' is unavailable here: this server's is '{calls.tier}'"
        )
    program = checked_cell(calls, call, calls.settings.limits, calls.tier, at)
    return replace(program, wait=call.wait, seed=call.seed)


def checked_cell(calls: Calls, cell: Cell, limits: Limits, tier: str = "", at: str = "") -> Program:
    """As `checked_call`, for a session's cell. limits: of a cell that asks for none. tier: whose absolute paths its
    files may have; a session's have none."""
    if not cell.code:
        raise RequestRefused.invalid(f"{at}code", "there is no code: give at least a comment")
    if (problem := calls.too_long(cell.code)) is not None:
        result = Result("limit", TOO_LONG, stderr=f"{TOO_LONG}: {problem}\n")
        raise ProgramRefused(problem, field=f"{at}code", result=result)
    if "\0" in cell.code:
        result = Result("error", "SyntaxError", stderr=f"{NUL}\n", exit_code=1)
        message = f"NUL at character {cell.code.index(chr(0))}: Python takes none in a program"
        raise ProgramRefused(message, field=f"{at}code", result=result)
    check_text(cell.stdin, f"{at}stdin", "surrogateescape")
    calls.check_bounds({f"{at}timeout": cell.timeout}, {f"{at}memory": cell.memory})
    files = decode_files(cell.files, f"{at}files", tier, calls.folders)
    try:
        check_room(files, cell.stdin)
    except ValueError as error:
        raise RequestRefused.invalid(at.removesuffix(".") or None, str(error)) from error
    return Program(
        cell.code,
        stdin=cell.stdin,
        limits=checked_limits(calls, cell.limits, limits, at).with_(cell.timeout, cell.memory),
        files=files,
        fetch=check_paths(cell.fetch, f"{at}fetch", calls.tier, calls.folders),
        echo=cell.echo,
    )


def checked_limits(calls: Calls, asked: LimitFields | None, limits: Limits, at: str = "") -> Limits:
    """`limits` with those that were asked for in place. Raises RequestRefused for one above what the service allows."""
    if asked is None:
        return limits
    given = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
    seconds = {f"{at}limits.{name}": given.get(name) for name in ("cpu_seconds", "wall_seconds")}
    calls.check_bounds(seconds, {f"{at}limits.memory_mb": given.get("memory_mb")})
    return replace(limits, **given)


class Streamed(Response):
    """A response whose lines are sent as they come; its source is closed when the client goes away."""

    media_type = NDJSON

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnected):
            await cancel_on_disconnect(Request(scope, receive), self._send(send))

    async def _send(self, send: Send) -> None:
        async with contextlib.aclosing(self._lines):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for line in self._lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


T = TypeVar("T")
KEY = "idempotency-key"
REMEMBERED = 4
"""Answers that are kept for a client that asks again with the same key, beside those that are not there yet."""
RECONNECT_SECONDS = 10.0
"""How long what a vanished client asked of a session, under a key, goes on: it may ask again."""


class KeyedTask(Generic[T]):
    """Work of a request that carries an idempotency key.

    digest: of the request. patience: seconds that the work goes on without a reader. giving_up: set while there is
    none.
    """

    def __init__(self, digest: bytes, task: asyncio.Task[T], patience: float) -> None:
        self.digest = digest
        self.task = task
        self.patience = patience
        self.readers = 0
        self.giving_up: asyncio.TimerHandle | None = None
        self.given_up = "its work was abandoned: no client waited for the answer"

    async def read(self, request: Request) -> T:
        """Raises ClientDisconnected, SessionLost where the work was given up, and what the work raises."""
        self.readers += 1
        if self.giving_up is not None:
            self.giving_up.cancel()
        try:
            return await cancel_on_disconnect(request, self._shielded())
        except ClientDisconnected:
            if self.readers == 1:
                self.giving_up = asyncio.get_running_loop().call_later(self.patience, self.task.cancel)
            raise
        finally:
            self.readers -= 1

    async def _shielded(self) -> T:
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise SessionLost(self.given_up) from None
            raise


class KeyedTasks(Generic[T]):
    """Runs work once for each idempotency key. Unfinished work is kept, and the last `remembered` answers.

    patience: seconds that work goes on when the last client that asked for it has gone. 0: it is given up at once,
    which leaves nothing behind, and a repeated request begins it anew.
    """

    def __init__(self, *, remembered: int = REMEMBERED, patience: float = RECONNECT_SECONDS) -> None:
        self._remembered = remembered
        self._patience = patience
        self._known: dict[str, KeyedTask[T]] = {}

    async def once(
        self, request: Request, key: str, body: bytes, work: Callable[[], Coroutine[object, object, T]]
    ) -> T:
        """Return what `work` returns, or returned under this key before.

        Raises RequestRefused where the key was another request's, and as `KeyedTask.read`.
        """
        digest = hashlib.sha256(request.url.path.encode() + body).digest()
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = KeyedTask(digest, asyncio.ensure_future(work()), self._patience)
            known.task.add_done_callback(lambda _: self._finish(key))
        elif known.digest != digest:
            raise RequestRefused(422, "invalid", f"the key '{key}' has been used for another request", field=KEY)
        return await known.read(request)

    def forget(self, key: str) -> None:
        """Drop the answer under a key: a repeated request has the work done anew."""
        known = self._known.get(key)
        if known is not None and known.task.done():
            del self._known[key]

    def give_up(self, why: str) -> None:
        """End what is not done. Its readers get SessionLost with that reason."""
        for known in self._known.values():
            known.given_up = why
            known.task.cancel()

    def _finish(self, key: str) -> None:
        known = self._known.pop(key)  # to stand last
        undone = not self._patience if known.task.cancelled() else isinstance(known.task.exception(), RequestRefused)
        if undone:  # another try may succeed
            return
        self._known[key] = known
        done = [name for name, one in self._known.items() if one.task.done()]
        for name in done[: -self._remembered]:
            del self._known[name]


ENDED = 256
"""Sessions that ended by themselves, or were evicted, whose clients can still ask why: the last that were used."""
OPENINGS = 1024
"""Keys under which a session was opened that are kept for a client that asks again: the last."""
UNUSED_SECONDS = 60.0
"""After which a session that was opened under a key is closed, unless its client has asked anything of it: then it has
learnt which session it has."""


class Open(Struct, forbid_unknown_fields=True, kw_only=True):
    limits: LimitFields | None = None
    seed: Seed | None = None


class Opened(Struct):
    """session: its id. tier: what holds around its cells."""

    session: str
    tier: Tier


class Checkpoint(Struct, forbid_unknown_fields=True):
    """checkpoint: its name."""

    checkpoint: str


class Entry:
    """An open session, the limits of its cells, and its latest answers. requests: that are being served.
    key: under which it was opened. unused: ends it, until its client has asked something of it."""

    def __init__(self, session: ServedSession, limits: Limits) -> None:
        self.session = session
        self.limits = limits
        self.answers = KeyedTasks[Any]()
        self.used = time.monotonic()
        self.requests = 0
        self.key: str | None = None
        self.unused: asyncio.TimerHandle | None = None

    def confirm(self) -> None:
        """Its client knows of it."""
        if self.unused is not None:
            self.unused.cancel()


class SessionsApi:
    """The handlers below `/v1/sessions`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._entries: dict[str, Entry] = {}
        self._openings = KeyedTasks[Entry](remembered=OPENINGS, patience=0.0)
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, request: Request) -> Response:
        """Open a session. Those that were unused for long are closed first, and most that have ended forgotten."""
        body = await read_body(request, self._calls.settings.max_body)
        opening = parse_body(body or b"{}", Open)
        limits = checked_limits(self._calls, opening.limits, self._calls.settings.limits)
        await self._make_room()
        key = request.headers.get(KEY)
        if key is None:
            entry = await cancel_on_disconnect(request, self._opened(limits, opening.seed), undo=self._close)
        else:
            work = partial(self._opened, limits, opening.seed, key)
            try:
                entry = await self._openings.once(request, key, body, work)
            except SessionLost as error:  # given up as this client came, with the one before it
                raise unavailable(SandboxUnavailable(str(error)), "busy") from error
        return json_response(Opened(entry.session.id, self._calls.tier), 201)

    async def show(self, request: Request) -> Response:
        """Answer the session. Its client thereby confirms that it knows of it."""
        entry, body = await self._read(request)
        if entry.session.ended:
            self._forget(entry)  # asked for again under its key, another one is opened
            await self._once(request, entry, body, entry.session.checkpoint)  # which says why it is lost
        return json_response(Opened(entry.session.id, self._calls.tier))

    async def run(self, request: Request) -> Response:
        entry, body = await self._read(request)
        cell = checked_cell(self._calls, parse_body(body, Cell), entry.limits)
        work = partial(self._calls.run, "session", lambda: entry.session.run(cell))
        return json_response(await self._once(request, entry, body, work))

    async def checkpoint(self, request: Request) -> Response:
        entry, body = await self._read(request)
        return json_response(Checkpoint(await self._once(request, entry, body, entry.session.checkpoint)), 201)

    async def rollback(self, request: Request) -> Response:
        entry, body = await self._read(request)
        name = parse_body(body, Checkpoint).checkpoint

        async def work() -> None:
            try:
                await entry.session.rollback(name)
            except KeyError as error:
                raise RequestRefused(
                    404, "unknown_checkpoint", f"no checkpoint '{name}'", field="checkpoint"
                ) from error

        await self._once(request, entry, body, work)
        return json_response(Checkpoint(name))

    async def discard(self, request: Request) -> Response:
        entry, body = await self._read(request)
        name = request.path_params["checkpoint"]
        await self._once(request, entry, body, lambda: entry.session.discard(name))
        return Response(status_code=204)

    async def close(self, request: Request) -> Response:
        """Closing twice, or what was never there, is no error."""
        entry = self._entries.get(request.path_params["session"])
        if entry is not None:
            await self._close(entry)
        return Response(status_code=204)

    async def _opened(self, limits: Limits, seed: int | None, key: str | None = None) -> Entry:
        """key: that the client asked under; it may ask again, if the answer is lost, but not for ever."""
        try:
            session = await self._calls.sandbox.session(limits=limits, seed=seed)
        except SandboxUnavailable as error:
            raise unavailable(error, "busy") from error  # no room for one more; there may be later
        entry = self._entries[session.id] = Entry(session, limits)
        if key is not None:
            entry.key = key
            entry.unused = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._close_unused, entry)
        return entry

    def _close_unused(self, entry: Entry) -> None:
        task = asyncio.ensure_future(self._close(entry))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _forget(self, entry: Entry) -> None:
        """Forget that it was opened under its key."""
        if entry.key is not None:
            self._openings.forget(entry.key)
            entry.key = None

    async def _read(self, request: Request) -> tuple[Entry, bytes]:
        name = request.path_params["session"]
        entry = self._entries.get(name)
        if entry is None:
            raise RequestRefused(
                404, "unknown_session", f"no session '{name}': it was closed, or this server has restarted"
            )
        entry.used = time.monotonic()
        entry.confirm()
        return entry, await read_body(request, self._calls.settings.max_body)

    async def _once(
        self, request: Request, entry: Entry, body: bytes, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Do the work once for each idempotency key. Raises RequestRefused where the session is lost."""
        key = request.headers.get(KEY)
        entry.requests += 1
        try:
            if key is None:
                return await cancel_on_disconnect(request, work())
            return await entry.answers.once(request, key, body, work)
        except SessionLost as error:
            extra = {"by_own_code": error.by_own_code}
            raise RequestRefused(410, "session_lost", str(error), extra=extra) from error
        except CheckpointRefused as error:
            raise RequestRefused(409, "refused", str(error), extra={"full": error.full}) from error
        finally:
            entry.requests -= 1
            entry.used = time.monotonic()

    async def _make_room(self) -> None:
        latest = time.monotonic() - self._calls.settings.session_idle
        ended = [entry for entry in self._entries.values() if entry.session.ended]
        open_ones = [entry for entry in self._entries.values() if not entry.session.ended]
        idle = [entry for entry in open_ones if entry.used < latest and not entry.requests]
        for entry in [*idle, *sorted(ended, key=lambda entry: entry.used)[:-ENDED]]:
            await self._close(entry)

    async def _close(self, entry: Entry) -> None:
        self._entries.pop(entry.session.id, None)
        entry.confirm()
        self._forget(entry)
        entry.answers.give_up("it was closed")
        await entry.session.close()
