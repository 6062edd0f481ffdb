"""Clients of `retcon sandbox serve`: one server (`SandboxClient`), or several as one (`SandboxRouter`)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import math
import os
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

import msgspec
from msgspec import Struct

from retcon.core.concurrency import gather_or_cancel
from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.core.texts import is_url
from retcon.http.client import CircuitBreaker, ConnectionFailed, HttpClient, HttpResponse
from retcon.sandbox.types import (
    TIERS,
    HostFunction,
    Limits,
    Program,
    ProgramOptions,
    Result,
    Session,
    StartedSandbox,
    Tier,
    as_cell,
    as_program,
    check_seed,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
TOKEN = "RETCON_SANDBOX_TOKEN"
"""Environment variable with a server's token, for commands."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0  # seconds between tries, doubled each time
PROBE_PAUSE = FIRST_PAUSE  # seconds until a server that is down is asked again, doubled each time
PROBE_SECONDS = 10.0
LEAVE_SECONDS = 2.0
"""Wait for the answer to a cancelled request for a session, to close that session."""
SERVERS_FAULT = 500
"""HTTP status from which the server, or a proxy before it, is at fault."""
LATER = (408, 425, 429)
"""Statuses below SERVERS_FAULT after which to try again, as of a proxy that limits the rate."""
NOT_OURS = (401, 403, 404)
"""Statuses that no sandbox server answers with for a known path."""
FAILED = 3
"""Servers of a router on which a program fails before the program is at fault."""


class ServerUnavailable(Exception):
    """A server did not answer, through no fault of the call.

    Args:
        after: seconds that it asked to wait, 0 by default.
        down: it could not be reached or broke off, rather than being busy.
    """

    def __init__(self, message: str, *, after: float = 0.0, down: bool = True) -> None:
        super().__init__(message)
        self.after = after
        self.down = down


class CallRefused(ValueError):
    """The server refuses the request as invalid. field: the invalid one, None if not named."""

    def __init__(self, message: str, field: str | None) -> None:
        super().__init__(f"{field}: {message}" if field else message)


class SessionForgotten(SessionLost):
    """The server does not know the session; unlike a lost one, it cannot be rolled back."""


class ServerFault(SandboxUnavailable):
    """The server failed internally on this request, as any other would."""


class NotASandbox(SandboxUnavailable):
    """The server is not a sandbox server, or rejects the token."""


class LimitsRefused(SandboxUnavailable):
    """The server does not allow this client's limits."""


