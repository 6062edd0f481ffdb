"""A sandbox on another machine, or in another process on this one: `retcon sandbox serve` over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.core.texts import is_url
from retcon.http.asking import Answer, Connections, NoAnswer
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result, Tier, as_cell, as_program, check_seed

SERVERS_FAULT = 500
"""From this status of HTTP on not the request is at fault, but a server, or what stands before it."""
LATER = (408, 425, 429)
"""Statuses below it by which what stands before a server, as a proxy that limits the rate does, asks to be asked again.
"""
NOT_OURS = (401, 403, 404)
"""Statuses of HTTP that say of whom they come from, and not of what was asked, that it is no server of ours."""


class ServerUnavailable(Exception):
    """A server did not answer, through no fault of the call. after: seconds that it asked to wait, 0 where it did not.

    down: it could not be reached or broke off, rather than being busy.
    """

    def __init__(self, message: str, *, after: float = 0.0, down: bool = True) -> None:
        super().__init__(message)
        self.after = after
        self.down = down


class Remote:
    """One server. connections: requests at a time, the others wait here. patience: seconds that an answer may take
    beyond the call's own wall limit."""

    def __init__(self, url: str, token: str | None, *, connections: int, patience: float) -> None:
        self.url = url.rstrip("/")
        self._patience = patience
        self._turns = asyncio.Semaphore(connections)
        # A proxy for the outside world has no business between a trainer and its sandbox.
        self._connections = Connections(token or "", proxies=False)

    async def close(self) -> None:
        await self._connections.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = 0.0,
        patience: float | None = None,
        key: str | None = None,
    ) -> Answer:
        """The answer of a request that was served.

        seconds: how long the work itself may take. patience: in place of the client's. key: marks repetitions.

        Raises ServerUnavailable (no answer, `LATER`, any 5xx but the server's own `internal`), ServerBroken (that one),
        CallRefused (the request is wrong, or too large), SessionLost (the session is gone), KeyError (no such
        checkpoint), SandboxUnavailable (the server is no sandbox, or wants another token).
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        longest = seconds + (self._patience if patience is None else patience)
        async with self._turns:
            try:
                response = await self._connections.ask(
                    method, f"{self.url}{path}", body, seconds=longest, headers=headers
                )
            except NoAnswer as error:
                raise ServerUnavailable(f"{self.url}: {error}") from error
        if not response.ok:
            self._raise(response)
        return response

    def _raise(self, response: Answer) -> None:
        said = _error_in(response)
        message, kind = said.get("message", response.text[:200]), said.get("type")
        later = response.status in LATER
        if later or (response.status >= SERVERS_FAULT and kind != "internal"):
            after = response.headers.get("Retry-After", "")
            raise ServerUnavailable(
                f"{self.url}: {response.status} {message}",
                after=float(after) if after.isdecimal() else 0.0,
                down=not later and kind != "busy",
            )
        if kind == "session_lost":
            raise SessionLost(message, by_own_code=bool(response.json().get("by_own_code")))
        if kind == "unknown_session":
            raise SessionForgotten(message)
        if kind == "refused":
            raise CheckpointRefused(message, full=bool(response.json().get("full")))
        if kind == "unknown_checkpoint":
            raise KeyError(message)
        if kind in ("invalid", "invalid_json", "too_long"):
            result = _result_in(response)
            if result is not None:
                raise RequestAnswered(result)
            raise CallRefused(message, said.get("field"))
        if response.status == 401:
            raise NotOurs(
                f"{self.url} requires another token: put the server's into RETCON_SANDBOX_TOKEN, or give it as `token`"
            )
        if kind == "internal":
            raise ServerBroken(f"{self.url}: {message}")
        fault = NotOurs if response.status in NOT_OURS else SandboxUnavailable
        raise fault(f"{self.url} answers {response.status}: is it a retcon sandbox server? {message}")


class CallRefused(ValueError):
    """The server takes no such request. field: at which it stopped, None where it names none."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class SessionForgotten(SessionLost):
    """The server knows no such session: unlike one that is lost there, it cannot be rolled back."""


class ServerBroken(SandboxUnavailable):
    """The server met a fault of its own in this request: another try, or another server, would meet it again."""


class NotOurs(SandboxUnavailable):
    """What answers is no sandbox server, as a proxy is whose server is away, or it is one that wants another token."""


