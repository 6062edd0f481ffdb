"""Sessions over HTTP: an interpreter that keeps its variables from one request to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.http.body import parse
from retcon.http.handling import answer, read_body, unless_gone
from retcon.http.refusal import RequestRefused
from retcon.sandbox.service.apis.own import Cell, LimitFields, Seed, checked_cell, checked_limits
from retcon.sandbox.service.calls import Calls, Ending, unavailable
from retcon.sandbox.service.once import KEY, Answers
from retcon.sandbox.types import Limits, Tier

ENDED = 256
"""Sessions that ended by themselves, or were evicted, whose clients can still ask why: the last that were used."""


class Open(Struct, forbid_unknown_fields=True, kw_only=True):
    limits: LimitFields | None = None
    seed: Seed | None = None


class Opened(Struct):
    """session: its id. tier: what holds around its cells."""

    session: str
    tier: Tier


class Checkpoint(Struct, forbid_unknown_fields=True):
    """checkpoint: its name."""

    checkpoint: str


class Entry:
    """An open session, the limits of its cells, and its latest answers."""

    def __init__(self, session: Ending, limits: Limits) -> None:
        self.session = session
        self.limits = limits
        self.answers = Answers[Any]()
        self.used = time.monotonic()


class SessionsApi:
    """The handlers below `/v1/sessions`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._entries: dict[str, Entry] = {}

    async def open(self, request: Request) -> Response:
        """A fresh session; those that nobody has used for long are closed first, and most that have ended forgotten."""
        body = await read_body(request, self._calls.settings.max_body)
        asked = parse(body or b"{}", Open)
        limits = checked_limits(self._calls, asked.limits, self._calls.settings.limits)
        await self._make_room()
        try:
            session = await unless_gone(request, self._calls.sandbox.session(limits=limits, seed=asked.seed))
        except SandboxUnavailable as error:
            raise unavailable(error, "busy") from error  # no room for one more; there may be later
        self._entries[session.id] = Entry(session, limits)
        return answer(Opened(session.id, self._calls.tier), 201)

    async def run(self, request: Request) -> Response:
        entry, body = await self._asked(request)
        cell = checked_cell(self._calls, parse(body, Cell), entry.limits)
        return answer(
            await self._once(
                request,
                entry,
                body,
                lambda: self._calls.run("session", lambda: entry.session.run(cell)),
            )
        )

    async def checkpoint(self, request: Request) -> Response:
        entry, body = await self._asked(request)
        return answer(Checkpoint(await self._once(request, entry, body, entry.session.checkpoint)), 201)

    async def rollback(self, request: Request) -> Response:
        entry, body = await self._asked(request)
        name = parse(body, Checkpoint).checkpoint

        async def work() -> None:
            try:
                await entry.session.rollback(name)
            except KeyError as error:
                raise RequestRefused(
                    404, "unknown_checkpoint", f"no checkpoint '{name}'", field="checkpoint"
                ) from error

        await self._once(request, entry, body, work)
        return answer(Checkpoint(name))

    async def discard(self, request: Request) -> Response:
        entry, body = await self._asked(request)
        name = request.path_params["checkpoint"]
        await self._once(request, entry, body, lambda: entry.session.discard(name))
        return Response(status_code=204)

    async def close(self, request: Request) -> Response:
        """Closing twice, or what was never there, is no error."""
        entry = self._entries.pop(request.path_params["session"], None)
        if entry is not None:
            await self._end(entry)
        return Response(status_code=204)

    async def _asked(self, request: Request) -> tuple[Entry, bytes]:
        name = request.path_params["session"]
        entry = self._entries.get(name)
        if entry is None:
            raise RequestRefused(
                404, "unknown_session", f"no session '{name}': it was closed, or this server has restarted"
            )
        entry.used = time.monotonic()
        return entry, await read_body(request, self._calls.settings.max_body)

    async def _once(
        self, request: Request, entry: Entry, body: bytes, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Do it; where it has been asked before under the same key, what came of it then."""
        key = request.headers.get(KEY)
        try:
            if key is None:
                return await unless_gone(request, work())
            return await entry.answers.once(request, key, body, work)
        except SessionLost as error:
            extra = {"by_own_code": error.by_own_code}
            raise RequestRefused(410, "session_lost", str(error), extra=extra) from error
        except CheckpointRefused as error:
            raise RequestRefused(409, "refused", str(error), extra={"full": error.full}) from error
        finally:
            entry.used = time.monotonic()

    async def _make_room(self) -> None:
        latest = time.monotonic() - self._calls.settings.session_idle
        idle = [name for name, entry in self._entries.items() if entry.used < latest]
        for name in idle:
            await self._end(self._entries.pop(name))
        ended = [name for name, entry in self._entries.items() if entry.session.ended]
        for name in sorted(ended, key=lambda name: self._entries[name].used)[:-ENDED]:
            await self._end(self._entries.pop(name))

    @staticmethod
    async def _end(entry: Entry) -> None:
        entry.answers.give_up("it was closed")
        await entry.session.close()