class RequestAnswered(Exception):
    """A request was refused with a result for its program."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.error_type)
        self.result = result


class _Error(Struct):
    type: str = ""
    message: str = ""
    field: str | None = None


class _Refusal(Struct):
    """The body of an error (`service.calls.as_own`)."""

    error: _Error
    result: Result | None = None
    by_own_code: bool = False
    full: bool = False


class _Health(Struct):
    tier: Tier


class _Opened(Struct):
    session: str
    tier: Tier


class _Checkpoint(Struct):
    checkpoint: str


def decode(response: HttpResponse, kind: type[T]) -> T:
    """Decode a body. Raises ServerUnavailable for any other body, as of a proxy on the way."""
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ServerUnavailable(f"{response.url}: the body is not what a sandbox server answers: {error}") from error


class Remote:
    """HTTP connection to one server.

    Args:
        connections: requests at a time; more wait here.
        patience: seconds that an answer may take beyond the call's own wall limit.
    """

    def __init__(self, url: str, token: str | None, *, connections: int, patience: float) -> None:
        self.url = url.rstrip("/")
        self._patience = patience
        self._turns = asyncio.Semaphore(connections)
        # The environment's proxy is for the internet, not for a sandbox.
        self._connections = HttpClient(token or "", proxies=False)

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
    ) -> HttpResponse:
        """Send a request and return the answer of a success.

        Args:
            seconds: that the work itself may take.
            patience: in place of the client's.
            key: idempotency key, the same for repetitions.

        Raises ServerUnavailable (no answer, `LATER`, any 5xx but the server's own `internal`), ServerFault (that one),
        CallRefused (the request is wrong, or too large), SessionLost (the session is gone), KeyError (no such
        checkpoint), SandboxUnavailable (the server is no sandbox, or wants another token).
        """
        headers = {} if key is None else {"Idempotency-Key": key}
        longest = seconds + (self._patience if patience is None else patience)
        async with self._turns:
            try:
                response = await self._connections.request(
                    method, f"{self.url}{path}", body, seconds=longest, headers=headers
                )
            except ConnectionFailed as error:
                raise ServerUnavailable(f"{self.url}: {error}") from error
        if not response.ok:
            self._raise(response)
        return response

    async def run(self, path: str, body: Mapping[str, Any], *, seconds: float, key: str | None = None) -> Result:
        """Run a program. Raises as `ask`; ServerFault becomes a result of status `infrastructure`."""
        try:
            return decode(await self.ask("POST", path, body, seconds=seconds, key=key), Result)
        except RequestAnswered as answered:
            return answered.result
        except ServerFault as error:
            return Result("infrastructure", stderr=str(error))

    def _raise(self, response: HttpResponse) -> None:
        try:
            refused = decode(response, _Refusal)
        except ServerUnavailable:  # a proxy's page, say
            refused = _Refusal(_Error())
        kind, message = refused.error.type, refused.error.message or response.text[:200]
        later = response.status in LATER
        if later or (response.status >= SERVERS_FAULT and kind != "internal"):
            after = response.headers.get("Retry-After", "")
            raise ServerUnavailable(
                f"{self.url}: {response.status} {message}",
                after=float(after) if after.isdecimal() else 0.0,
                down=not later and kind != "busy",
            )
        if refused.result is not None:
            raise RequestAnswered(refused.result)
        errors: dict[str, Exception] = {
            "session_lost": SessionLost(message, by_own_code=refused.by_own_code),
            "unknown_session": SessionForgotten(message),
            "refused": CheckpointRefused(message, full=refused.full),
            "unknown_checkpoint": KeyError(message),
            **dict.fromkeys(("invalid", "invalid_json", "too_long"), CallRefused(message, refused.error.field)),
            "internal": ServerFault(f"{self.url}: {message}"),
        }
        if kind in errors:
            raise errors[kind]
        if response.status == 401:
            raise NotASandbox(
                f"{self.url} requires another token: put the server's into {TOKEN}, or give it as `token`"
            )
        fault = NotASandbox if response.status in NOT_OURS else SandboxUnavailable
        raise fault(f"{self.url} answers {response.status}: is it a retcon sandbox server? {message}")


def with_limits(program: Program, limits: Limits | None) -> Program:
    """Return the program, with `limits` if it has none."""
    return program if program.limits is not None or limits is None else replace(program, limits=limits)


def request_body(program: Program) -> dict[str, Any]:
    """Encode a program as the body of a request."""
    # The API refuses an empty program; here it is a program that does nothing.
    body: dict[str, Any] = {"code": program.code or "pass", "stdin": program.stdin, "echo": program.echo}
    body |= {
        name: value for name in ("timeout", "memory", "wait", "seed") if (value := getattr(program, name)) is not None
    }
    if program.limits is not None:
        body["limits"] = asdict(program.limits)
    if program.files:
        body["files"] = {name: base64.b64encode(content).decode() for name, content in program.files.items()}
    if program.fetch:
        body["fetch"] = list(program.fetch)
    return body


def wall_seconds(program: Program) -> float:
    """Return a call's wall limit, 0 if only the server knows it."""
    return program.timeout or (program.limits.wall_seconds if program.limits is not None else 0.0)


async def retry(tries: int, ask: Callable[[], Awaitable[T]]) -> T:
    """Call `ask` up to `tries` times, with pauses; raise the last ServerUnavailable."""
    pause = FIRST_PAUSE
    while True:
        tries -= 1
        try:
            return await ask()
        except ServerUnavailable as fault:
            if not tries:
                raise
            # Jitter: clients that were refused together should not retry together.
            await asyncio.sleep(max(fault.after, pause) * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)


class _RemoteSandbox(StartedSandbox):
    """Base of client and router: calls and new sessions with retries."""

    def __init__(self, tries: int, limits: Limits | None) -> None:
        if tries < 1:
            raise ValueError(f"{tries} tries: it must be 1 or more")
        self._tries = tries
        self._limits = limits

    def _try_run(self, program: Program) -> Callable[[], Awaitable[Result]]:
        """Return one try at a call. It raises ServerUnavailable."""
        raise NotImplementedError

    def _try_open(self, limits: Limits | None, seed: int | None, key: str) -> Callable[[], Awaitable[ClientSession]]:
        """Return one try at opening a session. It raises ServerUnavailable."""
        raise NotImplementedError

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a program with retries; see `Sandbox.run`."""
        ask = self._try_run(with_limits(as_program(program, options), self._limits))
        try:
            return await retry(self._tries, ask)
        except ServerUnavailable as error:
            return Result("infrastructure", stderr=str(error))

    async def session(
        self,
        *,
        limits: Limits | None = None,
        seed: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        opening: Program | None = None,
    ) -> Session:
        """Open a session with retries; see `Sandbox.session`. Raises ValueError for functions and an opening."""
        check_seed(seed)
        if functions or opening is not None:
            raise ValueError(
                "functions: a sandbox elsewhere cannot call functions of this process: run it here (no sandbox.url)"
            )
        ask = self._try_open(limits or self._limits, seed, uuid.uuid4().hex)
        try:
            return await retry(self._tries, ask)
        except ServerUnavailable as error:
            raise SandboxUnavailable(f"no session: {error}") from error


class SandboxClient(_RemoteSandbox):
    """Client of one sandbox server; implements `Sandbox`.

        async with SandboxClient("http://127.0.0.1:8088") as sandbox:
            result = await sandbox.run("print(1 + 1)")

    token: the server's, if it has one. tries: of a call whose server cannot be reached, breaks off or is busy (429, any
    5xx but its own `internal`), with growing pauses; after the last its result is `infrastructure`. A call has no side
    effects and can be repeated; a session's requests carry an idempotency key. limits: of calls without their own;
    None: the server's. connections: concurrent requests, more wait here. patience: seconds that an answer may take
    beyond the call's wall limit, the server's queue included.

    Raises SandboxUnavailable on entry if no server answers, or the server does not allow `limits` (LimitsRefused).
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
        super().__init__(tries, limits)
        if not is_url(url):
            raise ValueError(f"{url!r} is not the URL of a sandbox server: write it as http://host:port")
        self.url = url
        self._remote: Remote | None = None
        self._tier: Tier | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._open = partial(Remote, url, token, connections=connections, patience=patience)

    async def start(self) -> None:
        """Connect. Raises SandboxUnavailable."""
        if self._remote is not None:
            return
        self.connect()
        try:
            await retry(self._tries, self.probe)
        except BaseException as error:
            await self.close()
            if isinstance(error, ServerUnavailable):
                raise SandboxUnavailable(f"no sandbox server answers: {error}") from error
            raise

    def connect(self) -> None:
        """Open the client without asking the server."""
        if self._remote is None:
            self._remote = self._open()

    async def probe(self) -> None:
        """Check that the server answers, takes the token and allows `limits`.

        Raises ServerUnavailable, SandboxUnavailable if it is not a sandbox server, LimitsRefused.
        """
        remote = self._connected()
        health = await remote.ask("GET", "/health", patience=PROBE_SECONDS)
        try:
            tier = decode(health, _Health).tier
        except ServerUnavailable as error:
            raise SandboxUnavailable(f"{self.url} is not a retcon sandbox server") from error
        await remote.ask("GET", "/v1/ping", patience=PROBE_SECONDS)  # needs the token, unlike /health
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
        """Protection around the server's calls. Raises SandboxUnavailable before a server answered."""
        if self._tier is None:
            raise SandboxUnavailable(f"{self.url}: no server has answered yet")
        return self._tier

    def _try_run(self, program: Program) -> Callable[[], Awaitable[Result]]:
        return partial(self.once, program)

    def _try_open(self, limits: Limits | None, seed: int | None, key: str) -> Callable[[], Awaitable[ClientSession]]:
        return partial(self.open_session, limits, seed, key)

    async def once(self, program: Program) -> Result:
        """Run a program without retries. Raises ServerUnavailable, and as `run`."""
        return await self._connected().run("/v1/run", request_body(program), seconds=wall_seconds(program))

    async def open_session(
        self, limits: Limits | None, seed: int | None, key: str, *, on_end: Callable[[], None] = lambda: None
    ) -> ClientSession:
        """Open a session without retries. key: idempotency key. on_end: called once it is closed or lost. On
        cancellation a session that was opened all the same is closed.

        Raises ServerUnavailable, SandboxUnavailable.
        """
        remote = self._connected()
        body = {} if limits is None else {"limits": msgspec.to_builtins(limits)}
        if seed is not None:
            body["seed"] = seed
        opening = asyncio.ensure_future(_open(remote, body, key))
        try:
            opened = await asyncio.shield(opening)
        except asyncio.CancelledError:
            leaving = asyncio.ensure_future(_close_late_session(remote, opening))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
            raise
        self._tier = opened.tier
        return ClientSession(remote, opened.session, self._tries, on_end, limits)

    def _connected(self) -> Remote:
        if self._remote is None:
            raise SandboxUnavailable("the sandbox client is not open: use `async with SandboxClient(...)`")
        return self._remote


