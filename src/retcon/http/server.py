"""Listening socket, uvicorn server and graceful shutdown."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from retcon.core.errors import RetconError
from retcon.http.endpoints import DrainState

BACKLOG = 2048
GRACE_SECONDS = 10
"""Time that calls in flight have after a stop signal."""
LAST_SECONDS = 45
"""Time until the process is killed: enough for calls in flight, then for the sandbox's processes."""


class AddressUnavailable(RetconError):
    """A service cannot listen on the given address."""


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket. port: 0 takes any free one. Raises AddressUnavailable."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        raise AddressUnavailable(f"--host {host}: {getattr(error, 'strerror', None) or error}") from error
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError as error:
        opened.close()
        hint = ": choose another --port, or 0 for any that is free" if error.errno == errno.EADDRINUSE else ""
        raise AddressUnavailable(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    return opened


def url_of(opened: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(opened: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(opened.getsockname()[0]).is_loopback


def allow_many_connections() -> int:
    """Raise this process's limit on open files to its maximum; return that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class StopSignals:
    """Handler of SIGINT and SIGTERM from now on: a server that starts later ends at once.

    While a server runs it handles them itself, and raises them once more, to this, when it has shut down.

    last_seconds: after the first signal, until the kernel ends the process (SIGALRM) even if it is stuck.
    """

    def __init__(self, last_seconds: int = LAST_SECONDS) -> None:
        self.last_seconds = last_seconds
        self._asked = False
        self._server: uvicorn.Server | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def watch(self, server: uvicorn.Server) -> None:
        self._server = server
        server.should_exit = self._asked

    def request_stop(self) -> None:
        """Record that a stop was requested, and start the alarm."""
        if not self._asked:
            self._asked = True
            signal.alarm(self.last_seconds)

    def _stop(self, number: int, frame: object) -> None:
        self.request_stop()
        if self._server is not None:
            self._server.should_exit = True


async def serve(
    app: ASGIApp,
    opened: socket.socket,
    signals: StopSignals,
    *,
    grace: int = GRACE_SECONDS,
    draining: DrainState | None = None,
) -> None:
    """Serve until a signal; then calls in flight have `grace` seconds.

    draining: comes first; a second signal ends it, and calls in flight."""
    server = _server(app, signals, grace, draining)
    signals.watch(server)
    await server.serve(sockets=[opened])


@asynccontextmanager
async def run_in_loop(app: ASGIApp, opened: socket.socket) -> AsyncIterator[str]:
    """Run a server in this event loop within the block; yield its URL. It handles no signals."""
    server = _server(app)
    task = asyncio.create_task(server.serve(sockets=[opened]))
    try:
        yield url_of(opened)
    finally:
        server.should_exit = server.force_exit = True
        await task


class _Server(uvicorn.Server):
    """uvicorn server that drains, if asked for, before it exits. signals: informed of those it handles."""

    def __init__(self, config: uvicorn.Config, signals: StopSignals | None, draining: DrainState | None) -> None:
        super().__init__(config)
        self._signals, self._draining = signals, draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone in `run_in_loop`: Ctrl-C is for the block, not for the server."""
        with super().capture_signals() if self._signals is not None else nullcontext():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._signals is not None:
            self._signals.request_stop()
        if self._draining is None or not self._draining.seconds or self._draining.on:
            self.force_exit = self.force_exit or (self._draining is not None and self._draining.on)
            super().handle_exit(sig, frame)
        else:
            self._draining.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(super().shutdown(sockets))
        try:
            await asyncio.wait([ending], timeout=0.2)
            while not (ending.done() or self.force_exit):
                await asyncio.wait([ending], timeout=0.2)
            if self.force_exit:  # else calls beyond their grace are cancelled already
                for task in self.server_state.tasks:
                    task.cancel()
            await ending  # since Python 3.12 it also waits for open connections
        finally:
            ending.cancel()

    async def on_tick(self, counter: int) -> bool:
        if self._draining is not None and self._draining.over:
            self.should_exit = True
        return await super().on_tick(counter)


def _server(
    app: ASGIApp,
    signals: StopSignals | None = None,
    grace: int = GRACE_SECONDS,
    draining: DrainState | None = None,
) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            http="h11",  # httptools has no limit on headers
            ws="none",
            access_log=False,
            server_header=False,
            date_header=False,
            log_level="warning",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=grace,
        ),
        signals,
        draining,
    )
