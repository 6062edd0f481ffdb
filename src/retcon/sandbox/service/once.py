"""Work that is done once, however often it is asked for under the same key, as clients do whose connection broke."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar

from starlette.requests import Request

from retcon.core.errors import SessionLost
from retcon.http.handling import ClientGone, unless_gone
from retcon.http.refusal import RequestRefused

T = TypeVar("T")
KEY = "idempotency-key"
REMEMBERED = 4
"""Answers that are kept for a client that asks again with the same key, beside those that are not there yet."""
RECONNECT_SECONDS = 10.0
"""How long what a vanished client asked of a session, under a key, goes on: it may ask again."""


class Answer(Generic[T]):
    """What was asked under a key, and what comes of it.

    patience: seconds that the work goes on without a reader. giving_up: set while there is none.
    """

    def __init__(self, asked: bytes, task: asyncio.Task[T], patience: float) -> None:
        self.asked = asked
        self.task = task
        self.patience = patience
        self.readers = 0
        self.giving_up: asyncio.TimerHandle | None = None
        self.given_up = "its work was abandoned: nobody waited for the answer"

    async def read(self, request: Request) -> T:
        """Raises ClientGone, SessionLost where the work was given up, and what the work raises."""
        self.readers += 1
        if self.giving_up is not None:
            self.giving_up.cancel()
        try:
            return await unless_gone(request, self._shielded())
        except ClientGone:
            if self.readers == 1:
                self.giving_up = asyncio.get_running_loop().call_later(self.patience, self.task.cancel)
            raise
        finally:
            self.readers -= 1

    async def _shielded(self) -> T:
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if self.task.cancelled():
                raise SessionLost(self.given_up) from None
            raise


class Answers(Generic[T]):
    """By key. What is not done yet is never forgotten; of the rest the last `remembered` to come are known.

    patience: seconds that work goes on when the last client that asked for it has gone. 0: at once it is given up,
    which leaves nothing behind, and who asks again begins it anew.
    """

    def __init__(self, *, remembered: int = REMEMBERED, patience: float = RECONNECT_SECONDS) -> None:
        self._remembered = remembered
        self._patience = patience
        self._known: dict[str, Answer[T]] = {}

    async def once(
        self, request: Request, key: str, body: bytes, work: Callable[[], Coroutine[object, object, T]]
    ) -> T:
        """What `work` comes to, or came to when it was asked for under this key before.

        Raises RequestRefused where the key was another request's, and as `Answer.read`.
        """
        asked = hashlib.sha256(request.url.path.encode() + body).digest()
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Answer(asked, asyncio.ensure_future(work()), self._patience)
            known.task.add_done_callback(lambda _: self._came(key))
        elif known.asked != asked:
            raise RequestRefused(422, "invalid", f"the key '{key}' has been used for another request", field=KEY)
        return await known.read(request)

    def forget(self, key: str) -> None:
        """What was answered under it: who asks again has the work done anew."""
        known = self._known.get(key)
        if known is not None and known.task.done():
            del self._known[key]

    def give_up(self, why: str) -> None:
        """End what is not done; who waits for it is told why."""
        for known in self._known.values():
            known.given_up = why
            known.task.cancel()

    def _came(self, key: str) -> None:
        known = self._known.pop(key)  # to stand last
        nothing = not self._patience if known.task.cancelled() else isinstance(known.task.exception(), RequestRefused)
        if nothing:  # was done: who asks again may have more luck
            return
        self._known[key] = known
        done = [name for name, one in self._known.items() if one.task.done()]
        for name in done[: -self._remembered]:
            del self._known[name]