async def _try_limits(remote: Remote, limits: Limits) -> None:
    """Try a call under the limits, which a server checks before its queue. Raises LimitsRefused."""
    body = request_body(Program("pass", limits=limits, wait=0.0))
    try:
        await remote.ask("POST", "/v1/run", body, patience=PROBE_SECONDS)
    except (ServerUnavailable, ServerFault):  # about the call alone: the server has answered
        return
    except CallRefused as error:
        raise LimitsRefused(
            f"{remote.url} does not allow the limits of these calls: {error}; ask for less (a recipe: "
            "in [sandbox]), or start the server with more (--max-timeout, --max-memory); a server that does not know a "
            "field is of an earlier version: update it"
        ) from error


async def _open(remote: Remote, body: Mapping[str, Any], key: str) -> _Opened:
    """Open a session; raises as `open_session`."""
    response = await remote.ask("POST", "/v1/sessions", body, key=key)
    opened = decode(response, _Opened)
    try:  # without this confirmation the server soon closes the session
        await remote.ask("GET", f"/v1/sessions/{quote(opened.session, safe='')}")
    except SessionLost as error:
        raise ServerUnavailable(f"{response.url}: {error}", down=False) from error
    return opened


async def _close_late_session(remote: Remote, opening: asyncio.Task[_Opened]) -> None:
    """Close the session of a cancelled request; the server closes a late one by itself."""
    await asyncio.wait((opening,), timeout=LEAVE_SECONDS)
    if not opening.done():
        opening.cancel()
        await asyncio.wait((opening,))
        return
    with contextlib.suppress(ServerUnavailable, SandboxUnavailable, SessionLost, ValueError):
        await remote.ask("DELETE", f"/v1/sessions/{quote(opening.result().session, safe='')}", patience=LEAVE_SECONDS)


