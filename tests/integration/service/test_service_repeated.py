"""What is asked of a session under a key, by clients that vanish and ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

from retcon.http.server import listen, served
from retcon.sandbox.service.app import create_app
from retcon.sandbox.service.settings import Settings
from servers.serving import MemorySandbox

COUNT = {"code": "n = locals().get('n', 0) + 1\nprint(n)"}


class Asking:
    """A session of a fake sandbox, and who asks it over HTTP. `later` moves the event loop's clock, in seconds."""

    def __init__(self, http: httpx.AsyncClient, sandbox: MemorySandbox, path: str) -> None:
        self.http, self.sandbox, self._path = http, sandbox, path
        self._vanished = 0
        self._later = 0.0
        loop, now = asyncio.get_running_loop(), asyncio.get_running_loop().time
        loop.time = lambda: now() + self._later  # type: ignore[method-assign]

    async def run(self, key: str) -> httpx.Response:
        return await self.http.post(f"{self._path}/run", json=COUNT, headers={"Idempotency-Key": key})

    async def run_and_vanish(self, key: str) -> None:
        """Its connection breaks once it has asked, and the server has seen it."""
        sent = asyncio.Event()

        async def told(event: str, _: object) -> None:
            if event == "http11.send_request_body.complete":
                sent.set()

        headers, extensions = {"Idempotency-Key": key}, {"trace": told}
        asked = asyncio.create_task(
            self.http.post(f"{self._path}/run", json=COUNT, headers=headers, extensions=extensions)
        )
        await sent.wait()
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
        self._vanished += 1
        while f'requests_total{{code="499"}} {self._vanished}' not in (await self.http.get("/metrics")).text:
            pass

    async def begun(self, cells: int) -> None:
        while self.sandbox.begun < cells:
            await asyncio.sleep(0)

    async def later(self, seconds: float) -> None:
        self._later += seconds
        await self.http.get("/health")  # the loop has turned, and what was due is done


def asking(work: Callable[[Asking], Awaitable[None]]) -> None:
    async def main() -> None:
        sandbox = MemorySandbox()
        sandbox.wait = asyncio.Event()
        app = create_app(sandbox, "rlimits", Settings(workers=16))
        async with (
            served(app, listen("127.0.0.1", 0)) as url,
            httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http,
        ):
            opened: Any = (await http.post("/v1/sessions", json={})).json()
            await work(Asking(http, sandbox, f"/v1/sessions/{opened['session']}"))

    asyncio.run(asyncio.wait_for(main(), 100))


def test_what_still_runs_is_not_forgotten_for_what_is_asked_after_it() -> None:
    async def work(client: Asking) -> None:
        first = asyncio.create_task(client.run("first"))
        await client.begun(1)
        others = [asyncio.create_task(client.run(str(number))) for number in range(6)]
        await client.begun(7)
        again = asyncio.create_task(client.run("first"))
        await client.later(0)
        client.sandbox.wait.set()  # type: ignore[union-attr]
        assert (await again).json() == (await first).json()
        await asyncio.gather(*others)
        assert client.sandbox.runs == 7

    asking(work)


def test_of_what_is_done_the_last_answers_are_known() -> None:
    async def work(client: Asking) -> None:
        client.sandbox.wait = None
        for number in range(6):
            assert (await client.run(str(number))).json()["stdout"] == f"{number + 1}\n"
        assert [(await client.run(key)).json()["stdout"] for key in ("5", "2", "0")] == ["6\n", "3\n", "7\n"]

    asking(work)


def test_what_a_vanished_client_asked_for_goes_on_from_when_the_last_one_went() -> None:
    async def work(client: Asking) -> None:
        await client.run_and_vanish("k")
        await client.later(9)
        await client.run_and_vanish("k")
        await client.later(2)  # the first one has been gone for more than ten seconds, the second has not
        third = asyncio.create_task(client.run("k"))
        await client.later(0)
        client.sandbox.wait.set()  # type: ignore[union-attr]
        answer = await third
        assert (answer.status_code, answer.json().get("stdout")) == (200, "1\n")
        assert client.sandbox.runs == 1

    asking(work)


def test_what_nobody_asks_for_again_is_given_up() -> None:
    async def work(client: Asking) -> None:
        await client.run_and_vanish("k")
        await client.later(9)
        await client.run_and_vanish("k")
        await client.later(10.5)
        client.sandbox.wait.set()  # type: ignore[union-attr]
        answer = await client.run("k")
        assert (answer.status_code, answer.json()["error"]["type"]) == (410, "session_lost")
        assert client.sandbox.runs == 0

    asking(work)
