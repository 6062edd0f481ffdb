"""Listening: the socket, the server around the application, and its orderly end."""

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
from retcon.http.endpoints import Draining

BACKLOG = 2048
GRACE_SECONDS = 10
"""How long calls in flight may go on after the server was told to stop."""
LAST_SECONDS = 45
"""When it is ended all the same: what is in flight, then the sandbox's own processes, have had their time."""


class AddressUnavailable(RetconError):
    """A service cannot listen where it was told to: says why, and what to choose instead."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. port: 0 takes any free one. Raises AddressUnavailable."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:  # of the latter kind: what can be no host's name
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
    """The URL of a listening socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(opened: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(opened.getsockname()[0]).is_loopback


def allow_many_connections() -> int:
    """Raise this process's limit on open files as far as it goes; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class StopSignals:
    """Handles SIGINT and SIGTERM from now on: a server that starts later ends at once.

    While a server runs it handles them itself, and raises them once more, to this, when it has shut down.

    last_seconds: after the first of them the process is ended by the kernel (SIGALRM), whatever it is stuck in then.
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

    def told(self) -> None:
        """The end has been asked for."""
        if not self._asked:
            self._asked = True
            signal.alarm(self.last_seconds)

    def _stop(self, number: int, frame: object) -> None:
        self.told()
        if self._server is not None:
            self._server.should_exit = True


async def serve(
    app: ASGIApp,
    opened: socket.socket,
    signals: StopSignals,
    *,
    grace: int = GRACE_SECONDS,
    draining: Draining | None = None,
) -> None:
    """Serve until a signal; then what is in flight has `grace` seconds to end. draining: what is done before, until a
    second signal at most, which ends what is in flight too."""
    server = _server(app, signals, grace, draining)
    signals.watch(server)
    await server.serve(sockets=[opened])


@asynccontextmanager
async def run_in_loop(app: ASGIApp, opened: socket.socket) -> AsyncIterator[str]:
    """A server in this event loop for as long as the block lasts; its URL. Signals stay with whoever handles them."""
    server = _server(app)
    task = asyncio.create_task(server.serve(sockets=[opened]))
    try:
        yield url_of(opened)
    finally:
        server.should_exit = server.force_exit = True
        await task


class _Server(uvicorn.Server):
    """Tells `signals` too of those that it handles while it runs. Drains, where that is asked for, before it exits."""

    def __init__(self, config: uvicorn.Config, signals: StopSignals | None, draining: Draining | None) -> None:
        super().__init__(config)
        self._signals, self._draining = signals, draining

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Those of a block's server are others' to handle: Ctrl-C is for what the block does, not for the server."""
        with super().capture_signals() if self._signals is not None else nullcontext():
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._signals is not None:
            self._signals.told()
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
            if self.force_exit:  # else what has outlasted its grace is cancelled already
                for task in self.server_state.tasks:
                    task.cancel()
            await ending  # since Python 3.12 it waits for open connections, too
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
    draining: Draining | None = None,
) -> uvicorn.Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            http="h11",  # httptools, where it is installed, bounds no header
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