class LimitsRefused(SandboxUnavailable):
    """The server allows calls less than the limits that all of them would ask for: it would refuse each."""


class RequestAnswered(Exception):
    """A request was refused, but the program in it has a result all the same."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error_type)
        self.result = result


def _error_in(response: Answer) -> dict[str, Any]:
    try:
        error = response.json().get("error")
    except (ValueError, AttributeError):  # a proxy's page, say
        return {}
    return error if isinstance(error, dict) else {}


def _result_in(response: Answer) -> Result | None:
    return msgspec.convert(found, Result) if (found := response.json().get("result")) is not None else None


def with_limits(program: Program, limits: Limits | None) -> Program:
    """The program, under `limits` where it gives none of its own."""
    return program if program.limits is not None or limits is None else replace(program, limits=limits)


def call_body(program: Program) -> dict[str, Any]:
    """A call as the server's API has it."""
    body = cell_body(program)
    if program.wait is not None:
        body["wait"] = program.wait
    if program.seed is not None:
        body["seed"] = program.seed
    return body


def cell_body(program: Program) -> dict[str, Any]:
    """A session's cell as the server's API has it."""
    # The API takes an empty program for a mistake; here it is a program like others, that does nothing.
    body: dict[str, Any] = {"code": program.code or "pass", "stdin": program.stdin, "echo": program.echo}
    if program.timeout is not None:
        body["timeout"] = program.timeout
    if program.memory is not None:
        body["memory"] = program.memory
    if program.limits is not None:
        body["limits"] = asdict(program.limits)
    if program.files:
        body["files"] = {name: base64.b64encode(content).decode() for name, content in program.files.items()}
    if program.fetch:
        body["fetch"] = list(program.fetch)
    return body


def wall_seconds(program: Program) -> float:
    """How long a call may run, 0 where only the server knows."""
    return program.timeout or (program.limits.wall_seconds if program.limits is not None else 0.0)


T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds between tries, doubled each time
PROBE_SECONDS = 10.0
LEAVE_SECONDS = 2.0
"""How long the answer to a cancelled request for a session is waited for, so that the session can be closed."""
TOKEN = "RETCON_SANDBOX_TOKEN"
"""The environment variable that commands take a server's token from."""

_result = msgspec.json.Decoder(Result)


