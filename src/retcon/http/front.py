"""Who may ask a server: those with its token; where it has none, no page that a browser shows."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retcon.core.texts import counted
from retcon.http.handling import RequestRefused, Shape, refusal

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


_OPEN_SESSIONS = "/v1/sessions/"


@dataclass(slots=True)
class Draining:
    """seconds: for what is open; 0: it gets none. busy: how many calls and sessions are open. Begins with `begin`."""

    seconds: float
    busy: Callable[[], int]
    _until: float | None = None

    @property
    def on(self) -> bool:
        return self._until is not None

    def begin(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def over(self) -> bool:
        """Whether nothing is open any more, or its time is up."""
        return self._until is not None and (time.monotonic() >= self._until or not self.busy())

    def refused(self, method: str, path: str) -> RequestRefused | None:
        """What a request is told that would begin something; also whoever asks whether the server is there."""
        if not self.on or path.startswith(_OPEN_SESSIONS) or (method == "GET" and path != "/health"):
            return None
        return RequestRefused(503, "draining", "this server is about to end and takes nothing new: ask another one")


_ENDED = RequestRefused(
    503,
    "unavailable",
    "this server has ended before the answer was there: ask another one",
    headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
)
_HOST = re.compile(r"\[([^]]*)](?::\d*)?|([^:]*)(?::\d*)?")


class Front:
    """Asks for the token and counts answers, around everything else. A request whose task is cancelled, as the server
    ends before its answer begins, is told to ask another one (503).

    token: that requests must carry, None to ask for none. open_paths: answered without it. shape: of an error's body.
    answered: how many requests were, by HTTP status. draining: what the server does before it ends, if anything.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        open_paths: Sequence[str],
        shape: Shape,
        answered: Counter[int],
        draining: Draining | None = None,
    ) -> None:
        self._app = app
        self.draining = draining
        self._wanted = None if token is None else f"Bearer {token}".encode()
        self._open_paths, self._shape, self._answered = open_paths, shape, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._answered[message["status"]] += 1
            await send(message)

        refused = None if scope["path"] in self._open_paths else self._refused(scope)
        if refused is None and self.draining is not None:
            refused = self.draining.refused(scope["method"], scope["path"])
        if refused is None:
            try:
                await self._app(scope, receive, counted)
            except asyncio.CancelledError:
                if not begun:
                    await self._refuse(_ENDED, scope, receive, counted)
                raise
            return
        await self._refuse(refused, scope, receive, counted)

    async def _refuse(self, refused: RequestRefused, scope: Scope, receive: Receive, send: Send) -> None:
        response = refusal(refused, self._shape, {"Connection": "close"})
        await response(scope, receive, send)

    def _refused(self, scope: Scope) -> RequestRefused | None:
        given = dict(scope["headers"])
        if self._wanted is not None:
            if hmac.compare_digest(given.get(b"authorization", b""), self._wanted):
                return None
            said = "give the server's token: Authorization: Bearer …"
            return RequestRefused(401, "unauthorized", said, headers={"WWW-Authenticate": "Bearer"})
        if b"origin" in given:  # any page may send requests to its reader's own machine, and browsers say that it did
            return RequestRefused(403, "from_a_browser", "a server without a token takes no requests of web pages")
        host = given.get(b"host", b"").decode("latin-1")
        if _is_here((scope.get("server") or ("",))[0]) and not _is_no_pages_name(host):
            said = f"a server without a token takes no requests for {host!r}, as a page of that name may send them"
            return RequestRefused(403, "from_a_browser", f"{said}: ask for localhost, or give the server a token")
        return None


def _is_here(address: str) -> bool:
    """Whether it is one of this machine's addresses that only this machine reaches; of IPv4's also as a server that
    listens on `::` is told of them, `::ffff:127.0.0.1`."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _is_no_pages_name(host: str) -> bool:
    """Whether a `Host` is an address, localhost, or a name without a dot: none that lies in anyone's domain.

    A name that does may be made to lead here while a page of that name is shown: to the browser the server is then the
    page's own, and it sends no `Origin` with what it reads.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2] or "").rstrip(".").lower()
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
