"""The sandboxes that contract tests run over: one of each kind for all tests of a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TypeVar

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Sandbox

T = TypeVar("T")
Opener = Callable[[], AbstractAsyncContextManager[Sandbox]]


@asynccontextmanager
async def _pool(tier: str) -> AsyncIterator[Sandbox]:
    try:
        pool = await SandboxPool(workers=1, tier=tier).__aenter__()
    except SandboxUnavailable as error:
        pytest.skip(f"not on this machine: {error}")
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def _over_http() -> AsyncIterator[Sandbox]:
    """A client of a server that stands before a pool, all in this process."""
    from retcon.http.server import listen, run_in_loop
    from retcon.sandbox.client import SandboxClient
    from retcon.sandbox.service.app import create_app
    from retcon.sandbox.service.calls import Settings

    async with SandboxPool(workers=1) as pool:
        app = create_app(pool, pool.tier, Settings(workers=1))
        async with run_in_loop(app, listen("127.0.0.1", 0)) as url, SandboxClient(url) as client:
            yield client


SANDBOXES: dict[str, Opener] = {
    **{tier: partial(_pool, tier) for tier in ("namespaces", "landlock", "rlimits")},
    "http": _over_http,
}


class Opened:
    """A sandbox in an event loop of its own, which runs only while a test has work for it."""

    def __init__(self, opener: Opener, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self._opener, self._runner, self._sandbox = opener, runner, sandbox

    def run(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        async def main() -> T:
            return await work(self._sandbox)

        return self._runner.run(main())

    def run_apart(self, work: Callable[[Sandbox], Awaitable[T]]) -> T:
        """Over a sandbox that no other test has."""

        async def main() -> T:
            async with self._opener() as sandbox:
                return await work(sandbox)

        return self._runner.run(main())
