"""Sessions of the sandbox that are made ready once and go back to that state after every use.

A new session costs tens of milliseconds, and whatever it imports besides; to roll one back costs about ten, and to see
that it is there about as much. None meets what another left.
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
"""A cell by which a session shows that it is there: where its last use spoiled the frozen copy of its state, it dies of
that only after it was rolled back."""


class _Warm(NamedTuple):
    session: Session
    state: str
    since: float


class WarmSessions:
    """At most `at_once` sessions, each opened when it is first needed. code: a cell that makes them ready.

    trusted_seconds: after a use, in which a session is taken to be there without a look: 0 where its uses run programs
    of a model's, else less than a sandbox keeps one that nobody uses.
    """

    def __init__(
        self, sandbox: Sandbox, code: str, limits: Limits, *, at_once: int, trusted_seconds: float = 0.0
    ) -> None:
        self._sandbox, self._code, self._limits = sandbox, code, limits
        self._trusted_seconds = trusted_seconds
        self._at_once = at_once
        self._free: asyncio.LifoQueue[_Warm | None] = asyncio.LifoQueue()
        for _ in range(at_once):
            self._free.put_nowait(None)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Session]:
        """A session in its first state. One whose use raises is ended, and another takes its place; so is one that its
        use keeps from going back, which is no fault: what was asked of it is answered.

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

    async def _ready(self, warm: _Warm | None) -> _Warm:
        if warm is not None:
            if time.monotonic() - warm.since < self._trusted_seconds:
                return warm
            with contextlib.suppress(RetconError):  # it was evicted, say, or its worker is gone: nobody's fault
                if (await warm.session.run(NOTHING)).status == "ok":
                    return warm
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