class SandboxClient:
    """Implements `Sandbox` over a server.

        async with SandboxClient("http://127.0.0.1:8088") as sandbox:
            result = await sandbox.run("print(1 + 1)")

    token: the server's, where it asks for one. tries: of a call whose server cannot be reached, breaks off or is busy
    (429, any 5xx but its own `internal`), with growing pauses; after the last its result is `infrastructure`. A call
    can be repeated since it leaves nothing behind; what a session is asked carries a key, so that it is done once.
    limits: of calls that give none, the server's own where None. connections: requests at a time, the others wait here.
    patience: seconds that an answer may take beyond the call's wall limit, its time in the server's queue among them.

    Raises SandboxUnavailable on entry where no server answers, or the server does not allow `limits` (LimitsRefused).
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        tries: int = 5,
        limits: Limits | None = None,
        connections: int = 256,
        patience: float = 900.0,
    ) -> None:
        if tries < 1:
            raise ValueError(f"{tries} tries: it must be 1 or more")
        if not is_url(url):
            raise ValueError(f"{url!r} is not the URL of a sandbox server: write it as http://host:port")
        self.url = url
        self._tries = tries
        self._limits = limits
        self._remote: Remote | None = None
        self._tier: Tier | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._open = partial(Remote, url, token, connections=connections, patience=patience)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect. Raises SandboxUnavailable."""
        if self._remote is not None:
            return
        self.connect()
        try:
            await repeated(self._tries, self.probe)
        except BaseException as error:
            await self.close()
            if isinstance(error, ServerUnavailable):
                raise SandboxUnavailable(f"no sandbox server answers: {error}") from error
            raise

    def connect(self) -> None:
        """Be open, whether or not the server answers."""
        if self._remote is None:
            self._remote = self._open()

    async def probe(self) -> None:
        """Raises ServerUnavailable where the server does not answer, SandboxUnavailable where it is no sandbox's,
        LimitsRefused."""
        remote = self._connected()
        health = await remote.ask("GET", "/health", patience=PROBE_SECONDS)
        try:
            tier: Tier = health.json()["tier"]
        except (ValueError, LookupError, TypeError) as error:
            raise SandboxUnavailable(f"{self.url} is not a retcon sandbox server") from error
        await remote.ask("GET", "/v1/ping", patience=PROBE_SECONDS)  # wants the token, unlike /health
        if self._limits is not None:
            await _try_limits(remote, self._limits)
        self._tier = tier

    async def close(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            if self._leaving:
                await asyncio.wait(self._leaving)
            await remote.close()

    @property
    def tier(self) -> Tier:
        """What holds around the server's calls. Raises SandboxUnavailable before a server answered."""
        if self._tier is None:
            raise SandboxUnavailable(f"{self.url}: no server has answered yet")
        return self._tier

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """See `Sandbox.run`."""
        asked = with_limits(as_program(program, options), self._limits)
        try:
            return await repeated(self._tries, lambda: self.once(asked))
        except ServerUnavailable as error:
            return Result("infrastructure", stderr=str(error))

    async def once(self, program: Program) -> Result:
        """Ask for a call without repeating it. Raises ServerUnavailable, and as `run`."""
        try:
            response = await self._connected().ask("POST", "/v1/run", call_body(program), seconds=wall_seconds(program))
        except RequestAnswered as answered:
            return answered.result
        except ServerBroken as error:
            return Result("infrastructure", stderr=str(error))
        return read_result(response)

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> ClientSession:
        """See `Sandbox.session`."""
        check_seed(seed)
        key = uuid.uuid4().hex
        try:
            return await repeated(self._tries, lambda: self.open_session(limits or self._limits, seed, key))
        except ServerUnavailable as error:
            raise SandboxUnavailable(f"no session: {error}") from error

    async def open_session(
        self, limits: Limits | None, seed: int | None, key: str, *, on_end: Callable[[], None] = lambda: None
    ) -> ClientSession:
        """Ask for a session without repeating it. key: under which a server opens one only. on_end: called once it is
        closed or lost. Where this is cancelled, the session is closed if it is there all the same.

        Raises ServerUnavailable, SandboxUnavailable.
        """
        remote = self._connected()
        body = {} if limits is None else {"limits": msgspec.to_builtins(limits)}
        if seed is not None:
            body["seed"] = seed
        opening = asyncio.ensure_future(_opened(remote, body, key))
        try:
            id, self._tier = await asyncio.shield(opening)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(_leave(remote, opening))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            raise
        return ClientSession(remote, id, self._tries, on_end, limits)

    def _connected(self) -> Remote:
        if self._remote is None:
            raise SandboxUnavailable("the sandbox client is not open: use `async with SandboxClient(...)`")
        return self._remote


async def _try_limits(remote: Remote, limits: Limits) -> None:
    """Ask for a call under them, as a server tells its bounds in no other way; they come before whether it has room.

    Raises LimitsRefused.
    """
    body = call_body(Program("pass", limits=limits, wait=0.0))
    with contextlib.suppress(ServerUnavailable, ServerBroken):  # of the call alone: the server has answered
        try:
            try:
                await remote.ask("POST", "/v1/run", body, patience=PROBE_SECONDS)
            except CallRefused as error:
                if error.field != "wait":
                    raise
                del body["wait"]  # which servers of earlier versions do not know
                await remote.ask("POST", "/v1/run", body, patience=PROBE_SECONDS)
        except CallRefused as error:
            raise LimitsRefused(
                f"{remote.url} does not allow calls the limits that they are to have: {error}; ask for less (a recipe: "
                "in [sandbox]), or start the server with more (--max-timeout, --max-memory); one that does not know a "
                "field is of an earlier version: update it"
            ) from error


async def _opened(remote: Remote, body: Mapping[str, Any], key: str) -> tuple[str, Tier]:
    """A session's id and tier. Raises as `open_session`."""
    opened = await remote.ask("POST", "/v1/sessions", body, key=key)
    id, tier = str(told(opened, "session")), told(opened, "tier")
    try:  # the server keeps for long only what its client is known to know of
        await remote.ask("GET", f"/v1/sessions/{quote(id, safe='')}")
    except SessionLost as error:
        raise ServerUnavailable(f"{opened.url}: {error}", down=False) from error
    return id, tier


async def _leave(remote: Remote, opening: asyncio.Task[tuple[str, Tier]]) -> None:
    """Closes a session that nobody waits for any more; what does not come soon the server ends by itself."""
    await asyncio.wait((opening,), timeout=LEAVE_SECONDS)
    if not opening.done():
        opening.cancel()
        await asyncio.wait((opening,))
        return
    with contextlib.suppress(ServerUnavailable, SandboxUnavailable, SessionLost, ValueError):
        await remote.ask("DELETE", f"/v1/sessions/{quote(opening.result()[0], safe='')}", patience=LEAVE_SECONDS)


class ClientSession:
    """Implements `Session` over a server. What is asked of it is done once, however often the connection breaks.

    limits: of cells that give none, the server's own where None. on_result: called with the result of each cell.
    """

    def __init__(
        self, remote: Remote, id: str, tries: int, on_end: Callable[[], None], limits: Limits | None = None
    ) -> None:
        self.id = id
        self._limits = limits
        self._remote = remote
        self._tries = tries
        self._on_end = on_end
        self.on_result: Callable[[Result], object] = lambda _: None
        self._lost: str | None = None
        self._may_be_there = False  # though it is lost

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """See `Session.run`. Where the server stays away the result is `infrastructure`, and the session is lost."""
        asked = as_cell(program, options)
        seconds = wall_seconds(with_limits(asked, self._limits))  # the server has them since it opened the session
        try:
            result = read_result(await self._ask("POST", "/run", cell_body(asked), seconds=seconds))
        except RequestAnswered as answered:
            result = answered.result
        except (ServerUnavailable, ServerBroken) as error:
            result = Result("infrastructure", stderr=str(error))
        self.on_result(result)
        return result

    async def checkpoint(self) -> str:
        made = await self._stated("POST", "/checkpoints")
        try:
            return str(told(made, "checkpoint"))
        except ServerUnavailable as error:
            raise SessionLost(f"session {self.id}: {error}") from error

    async def rollback(self, checkpoint: str) -> None:
        await self._stated("POST", "/rollback", {"checkpoint": checkpoint})

    async def discard(self, checkpoint: str) -> None:
        with contextlib.suppress(SessionLost, SandboxUnavailable):  # the session goes, and its checkpoints with it
            await self._stated("DELETE", f"/checkpoints/{quote(checkpoint, safe='')}")

    async def close(self) -> None:
        if self._lost is None:
            # The server closes what nobody uses.
            with contextlib.suppress(ServerUnavailable, SandboxUnavailable, SessionLost):
                await self._ask("DELETE", "")
            self._end("it was closed")
        elif self._may_be_there:
            self._may_be_there = False
            with contextlib.suppress(ServerUnavailable, SandboxUnavailable):
                await self._remote.ask("DELETE", f"/v1/sessions/{self.id}", patience=LEAVE_SECONDS)

    def _end(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
            self._on_end()

    async def _stated(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        try:
            return await self._ask(method, path, body)
        except ServerUnavailable as error:
            raise SessionLost(f"session {self.id}: {error}") from error

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = 0.0
    ) -> Answer:
        if self._lost is not None:
            raise SessionLost(f"session {self.id}: {self._lost}")
        key = uuid.uuid4().hex
        path = f"/v1/sessions/{self.id}{path}"
        try:
            return await repeated(self._tries, lambda: self._remote.ask(method, path, body, seconds=seconds, key=key))
        except (ServerUnavailable, SessionForgotten) as error:
            self._may_be_there = isinstance(error, ServerUnavailable) and method != "DELETE"
            self._end(str(error))
            raise


def token_from_environment() -> str | None:
    return os.environ.get(TOKEN) or None


def told(response: Answer, name: str) -> Any:
    """Raises ServerUnavailable as `read_result`."""
    try:
        return response.json()[name]
    except (ValueError, LookupError, TypeError) as error:
        raise ServerUnavailable(f"{response.url}: it tells no {name}: {error}") from error


def read_result(response: Answer) -> Result:
    """Raises ServerUnavailable where it is none: something between here and the server has answered."""
    try:
        return _result.decode(response.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerUnavailable(f"{response.url}: not a result: {error}") from error


async def repeated(tries: int, ask: Callable[[], Awaitable[T]]) -> T:
    """What `ask` gives, tried again after a ServerUnavailable; the last one is raised."""
    pause = FIRST_PAUSE
    while True:
        tries -= 1
        try:
            return await ask()
        except ServerUnavailable as fault:
            if not tries:
                raise
            # Spread, so that those who were refused together do not come back together.
            await asyncio.sleep(max(fault.after, pause) * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)
