"""A sandbox on another machine, or in another process on this one: `retcon sandbox serve` over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from retcon.core.errors import SandboxUnavailable, SessionLost
from retcon.core.texts import is_url
from retcon.http.asking import Answer
from retcon.sandbox.client.remote import (
    CallRefused,
    LimitsRefused,
    Remote,
    RequestAnswered,
    ServerBroken,
    ServerUnavailable,
    SessionForgotten,
    call_body,
    cell_body,
    wall_seconds,
    with_limits,
)
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result, Tier, as_cell, as_program, check_seed

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
