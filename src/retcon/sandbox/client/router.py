"""Several sandbox servers as one sandbox."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Container, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

from retcon.core.breaker import CircuitBreaker
from retcon.core.errors import SandboxUnavailable
from retcon.core.together import together
from retcon.sandbox.client.client import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    ClientSession,
    LimitsRefused,
    NotOurs,
    SandboxClient,
    ServerBroken,
    ServerUnavailable,
    repeated,
    with_limits,
)
from retcon.sandbox.types import Limits, Program, ProgramOptions, Result, Session, Tier, as_program, check_seed

log = logging.getLogger(__name__)
T = TypeVar("T")
FAILED = 3
"""Servers that a program is run on where each gives no result: that many say that it is the program."""
WEAKEST_FIRST: tuple[Tier, ...] = ("rlimits", "landlock", "namespaces")


class SandboxRouter:
    """Implements `Sandbox` over the servers at `urls`; arguments as of `SandboxClient`.

    A call goes to the server with the fewest calls and sessions of this router's, and where that one is busy, cannot be
    reached or breaks off, to another at once. One that cannot be reached, breaks off or wants another token by now is
    taken out, and comes back in once it answers again, which is tried after growing pauses; so is one in whose place
    something else answers. One that answers, and fails its calls, is passed over while others are there, for growing
    pauses after which one call probes it (`CircuitBreaker`); what it failed goes to another, `FAILED` in all. Sessions
    stay with their server and are lost with it.
    Where all are busy, they are asked again after pauses, `tries` times in all.
    outage: seconds, from when the last server was taken out, for which calls and new sessions wait for one to come back
    in. What is asked of a session is not waited for so long: a server that was restarted has no session of before.

    Raises SandboxUnavailable on entry where none of the servers answers, or one of them does not allow `limits`
    (LimitsRefused).
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
        if not urls:
            raise ValueError("a router needs one server at least")
        self._servers = [
            _Server(
                SandboxClient(url, token=token, tries=tries, limits=limits, connections=connections, patience=patience)
            )
            for url in dict.fromkeys(urls)
        ]
        self._tries = tries
        self._limits = limits
        self._outage = outage
        self._last_out = self._told = -math.inf
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect; servers that do not answer yet may come in later. Raises SandboxUnavailable."""
        if self._is_open:
            return
        self._is_open = True
        try:
            await together(self._first_probe(server) for server in self._servers)
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
        return min(tiers, key=WEAKEST_FIRST.index)

    @property
    def up(self) -> list[str]:
        """The servers that calls go to."""
        return [server.client.url for server in self._servers if server.up]

    async def run(self, program: str | Program, /, **options: Unpack[ProgramOptions]) -> Result:
        """See `Sandbox.run`."""
        asked, lost = with_limits(as_program(program, options), self._limits), 0

        async def once(server: _Server) -> Result:
            nonlocal lost
            server.load += 1
            try:
                result = await server.client.once(asked)
            finally:
                server.less()
            server.saw(result)
            lost += result.status == "infrastructure"
            if result.status == "infrastructure" and lost < min(FAILED, len(self.up)):
                raise ServerUnavailable(result.stderr, down=False)
            return result

        try:
            return await repeated(self._tries, lambda: self._of_any(once))
        except ServerUnavailable as error:
            return Result("infrastructure", stderr=str(error))

    async def session(self, *, limits: Limits | None = None, seed: int | None = None) -> Session:
        """See `Sandbox.session`."""
        check_seed(seed)
        key = uuid.uuid4().hex

        async def once(server: _Server) -> ClientSession:
            server.load += 1
            try:
                opened = await server.client.open_session(limits or self._limits, seed, key, on_end=server.less)
            except BaseException:
                server.less()
                raise
            opened.on_result = server.saw
            return opened

        try:
            return await repeated(self._tries, lambda: self._of_any(once))
        except ServerUnavailable as error:
            raise SandboxUnavailable(f"no session: {error}") from error

    async def _of_any(self, ask: Callable[[_Server], Awaitable[T]]) -> T:
        """What the first server gives that does not fail: where one does, the next is asked at once, but for those that
        rest, unless all do.

        Where none is there, that waits for one (`_outlast`). Raises as `_choose`, and ServerUnavailable where all of
        them fail; `after` is then until the first has rested.
        """
        await self._outlast()
        asked: set[_Server] = set()
        while True:
            server = self._choose(asked)
            asked.add(server)
            server.breaker.sent(time.monotonic())
            try:
                return await ask(server)
            except (ServerUnavailable, NotOurs, ServerBroken) as error:
                fault = error if isinstance(error, ServerUnavailable) else ServerUnavailable(str(error))
                now = time.monotonic()
                if fault.down:
                    server.breaker.failed(now)
                    if server.up and self._is_open and not isinstance(error, ServerBroken):
                        server.take_out(str(fault))
                        self._last_out = now
                server.breaker.until = max(server.breaker.until, now + fault.after)
                rests = {one: one.breaker.until - now for one in self._servers if one.up}
                if all(one in asked or rest > 0 for one, rest in rests.items()):
                    fault.after = min(rests.values(), default=0.0)
                    raise fault from error

    def _choose(self, asked: Container[_Server]) -> _Server:
        """The server to ask next, one that is not among `asked` where there is any.

        Raises ServerUnavailable where none is there, SandboxUnavailable where this is not open.
        """
        if not self._is_open:
            raise SandboxUnavailable("the sandbox router is not open: use `async with SandboxRouter(...)`")
        there = [server for server in self._servers if server.up]
        if not there:
            raise ServerUnavailable("none of the sandbox servers answers: " + "; ".join(s.why for s in self._servers))
        now = time.monotonic()
        return min(there, key=lambda server: (server in asked, not server.breaker.takes(now), server.load))

    async def _outlast(self) -> None:
        """Wait while none of the servers is there, as long as an outage may be."""
        while self._is_open and not self.up:
            left = self._last_out + self._outage - time.monotonic()
            probing = [task for server in self._servers if (task := server.probing) is not None and not task.done()]
            if left <= 0 or not probing:
                return
            if self._told != self._last_out:  # once an outage
                self._told = self._last_out
                why = "; ".join(server.why for server in self._servers)
                log.warning("no sandbox server answers (%s); calls wait for another %.0f seconds", why, left)
            # A probe ends when its server is there.
            await asyncio.wait(probing, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    async def _first_probe(self, server: _Server) -> None:
        server.client.connect()
        try:
            await server.client.probe()
        except LimitsRefused:
            raise  # unlike a server that is away, it would never come in
        except (ServerUnavailable, SandboxUnavailable) as error:
            server.take_out(str(error))
        else:
            server.up = True


class _Server:
    """One of a router's servers. load: calls and sessions of the router in it. why: it is not `up`. probing: goes on
    until it is. breaker: whether it does what it is asked."""

    def __init__(self, client: SandboxClient) -> None:
        self.client = client
        self.up = False
        self.load = 0
        self.breaker = CircuitBreaker(FIRST_PAUSE, LONGEST_PAUSE)
        self.why = ""
        self.probing: asyncio.Task[None] | None = None

    def less(self) -> None:
        self.load -= 1

    def saw(self, result: Result) -> None:
        """Note whether it could run a program."""
        (self.breaker.failed if result.status == "infrastructure" else self.breaker.answered)(time.monotonic())

    def take_out(self, why: str) -> None:
        self.up, self.why = False, why
        self.probing = asyncio.create_task(self._probe())

    async def stop_probing(self) -> None:
        task, self.probing = self.probing, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _probe(self) -> None:
        pause = FIRST_PAUSE
        while not self.up:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST_PAUSE)
            try:
                await self.client.probe()
            except (ServerUnavailable, SandboxUnavailable) as error:
                self.why = str(error)
            else:
                self.up = True
