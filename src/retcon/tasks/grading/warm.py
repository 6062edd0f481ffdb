"""Sessions of the sandbox that are made ready once and go back to that state after every use.

A new session costs tens of milliseconds, and whatever it imports besides; to roll one back costs about ten. None meets
what another left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from retcon.core.errors import InfrastructureFault, RetconError
from retcon.sandbox.types import Limits, Sandbox, Session

IDLE_SECONDS = 60.0
"""After which a session may be gone, as the sandbox evicts those that nobody uses."""


class _Warm(NamedTuple):
    session: Session
    state: str
    since: float


class WarmSessions:
    """At most `at_once` sessions, each opened when it is first needed. code: a cell that makes them ready."""

    def __init__(
        self, sandbox: Sandbox, code: str, limits: Limits, *, at_once: int, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._sandbox, self._code, self._limits = sandbox, code, limits
        self._idle_seconds = idle_seconds
        self._at_once = at_once
        self._free: asyncio.LifoQueue[_Warm | None] = asyncio.LifoQueue()
        for _ in range(at_once):
            self._free.put_nowait(None)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Session]:
        """A session in its first state. One whose use raises is ended, and another takes its place.

        Raises InfrastructureFault where it cannot be opened, and for any error of the sandbox during its use.
        """
        warm = await self._free.get()
        keep = None
        try:
            warm = await self._ready(warm)
            yield warm.session
            await warm.session.rollback(warm.state)
            keep = warm._replace(since=time.monotonic())
        except InfrastructureFault:
            raise
        except RetconError as error:
            raise InfrastructureFault(f"an answer could not be graded: {error}") from error
        finally:
            self._free.put_nowait(keep)
            if warm is not None and keep is None:
                await warm.session.close()

    async def close(self) -> None:
        """End them, once those in use are free; the next use opens one anew."""
        for _ in range(self._at_once):
            warm = await self._free.get()
            if warm is not None:
                await warm.session.close()
        for _ in range(self._at_once):
            self._free.put_nowait(None)

    async def _ready(self, warm: _Warm | None) -> _Warm:
        if warm is not None and time.monotonic() - warm.since < self._idle_seconds:
            return warm
        if warm is not None:
            try:
                await warm.session.rollback(warm.state)
                return warm
            except RetconError:  # evicted, or its worker is gone: while nobody used it, so it is nobody's fault
                await warm.session.close()
        return await self._opened()

    async def _opened(self) -> _Warm:
        try:
            session = await self._sandbox.session(limits=self._limits)
        except ValueError as error:  # its server does not allow the limits
            raise InfrastructureFault(f"an answer could not be graded: {error}") from error
        result = await session.run(self._code)
        if result.status != "ok":
            await session.close()
            last = result.stderr.strip().rpartition("\n")[2]
            raise InfrastructureFault(f"a session of the sandbox does not become ready: {result.status}: {last}")
        return _Warm(session, await session.checkpoint(), time.monotonic())
