"""The service's own API: calls, batches and sessions."""

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
"""Bytes that the worker and this process hold until the answer is sent."""
Wait = Annotated[float, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=SEEDS - 1)]
NUL = "SyntaxError: source code string cannot contain null bytes"
NDJSON = "application/x-ndjson"


class LimitFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """Members of `Limits`; the server's by default."""

    cpu_seconds: Seconds | None = None
    wall_seconds: Seconds | None = None
    memory_mb: Count | None = None
    output_bytes: Output | None = None
    file_mb: Count | None = None
    open_files: Count | None = None
    processes: Count | None = None


class Cell(Struct, forbid_unknown_fields=True, kw_only=True):
    """A program and its options: the parameters of `Sandbox.run`, files in base64."""

    code: str
    stdin: str = ""
    timeout: Seconds | None = None
    memory: Count | None = None
    limits: LimitFields | None = None
    files: dict[str, str] = {}
    fetch: list[str] = []
    echo: bool = True


class Call(Cell, forbid_unknown_fields=True, kw_only=True):
    """A program to run by itself. tier: the weakest that the caller accepts. wait: most seconds until it starts. seed:
    of the random number generators; by default a new one in each call."""

    wait: Wait | None = None
    seed: Seed | None = None
    tier: Tier | None = None


class Batch(Struct, forbid_unknown_fields=True, kw_only=True):
    """Programs to run. stream: send each result when it is ready, rather than all in order."""

    calls: Annotated[list[Call], Meta(min_length=1)]
    stream: bool = False


class Results(Struct):
    """Answer of `/v1/batch`, in the calls' order; streamed, it is lines of `index` and `result`."""

    results: list[Result]


class ProgramRefused(RequestRefused):
    """Code that cannot run, such as with NUL: for callers that run models' code, a failed program. result: of that
    program, also in the error's body."""

    def __init__(self, message: str, *, field: str, result: Result) -> None:
        super().__init__(422, "invalid", message, field=field, extra={"result": msgspec.to_builtins(result)})
        self.result = result


class OwnApi:
    """Handlers of `/v1/run` and `/v1/batch`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run(self, call: Call) -> Result:
        return await self._run(checked_call(self._calls, call))

    async def batch(self, request: Request) -> Response:
        batch = parse_body(await read_body(request, self._calls.settings.max_body), Batch)
        self._calls.check_count(batch.calls, "calls")
        programs = await cancel_on_disconnect(request, self._checked(batch.calls))
        if batch.stream:
            return StreamedResponse(self._stream(programs))
        results = cancel_on_disconnect(
            request, gather_or_cancel([self._settled(i, program) for i, program in enumerate(programs)])
        )
        return json_response(Results(await results))

    async def _checked(self, calls: Sequence[Call]) -> list[Program | Result]:
        """Check calls; return their programs, or results of ones that cannot run. Yields to other requests after each
        call, as one may have thousands of paths."""
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
        """Run a call of a batch; without room or worker it fails alone."""
        try:
            return await self._of_batch(program)
        except RequestRefused as refused:
            if refused.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise RequestRefused.invalid(f"calls[{index}]", refused.message) from refused
            return Result("infrastructure", stderr=refused.message)

    async def _stream(self, programs: list[Program | Result]) -> AsyncGenerator[bytes, None]:
        """Yield a line for each ended call: its index in the batch, and its result or error."""

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
    """Check a call; return its program. Raises RequestRefused, which names the field. at: prefix of fields."""
    if call.tier is not None and TIERS.index(call.tier) < TIERS.index(calls.tier):
        raise RequestRefused.invalid(
            f"{at}tier", f"tier '{call.tier}' is unavailable here: this server's is '{calls.tier}'"
        )
    program = checked_cell(calls, call, calls.settings.limits, calls.tier, at)
    return replace(program, wait=call.wait, seed=call.seed)


def checked_cell(calls: Calls, cell: Cell, limits: Limits, tier: str = "", at: str = "") -> Program:
    """Check a session's cell; return its program. limits: of a cell without its own. tier: whose absolute paths files
    may have; a session's have none. at: prefix of fields in errors."""
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
    """Return `limits` with the requested ones. Raises RequestRefused for one above the service's maximum."""
    if asked is None:
        return limits
    given = {name: value for name in asked.__struct_fields__ if (value := getattr(asked, name)) is not None}
    seconds = {f"{at}limits.{name}": given.get(name) for name in ("cpu_seconds", "wall_seconds")}
    calls.check_bounds(seconds, {f"{at}limits.memory_mb": given.get("memory_mb")})
    return replace(limits, **given)


