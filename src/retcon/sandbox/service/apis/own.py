"""This service's own API: one call, or a batch of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from retcon.core.together import cancelled, together
from retcon.http.body import parse
from retcon.http.handling import ClientGone, answer, encoded, read_body, unless_gone
from retcon.http.refusal import RequestRefused
from retcon.sandbox.pool.paths import check_room
from retcon.sandbox.service.calls import Calls
from retcon.sandbox.service.files import check_paths, check_text, decode_files
from retcon.sandbox.service.shapes import as_own
from retcon.sandbox.types import MOST, SEEDS, TOO_LONG, Limits, Program, Result

Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(gt=0, le=MOST)]
Output = Annotated[int, Meta(gt=0, le=64 << 20)]
"""Bytes: held by the worker and by this process until the answer is sent."""
Wait = Annotated[float, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=SEEDS - 1)]
STRENGTH = {"rlimits": 0, "landlock": 1, "namespaces": 2}
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
    tier: Literal["namespaces", "landlock", "rlimits"] | None = None


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
    """The handlers of `/v1/run` and `/v1/batch`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def run(self, request: Request) -> Response:
        call = parse(await read_body(request, self._calls.settings.max_body), Call)
        return answer(await unless_gone(request, self._run(checked_call(self._calls, call))))

    async def batch(self, request: Request) -> Response:
        batch = parse(await read_body(request, self._calls.settings.max_body), Batch)
        self._calls.check_count(batch.calls, "calls")
        programs = await unless_gone(request, self._checked(batch.calls))
        if batch.stream:
            return Streamed(self._stream(programs))
        results = unless_gone(request, together([self._settled(i, program) for i, program in enumerate(programs)]))
        return answer(Results(await results))

    async def _checked(self, calls: Sequence[Call]) -> list[Program | Result]:
        """See `checked_one`. Other requests are served between any two: a call may have thousands of paths."""
        programs = []
        for i, call in enumerate(calls):
            programs.append(checked_one(self._calls, call, f"calls[{i}]."))
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
                said: dict[str, Any] = {"index": index, "result": await self._of_batch(program)}
            except RequestRefused as refused:
                said = {"index": index, **as_own(refused)}
            return encoded(said) + b"\n"

        tasks = [asyncio.ensure_future(one(i, program)) for i, program in enumerate(programs)]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            await cancelled(tasks)


def checked_call(calls: Calls, call: Call, at: str = "") -> Program:
    """What the sandbox is asked to run. Raises RequestRefused that names the field, behind `at`."""
    if call.tier is not None and STRENGTH[call.tier] > STRENGTH[calls.tier]:
        raise RequestRefused.invalid(
            f"{at}tier", f"tier '{call.tier}' is unavailable here: this server's is '{calls.tier}'"
        )
    program = checked_cell(calls, call, calls.settings.limits, calls.tier, at)
    return replace(program, wait=call.wait, seed=call.seed)


def checked_one(calls: Calls, call: Call, at: str) -> Program | Result:
    """As `checked_call`, of a batch: the result of a program that fails before it could run."""
    try:
        return checked_call(calls, call, at)
    except ProgramRefused as refused:
        return refused.result


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
    files = decode_files(cell.files, f"{at}files", tier, calls.folders)
    try:
        check_room(files, cell.stdin)
    except ValueError as error:
        raise RequestRefused.invalid(at.removesuffix(".") or None, str(error)) from error
    return Program(
        cell.code,
        stdin=cell.stdin,
        limits=checked_limits(calls, cell.limits, limits, at).with_(*checked_clocks(calls, cell, at)),
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


def checked_clocks(calls: Calls, cell: Cell, at: str) -> tuple[float | None, int | None]:
    """(timeout, memory). Raises RequestRefused for one above what the service allows."""
    calls.check_bounds({f"{at}timeout": cell.timeout}, {f"{at}memory": cell.memory})
    return cell.timeout, cell.memory


class Streamed(Response):
    """A response whose lines are sent as they come; its source is closed when the client goes away."""

    media_type = NDJSON

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await unless_gone(Request(scope, receive), self._send(send))

    async def _send(self, send: Send) -> None:
        async with contextlib.aclosing(self._lines):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for line in self._lines:
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
