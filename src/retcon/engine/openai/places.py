"""Who asks a server next, where more rollouts wait than it takes requests at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

IN_A_ROW = 16
"""Turns of rollouts that are under way, after which one that has yet to begin has its first: none waits for ever."""


class Places:
    """So many at a time. Rollouts that are under way go before others' first turns, so that they come to their ends one
    after the other: what is kept of an evaluation that is interrupted are whole problems."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._again: deque[asyncio.Future[None]] = deque()
        self._first: deque[asyncio.Future[None]] = deque()
        self._in_a_row = 0

    @asynccontextmanager
    async def place(self, *, under_way: bool) -> AsyncIterator[None]:
        """A place, for as long as the block lasts."""
        if self._free:
            self._free -= 1
        else:
            await self._turn(self._again if under_way else self._first)
        try:
            yield
        finally:
            self._leave()

    async def _turn(self, queue: deque[asyncio.Future[None]]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had just been given one
                self._leave()
            raise

    def _leave(self) -> None:
        queues = (self._again, self._first) if self._in_a_row < IN_A_ROW else (self._first, self._again)
        for queue in queues:
            while queue:
                if not (turn := queue.popleft()).done():  # else nobody waits for it any more
                    self._in_a_row = self._in_a_row + 1 if queue is self._again else 0
                    turn.set_result(None)
                    return
        self._free += 1
