"""How many calls the service holds at a time, and who waits."""

from __future__ import annotations

import asyncio
from collections import deque

from retcon.core.texts import counted
from retcon.http.refusal import RequestRefused

RETRY_AFTER_SECONDS = 1


class Gate:
    """Counts the calls inside, running or queued, `room` at most.

    A single call that finds no room is refused at once. Calls of a batch, whose request the service holds anyway, may
    wait for room instead.
    """

    def __init__(self, room: int) -> None:
        self.inside = 0
        self._room = room
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self) -> None:
        """Raises RequestRefused (503 with Retry-After) where there is no room."""
        if self.inside >= self._room or self._waiting:
            raise RequestRefused(
                503,
                "busy",
                f"this server takes {counted(self.inside, 'call')} at a time, running or queued: try again later",
                headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
            )
        self.inside += 1

    async def wait(self) -> None:
        """Enter as soon as there is room, in the order of asking."""
        if self.inside < self._room and not self._waiting:
            self.inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was let in at the same moment
                self.leave()
            elif turn in self._waiting:  # else somebody has left since, and has passed it over
                self._waiting.remove(turn)
            raise

    def leave(self) -> None:
        self.inside -= 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)
                return
