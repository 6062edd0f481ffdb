"""Pool of prepared sandbox sessions, rolled back after every use.

A new session costs tens of milliseconds, plus its imports; a rollback costs about ten, and a liveness check about as
much. No use sees the state of another.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from retcon.core.errors import InfrastructureFault, RetconError
from retcon.sandbox.types import Limits, Sandbox, Session

NOTHING = "pass"
"""Cell of a liveness check: a session whose last use broke the frozen copy of its state dies only after the
rollback."""


class _WarmSession(NamedTuple):
    session: Session
    state: str
    since: float


class WarmSessions:
    """Pool of at most `at_once` sessions, opened on demand. code: a cell that prepares them.

    trusted_seconds: time after a use without a liveness check: 0 where uses run a model's programs, else less than the
    sandbox keeps an idle session.
    """

    def __init__(
        self, sandbox: Sandbox, code: str, limits: Limits, *, at_once: int, trusted_seconds: float = 0.0
    ) -> None:
        self._sandbox, self._code, self._limits = sandbox, code, limits
        self._trusted_seconds = trusted_seconds
        self._at_once = at_once
        self._free: asyncio.LifoQueue[_WarmSession | None] = asyncio.LifoQueue()
        for _ in range(at_once):
            self._free.put_nowait(None)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Session]:
        """Yield a session in its prepared state. One whose use raises is ended and replaced; so is one that cannot be
        rolled back, without an error.

        Raises InfrastructureFault where it cannot be opened, and for any error of the sandbox during its use.
        """
        warm = await self._free.get()
        keep = None
        try:
            warm = await self._ready(warm)
            yield warm.session
            with contextlib.suppress(RetconError):
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

    async def _ready(self, warm: _WarmSession | None) -> _WarmSession:
        if warm is not None:
            if time.monotonic() - warm.since < self._trusted_seconds:
                return warm
            with contextlib.suppress(RetconError):  # it was evicted, say, or its worker is gone
                if (await warm.session.run(NOTHING)).status == "ok":
                    return warm
            await warm.session.close()
        return await self._open()

    async def _open(self) -> _WarmSession:
        try:
            session = await self._sandbox.session(limits=self._limits)
        except ValueError as error:  # its server does not allow the limits
            raise InfrastructureFault(f"an answer could not be graded: {error}") from error
        result = await session.run(self._code)
        if result.status != "ok":
            await session.close()
            last = result.stderr.strip().rpartition("\n")[2]
            raise InfrastructureFault(f"a session of the sandbox does not become ready: {result.status}: {last}")
        return _WarmSession(session, await session.checkpoint(), time.monotonic())