class StreamedResponse(Response):
    """A response of lines, sent as they come; its source is closed when the client disconnects."""

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
"""Finished answers that are kept for clients that repeat a key."""
RECONNECT_SECONDS = 10.0
"""How long a disconnected client's keyed work on a session continues, as it may ask again."""


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
        """Wait for the result. Raises ClientDisconnected, SessionLost if abandoned, and the work's errors."""
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
    """Work by idempotency key, done once each. It keeps unfinished work, and the last `remembered` answers.

    patience: seconds that work continues after its last client has disconnected. 0: it is abandoned at once, and a
    repeated request starts it anew.
    """

    def __init__(self, *, remembered: int = REMEMBERED, patience: float = RECONNECT_SECONDS) -> None:
        self._remembered = remembered
        self._patience = patience
        self._known: dict[str, KeyedTask[T]] = {}

    async def once(
        self, request: Request, key: str, body: bytes, work: Callable[[], Coroutine[object, object, T]]
    ) -> T:
        """Return the result of `work`, from before if the key is repeated.

        Raises RequestRefused if another request had the key, and as `KeyedTask.read`.
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
        """Drop a key's answer, so that a repeated request starts anew."""
        known = self._known.get(key)
        if known is not None and known.task.done():
            del self._known[key]

    def give_up(self, why: str) -> None:
        """Cancel unfinished work. Its readers get SessionLost with that reason."""
        for known in self._known.values():
            known.given_up = why
            known.task.cancel()

    def _finish(self, key: str) -> None:
        known = self._known.pop(key)  # it is appended again below
        undone = not self._patience if known.task.cancelled() else isinstance(known.task.exception(), RequestRefused)
        if undone:  # a repeated request may succeed
            return
        self._known[key] = known
        done = [name for name, one in self._known.items() if one.task.done()]
        for name in done[: -self._remembered]:
            del self._known[name]


ENDED = 256
"""Last used ended or evicted sessions that are kept, so that clients can ask for the reason."""
OPENINGS = 1024
"""Last keys of opened sessions that are kept for clients that repeat one."""
UNUSED_SECONDS = 60.0
"""After which a session that was opened with a key is closed, unless its client has used it, and thus knows its id."""


class Open(Struct, forbid_unknown_fields=True, kw_only=True):
    limits: LimitFields | None = None
    seed: Seed | None = None


class Opened(Struct):
    """A session. session: its id. tier: protection around its cells."""

    session: str
    tier: Tier


class Checkpoint(Struct, forbid_unknown_fields=True):
    """A checkpoint, by name."""

    checkpoint: str


class Entry:
    """An open session, the limits of its cells, and its latest answers. requests: number in progress. key: of the
    request that opened it. unused: timer that closes it until its client uses it."""

    def __init__(self, session: ServedSession, limits: Limits) -> None:
        self.session = session
        self.limits = limits
        self.answers = KeyedTasks[Any]()
        self.used = time.monotonic()
        self.requests = 0
        self.key: str | None = None
        self.unused: asyncio.TimerHandle | None = None

    def confirm(self) -> None:
        """Stop the timer: the client knows the session."""
        if self.unused is not None:
            self.unused.cancel()


class SessionsApi:
    """Handlers of `/v1/sessions`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._entries: dict[str, Entry] = {}
        self._openings = KeyedTasks[Entry](remembered=OPENINGS, patience=0.0)
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, request: Request) -> Response:
        """Open a session, after closing idle ones and dropping most ended ones."""
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
            except SessionLost as error:  # abandoned for its earlier client just now
                raise unavailable(SandboxUnavailable(str(error)), "busy") from error
        return json_response(Opened(entry.session.id, self._calls.tier), 201)

    async def show(self, request: Request) -> Response:
        """Return the session, which confirms that its client knows it."""
        entry, body = await self._read(request)
        if entry.session.ended:
            self._forget(entry)  # a repeated key then opens another one
            await self._once(request, entry, body, entry.session.checkpoint)  # raises the reason
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
        """Close a session; an unknown one is no error."""
        entry = self._entries.get(request.path_params["session"])
        if entry is not None:
            await self._close(entry)
        return Response(status_code=204)

    async def _opened(self, limits: Limits, seed: int | None, key: str | None = None) -> Entry:
        """Open a session. key: of the request, which the client may repeat for a limited time."""
        try:
            session = await self._calls.sandbox.session(limits=limits, seed=seed)
        except SandboxUnavailable as error:
            raise unavailable(error, "busy") from error  # there may be room later
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
        """Forget the key that opened a session."""
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
        """Do work once per idempotency key. Raises RequestRefused if the session is lost."""
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
