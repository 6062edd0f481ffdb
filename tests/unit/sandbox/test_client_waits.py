"""What a client asks of servers: under which limits, how much at a time, and how long it waits for the answer."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.http.client import ConnectionFailed, HttpResponse
from retcon.sandbox.client import SandboxClient, SandboxRouter
from retcon.sandbox.types import Limits

PATIENCE = 900.0


class Connected:
    """Connections to a server that does all at once, or each program when it is `let` go on.

    waits: seconds that were given to each request for a program. sent: what it was asked, but for GET. most: programs
    at a time. busy: seconds, each of which it tells one request to come back in. away: requests that it does not
    answer from now on. breaks: at each program, and is back at once. strange: requests from now on that another answers
    in its place, or it with its word for another token, with this status.
    """

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.sent: list[Mapping[str, Any]] = []
        self.let: asyncio.Event | None = None
        self.running = self.most = 0
        self.busy: list[int] = []
        self.away = 0.0
        self.breaks = False
        self.strange, self.status = 0.0, 404

    async def request(
        self,
        method: str,
        url: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        if self.away:
            self.away -= 1
            raise ConnectionFailed("connection refused")
        if self.strange:
            self.strange -= 1
            return HttpResponse(url, self.status, {}, b"404 page not found")
        if body is not None:
            self.sent.append(body)
            if self.busy:
                said = {"error": {"type": "busy", "message": "later"}}
                return HttpResponse(url, 503, {"Retry-After": str(self.busy.pop(0))}, json.dumps(said).encode())
        if url.endswith("/run"):
            self.waits.append(seconds - PATIENCE)
            self.running += 1
            self.most = max(self.most, self.running)
            if self.breaks:
                raise ConnectionFailed("connection reset")
            if self.let is not None:
                await self.let.wait()
            self.running -= 1
            return HttpResponse(url, 200, {}, json.dumps({"status": "ok"}).encode())
        return HttpResponse(url, 200, {}, json.dumps({"session": "s", "tier": "landlock"}).encode())

    async def close(self) -> None:
        """Nothing is open."""


def connected(client: SandboxClient) -> Connected:
    """In place of the network."""
    client.connect()
    assert client._remote is not None
    client._remote._connections = made = Connected()  # type: ignore[assignment]
    return made


def waits(asks: Callable[[SandboxClient], Awaitable[object]], limits: Limits | None = None) -> list[float]:
    async def main() -> list[float]:
        client = SandboxClient("http://there", limits=limits, patience=PATIENCE)
        there = connected(client)
        await asks(client)
        return there.waits

    return asyncio.run(main())


LONG = Limits(cpu_seconds=1.0, wall_seconds=3600.0)


def test_a_cell_may_take_the_time_that_its_session_was_opened_with() -> None:
    async def cell(client: SandboxClient) -> None:
        session = await client.session(limits=LONG)
        await session.run("pass")
        await session.run("pass", timeout=5.0)

    assert waits(cell, Limits(wall_seconds=20.0)) == [3600.0, 5.0]


def test_limits_of_a_client_or_a_router_are_those_of_its_calls_and_sessions_that_give_none() -> None:
    own, other = Limits(wall_seconds=7.0), Limits(wall_seconds=5.0)

    async def asked(sandbox: SandboxClient | SandboxRouter, there: Connected) -> list[float]:
        await sandbox.start()
        there.sent.clear()
        await sandbox.run("pass")
        await sandbox.run("pass", limits=other)
        await sandbox.session()
        await sandbox.session(limits=other)
        await sandbox.close()
        return [body["limits"]["wall_seconds"] for body in there.sent]

    async def main() -> None:
        client, router = SandboxClient("http://there", limits=own), SandboxRouter(["http://there"], limits=own)
        for sandbox, of in ((client, client), (router, router._servers[0].client)):
            assert await asked(sandbox, connected(of)) == [7.0, 5.0, 7.0, 5.0]

    asyncio.run(main())


def noting_sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What is slept from now on, in seconds, and takes none."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    return slept


@pytest.mark.parametrize(
    ("busy", "pauses"), [([[], [60, 60]], 0), ([[3600] * 9, [], [60] * 9], 0), ([[3600], [60]], 1), ([[60], [3600]], 1)]
)
def test_a_router_asks_another_server_at_once_and_waits_where_all_are_busy(
    monkeypatch: pytest.MonkeyPatch, busy: list[list[int]], pauses: int
) -> None:
    """busy: the seconds that each server tells to come back in, one after the other, until it does what it is asked."""
    slept = noting_sleeps(monkeypatch)

    async def main(asks: Callable[[SandboxRouter], Awaitable[object]]) -> None:
        router = SandboxRouter([f"http://server{number}" for number in range(len(busy))])
        there = [connected(server.client) for server in router._servers]
        await router.start()
        for one, seconds in zip(there, busy, strict=True):
            one.busy = list(seconds)
        await asks(router)
        assert [server.load for server in router._servers] == [0] * len(busy)
        await router.close()

    async def call(router: SandboxRouter) -> None:
        assert (await router.run("pass")).status == "ok"

    async def session(router: SandboxRouter) -> None:
        await (await router.session()).close()

    for asks in (call, session):
        slept.clear()
        asyncio.run(main(asks))
        assert [30 <= seconds <= 90 for seconds in slept] == [True] * pauses, slept


@pytest.mark.parametrize("tries", [1, 3])
def test_a_router_asks_each_of_its_servers_as_often_as_it_is_to_try(
    monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    """Where all stay busy: with many servers, too, a call is not given up before it has waited."""
    slept = noting_sleeps(monkeypatch)

    async def main(asks: Callable[[SandboxRouter], Awaitable[object]]) -> list[int]:
        router = SandboxRouter(["http://one", "http://two", "http://three"], tries=tries)
        there = [connected(server.client) for server in router._servers]
        await router.start()
        for one in there:
            one.busy = [0] * 100
        await asks(router)
        await router.close()
        return [100 - len(one.busy) for one in there]

    async def call(router: SandboxRouter) -> None:
        assert (await router.run("pass")).status == "infrastructure"

    async def session(router: SandboxRouter) -> None:
        with pytest.raises(SandboxUnavailable, match="no session: "):
            await router.session()

    for asks in (call, session):
        slept.clear()
        assert asyncio.run(main(asks)) == [tries] * 3
        assert len(slept) == tries - 1


async def routed(*, outage: float, tries: int = 2) -> tuple[SandboxRouter, Connected]:
    """A router of one server, which is there."""
    router = SandboxRouter(["http://there"], tries=tries, outage=outage)
    there = connected(router._servers[0].client)
    await router.start()
    return router, there


def test_a_server_that_is_started_anew_is_waited_for_and_that_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    noting_sleeps(monkeypatch)

    async def main() -> list[str]:
        router, there = await routed(outage=60)
        there.away = 100
        results = await asyncio.gather(*(router.run("pass") for _ in range(20)))
        there.away = 100
        session = await router.session()
        there.away = math.inf
        async with asyncio.timeout(20):  # whose interpreter is gone with the server, however soon that is back
            assert (await session.run("pass")).status == "infrastructure"
        await router.close()
        return [result.status for result in results]

    assert asyncio.run(main()) == ["ok"] * 20
    assert [record.getMessage() for record in caplog.records] == [
        "no sandbox server answers (http://there: connection refused); calls wait for another 60 seconds"
    ] * 2


@pytest.mark.parametrize("status", [401, 404])
def test_a_server_in_whose_place_another_answers_is_taken_out_and_waited_for(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    noting_sleeps(monkeypatch)

    async def main() -> None:
        router = SandboxRouter(["http://one", "http://two"], tries=2, outage=60)
        one, two = (connected(server.client) for server in router._servers)
        await router.start()
        one.strange, one.status = math.inf, status
        results = await asyncio.gather(*(router.run("pass") for _ in range(20)))
        assert ({result.status for result in results}, router.up) == ({"ok"}, ["http://two"])
        assert not caplog.records, "the other is there"
        two.strange, two.status = 100, status
        assert (await router.run("pass")).status == "ok"
        two.strange = 100
        await (await router.session()).close()
        await router.close()

    asyncio.run(main())
    said = {401: "http://two requires another token", 404: "http://two answers 404: is it a retcon sandbox server?"}
    assert [said[status] in record.getMessage() for record in caplog.records] == [True, True]


def test_an_outage_is_one_for_all_calls_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    noting_sleeps(monkeypatch)

    async def main() -> float:
        router, there = await routed(outage=0.1)
        there.away = math.inf
        began = time.monotonic()
        for _ in range(50):  # of which each would wait
            result = await router.run("pass")
            assert (result.status, "there: connection refused" in result.stderr) == ("infrastructure", True)
        with pytest.raises(SandboxUnavailable, match="no session: none of the sandbox servers answers"):
            await router.session()
        await router.close()
        return time.monotonic() - began

    assert 0.1 <= asyncio.run(main()) < 2.5


def test_a_router_whose_servers_are_not_there_at_the_start_is_refused_at_once() -> None:
    async def main() -> None:
        router = SandboxRouter(["http://there"], outage=1000)
        connected(router._servers[0].client).away = math.inf
        async with asyncio.timeout(20):
            await router.start()

    with pytest.raises(SandboxUnavailable, match="no sandbox server answers: http://there: connection refused"):
        asyncio.run(main())