class ClientSession:
    """Session on a server; implements `Session`. Each request is done once, even if the connection breaks.

    limits: of cells without their own; None: the server's. on_result: called with the result of each cell.
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
        self._may_be_there = False  # the lost session may still be open on the server

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """Run a cell; see `Session.run`. If the server stays away, the result is `infrastructure`, the session lost."""
        cell = as_cell(program, options)
        seconds = wall_seconds(with_limits(cell, self._limits))  # the server knows the session's limits
        path, body, key = f"/v1/sessions/{self.id}/run", request_body(cell), uuid.uuid4().hex
        try:
            result = await self._repeat(lambda: self._remote.run(path, body, seconds=seconds, key=key))
        except ServerUnavailable as error:
            result = Result("infrastructure", stderr=str(error))
        self.on_result(result)
        return result

    async def checkpoint(self) -> str:
        response = await self._ask("POST", "/checkpoints")
        try:
            return decode(response, _Checkpoint).checkpoint
        except ServerUnavailable as error:
            raise SessionLost(f"session {self.id}: {error}") from error

    async def rollback(self, checkpoint: str) -> None:
        await self._ask("POST", "/rollback", {"checkpoint": checkpoint})

    async def discard(self, checkpoint: str) -> None:
        with contextlib.suppress(SessionLost, SandboxUnavailable):  # then its checkpoints are gone too
            await self._ask("DELETE", f"/checkpoints/{quote(checkpoint, safe='')}")

    async def close(self) -> None:
        if self._lost is None:
            # An unreachable server closes unused sessions by itself.
            with contextlib.suppress(SandboxUnavailable, SessionLost):
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

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> HttpResponse:
        """Send a request. Raises SessionLost if the server stays away, and as `Remote.ask`."""
        path, key = f"/v1/sessions/{self.id}{path}", uuid.uuid4().hex
        try:
            return await self._repeat(lambda: self._remote.ask(method, path, body, key=key), closing=method == "DELETE")
        except ServerUnavailable as error:
            raise SessionLost(f"session {self.id}: {error}") from error

    async def _repeat(self, ask: Callable[[], Awaitable[T]], *, closing: bool = False) -> T:
        if self._lost is not None:
            raise SessionLost(f"session {self.id}: {self._lost}")
        try:
            return await retry(self._tries, ask)
        except (ServerUnavailable, SessionForgotten) as error:
            self._may_be_there = isinstance(error, ServerUnavailable) and not closing
            self._end(str(error))
            raise


def token_from_environment() -> str | None:
    return os.environ.get(TOKEN) or None


class SandboxRouter(_RemoteSandbox):
    """Load balancer over the servers at `urls`; implements `Sandbox`; arguments as of `SandboxClient`.

    A call goes to the server with the fewest calls and sessions of this router, and at once to another if that one is
    busy, cannot be reached or breaks off. A server that cannot be reached, breaks off, rejects the token or is not a
    sandbox any more is taken out and probed after growing pauses until it answers again. One that answers but fails its
    calls is skipped while others are up, for growing pauses after which one call probes it (`CircuitBreaker`); its
    failed calls go to others, at most `FAILED` servers. Sessions stay with their server and are lost with it. If all
    are busy, they are asked again after pauses, `tries` times in all. outage: seconds, from when the last server was
    taken out, for which calls and new sessions wait for one to return. A session's requests wait less: a restarted
    server does not know it.

    Raises SandboxUnavailable on entry if no server answers, or one does not allow `limits` (LimitsRefused).
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str | None = None,
        tries: int = 5,
        limits: Limits | None = None,
        connections: int = 256,
        patience: float = 900.0,
        outage: float = 0.0,
    ) -> None:
        super().__init__(tries, limits)
        if not urls:
            raise ValueError("a router needs one server at least")
        self._servers = [
            _Server(
                SandboxClient(url, token=token, tries=tries, limits=limits, connections=connections, patience=patience)
            )
            for url in dict.fromkeys(urls)
        ]
        self._outage = outage
        self._last_out = self._warned = -math.inf
        self._is_open = False

    async def start(self) -> None:
        """Connect; servers that do not answer yet may join later. Raises SandboxUnavailable."""
        if self._is_open:
            return
        self._is_open = True
        try:
            await gather_or_cancel(self._first_probe(server) for server in self._servers)
        except BaseException:
            await self.close()
            raise
        if not self.up:
            why = "; ".join(server.why for server in self._servers)
            await self.close()
            raise SandboxUnavailable(f"no sandbox server answers: {why}")

    async def close(self) -> None:
        self._is_open = False
        for server in self._servers:
            server.up = False
            await server.stop_probing()
            await server.client.close()

    @property
    def tier(self) -> Tier:
        """The weakest of the servers that have answered."""
        tiers = [server.client.tier for server in self._servers if server.up]
        if not tiers:
            raise SandboxUnavailable("no sandbox server answers")
        return max(tiers, key=TIERS.index)

    @property
    def up(self) -> list[str]:
        """The servers that calls go to."""
        return [server.client.url for server in self._servers if server.up]

    def _try_run(self, program: Program) -> Callable[[], Awaitable[Result]]:
        lost = 0

        async def once(server: _Server) -> Result:
            nonlocal lost
            server.load += 1
            try:
                result = await server.client.once(program)
            finally:
                server.release()
            server.count_result(result)
            lost += result.status == "infrastructure"
            if result.status == "infrastructure" and lost < min(FAILED, len(self.up)):
                raise ServerUnavailable(result.stderr, down=False)
            return result

        return lambda: self._ask_any(once)

    def _try_open(self, limits: Limits | None, seed: int | None, key: str) -> Callable[[], Awaitable[ClientSession]]:
        async def once(server: _Server) -> ClientSession:
            server.load += 1
            try:
                opened = await server.client.open_session(limits, seed, key, on_end=server.release)
            except BaseException:
                server.release()
                raise
            opened.on_result = server.count_result
            return opened

        return lambda: self._ask_any(once)

    async def _ask_any(self, ask: Callable[[_Server], Awaitable[T]]) -> T:
        """Try one server after another until one succeeds. Resting servers are tried only when all rest.

        If none is up, wait for one first. Raises as `_choose`, and ServerUnavailable if all of them fail, with `after`
        until the first has rested.
        """
        await self._await_server()
        asked: set[_Server] = set()
        while True:
            server = self._choose(asked)
            asked.add(server)
            server.breaker.record_request(time.monotonic())
            try:
                return await ask(server)
            except (ServerUnavailable, NotASandbox, ServerFault) as error:
                fault = error if isinstance(error, ServerUnavailable) else ServerUnavailable(str(error))
                now = time.monotonic()
                if fault.down:
                    server.breaker.record_failure(now)
                    if server.up and self._is_open and not isinstance(error, ServerFault):
                        server.take_out(str(fault))
                        self._last_out = now
                server.breaker.until = max(server.breaker.until, now + fault.after)
                rests = {one: one.breaker.until - now for one in self._servers if one.up}
                if all(one in asked or rest > 0 for one, rest in rests.items()):
                    fault.after = min(rests.values(), default=0.0)
                    raise fault from error

    def _choose(self, asked: Container[_Server]) -> _Server:
        """Return the server to try next, preferably not among `asked`.

        Raises ServerUnavailable if none is up, SandboxUnavailable if the router is not open.
        """
        if not self._is_open:
            raise SandboxUnavailable("the sandbox router is not open: use `async with SandboxRouter(...)`")
        there = [server for server in self._servers if server.up]
        if not there:
            raise ServerUnavailable("none of the sandbox servers answers: " + "; ".join(s.why for s in self._servers))
        now = time.monotonic()
        return min(there, key=lambda server: (server in asked, not server.breaker.allows(now), server.load))

    async def _await_server(self) -> None:
        """Wait while no server is up, for `outage` seconds at most."""
        while self._is_open and not self.up:
            left = self._last_out + self._outage - time.monotonic()
            probing = [task for server in self._servers if (task := server.probing) is not None and not task.done()]
            if left <= 0 or not probing:
                return
            if self._warned != self._last_out:  # once an outage
                self._warned = self._last_out
                why = "; ".join(server.why for server in self._servers)
                log.warning("no sandbox server answers (%s); calls wait for another %.0f seconds", why, left)
            # A probe ends when its server answers.
            await asyncio.wait(probing, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def _first_probe(self, server: _Server) -> None:
        server.client.connect()
        try:
            await server.client.probe()
        except LimitsRefused:
            raise  # unlike a server that is down, it would never join
        except (ServerUnavailable, SandboxUnavailable) as error:
            server.take_out(str(error))
        else:
            server.up = True


class _Server:
    """A server of a router. load: calls and sessions in it. why: reason that it is not `up`. probing: task until it
    is. breaker: opens while its calls fail."""

    def __init__(self, client: SandboxClient) -> None:
        self.client = client
        self.up = False
        self.load = 0
        self.breaker = CircuitBreaker(PROBE_PAUSE, LONGEST_PAUSE)
        self.why = ""
        self.probing: asyncio.Task[None] | None = None

    def release(self) -> None:
        self.load -= 1

    def count_result(self, result: Result) -> None:
        """Count a result for the circuit breaker."""
        record = self.breaker.record_failure if result.status == "infrastructure" else self.breaker.record_success
        record(time.monotonic())

    def take_out(self, why: str) -> None:
        self.up, self.why = False, why
        self.probing = asyncio.create_task(self._probe())

    async def stop_probing(self) -> None:
        task, self.probing = self.probing, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _probe(self) -> None:
        pause = PROBE_PAUSE
        while not self.up:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self.client.probe()
            except (ServerUnavailable, SandboxUnavailable) as error:
                self.why = str(error)
            else:
                self.up = True
