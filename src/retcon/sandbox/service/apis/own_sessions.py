"""Sessions over HTTP: an interpreter that keeps its variables from one request to the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
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
OPENINGS = 1024
"""Keys under which a session was opened that are kept for a client that asks again: the last."""
UNUSED_SECONDS = 60.0
"""After which a session that was opened under a key is closed, unless its client has asked anything of it: then it has
learnt which session it has."""


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
    """An open session, the limits of its cells, and its latest answers. requests: that are being served.
    key: under which it was opened. unused: ends it, until its client has asked something of it."""

    def __init__(self, session: Ending, limits: Limits) -> None:
        self.session = session
        self.limits = limits
        self.answers = Answers[Any]()
        self.used = time.monotonic()
        self.requests = 0
        self.key: str | None = None
        self.unused: asyncio.TimerHandle | None = None

    def learnt(self) -> None:
        """Its client knows that it has it."""
        if self.unused is not None:
            self.unused.cancel()


class SessionsApi:
    """The handlers below `/v1/sessions`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._entries: dict[str, Entry] = {}
        self._openings = Answers[Entry](remembered=OPENINGS, patience=0.0)
        self._closing: set[asyncio.Task[None]] = set()

    async def open(self, request: Request) -> Response:
        """A fresh session; those that nobody has used for long are closed first, and most that have ended forgotten."""
        body = await read_body(request, self._calls.settings.max_body)
        asked = parse(body or b"{}", Open)
        limits = checked_limits(self._calls, asked.limits, self._calls.settings.limits)
        await self._make_room()
        key = request.headers.get(KEY)
        if key is None:
            entry = await unless_gone(request, self._opened(limits, asked.seed), undo=self._close)
        else:
            work = partial(self._opened, limits, asked.seed, key)
            try:
                entry = await self._openings.once(request, key, body, work)
            except SessionLost as error:  # given up as this client came, with the one before it
                raise unavailable(SandboxUnavailable(str(error)), "busy") from error
        return answer(self._said(entry), 201)

    async def told(self, request: Request) -> Response:
        """The session, whose client by this has learnt that it has it."""
        entry, body = await self._asked(request)
        if entry.session.ended:
            self._forget(entry)  # asked for again under its key, another one is opened
            await self._once(request, entry, body, entry.session.checkpoint)  # which says why it is lost
        return answer(self._said(entry))

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
        entry = self._entries.get(request.path_params["session"])
        if entry is not None:
            await self._close(entry)
        return Response(status_code=204)

    async def _opened(self, limits: Limits, seed: int | None, key: str | None = None) -> Entry:
        """key: that the client asked under; it may ask again, if the answer is lost, but not for ever."""
        try:
            session = await self._calls.sandbox.session(limits=limits, seed=seed)
        except SandboxUnavailable as error:
            raise unavailable(error, "busy") from error  # no room for one more; there may be later
        entry = self._entries[session.id] = Entry(session, limits)
        if key is not None:
            entry.key = key
            entry.unused = asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._close_unused, entry)
        return entry

    def _close_unused(self, entry: Entry) -> None:
        task = asyncio.ensure_future(self._close(entry))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _forget(self, entry: Entry) -> None:
        """That it was opened under its key."""
        if entry.key is not None:
            self._openings.forget(entry.key)
            entry.key = None

    def _said(self, entry: Entry) -> Opened:
        return Opened(entry.session.id, self._calls.tier)

    async def _asked(self, request: Request) -> tuple[Entry, bytes]:
        name = request.path_params["session"]
        entry = self._entries.get(name)
        if entry is None:
            raise RequestRefused(
                404, "unknown_session", f"no session '{name}': it was closed, or this server has restarted"
            )
        entry.used = time.monotonic()
        entry.learnt()
        return entry, await read_body(request, self._calls.settings.max_body)

    async def _once(
        self, request: Request, entry: Entry, body: bytes, work: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Any:
        """Do it; where it has been asked before under the same key, what came of it then."""
        key = request.headers.get(KEY)
        entry.requests += 1
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
            entry.requests -= 1
            entry.used = time.monotonic()

    async def _make_room(self) -> None:
        latest = time.monotonic() - self._calls.settings.session_idle
        ended = [entry for entry in self._entries.values() if entry.session.ended]
        open_ones = [entry for entry in self._entries.values() if not entry.session.ended]
        idle = [entry for entry in open_ones if entry.used < latest and not entry.requests]
        for entry in [*idle, *sorted(ended, key=lambda entry: entry.used)[:-ENDED]]:
            await self._close(entry)

    async def _close(self, entry: Entry) -> None:
        self._entries.pop(entry.session.id, None)
        entry.learnt()
        self._forget(entry)
        entry.answers.give_up("it was closed")
        await entry.session.close()
