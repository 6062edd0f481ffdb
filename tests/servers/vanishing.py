"""The sandbox's service over a fake sandbox, asked by clients that vanish, with a clock that can be moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

from retcon.http.server import listen, run_in_loop
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.calls import Settings
from servers.serving import MemorySandbox

SESSIONS = "/v1/sessions"


class Asking:
    """Clients of one server. sandbox: behind it."""

    def __init__(self, http: httpx.AsyncClient, sandbox: MemorySandbox) -> None:
        self.http, self.sandbox = http, sandbox
        self._later = 0.0
        loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
        loop.time = lambda: now() + self._later  # type: ignore[method-assign]

    async def post(self, path: str, body: dict[str, Any], key: str | None = None, **more: Any) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        return await self.http.post(path, json=body, headers=headers, **more)

    async def opened(self, key: str | None = None) -> str:
        """The path of a new session."""
        answer = await self.post(SESSIONS, {}, key)
        assert answer.status_code == 201, answer.text
        return f"{SESSIONS}/{answer.json()['session']}"

    async def vanish(self, path: str, body: dict[str, Any], key: str | None = None) -> None:
        """Ask, and break the connection once the request is sent and before it is answered; the server has seen it."""
        sent = asyncio.Event()

        async def told(event: str, _: object) -> None:
            if event == "http11.send_request_body.complete":
                sent.set()

        before = await self.answered(499)
        asked = asyncio.create_task(self.post(path, body, key, extensions={"trace": told}))
        await sent.wait()
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        while await self.answered(499) == before:
            pass

    async def answered(self, *statuses: int) -> int:
        """How many requests were, by one of these."""
        counts = (await self.http.get("/metrics")).text.partition("# TYPE retcon_sandbox_http_requests_total")[2]
        found = [line.rpartition(" ")[2] for line in counts.splitlines() for s in statuses if f'code="{s}"' in line]
        return sum(map(int, found))

    async def later(self, seconds: float) -> None:
        """The event loop's clock goes forward, and what is due by then is done."""
        self._later += seconds
        await self.http.get("/health")


def asking(work: Callable[[Asking], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        sandbox = MemorySandbox()
        app = create_app(sandbox, "rlimits", Settings(**{"workers": 16, **settings}))
        once = httpx.Limits(max_keepalive_connections=0)  # the server closes what is kept as the clock goes forward
        async with (
            run_in_loop(app, listen("127.0.0.1", 0)) as url,
            httpx.AsyncClient(base_url=url, timeout=None, trust_env=False, limits=once) as http,
        ):
            await work(Asking(http, sandbox))

    asyncio.run(asyncio.wait_for(main(), 300))
