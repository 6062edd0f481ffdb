"""Sessions stay as long as they are used, and no longer: also those whose clients are gone, or never learn of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

import pytest

from retcon.core.errors import SessionLost
from retcon.sandbox.client import SandboxClient, SandboxRouter
from servers.vanishing import SESSIONS, Asking, asking

RAW = b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


def test_a_session_whose_client_is_gone_when_it_is_there_is_closed() -> None:
    async def work(client: Asking) -> None:
        for _ in range(10):
            with socket.create_connection(("127.0.0.1", client.http.base_url.port)) as raw:
                raw.sendall(RAW)
        while await client.answered(201, 499) < 10:
            pass
        assert client.sandbox.open_sessions == 0
        assert (await client.post(SESSIONS, {})).status_code == 201

    asking(work)


@pytest.mark.parametrize("made", [SandboxClient, lambda url: SandboxRouter([url])], ids=["client", "router"])
def test_to_cancel_the_opening_of_a_session_leaves_none(made: Callable[[str], SandboxClient | SandboxRouter]) -> None:
    async def work(client: Asking) -> None:
        async with made(str(client.http.base_url)) as sandbox:
            for turns in range(60):
                opening = asyncio.create_task(sandbox.session())
                for _ in range(turns):
                    await asyncio.sleep(0)
                opening.cancel()
                with suppress(asyncio.CancelledError):
                    await (await opening).close()
        assert client.sandbox.open_sessions == 0

    asking(work)


def test_an_opening_that_waits_for_a_place_is_given_up_with_its_client() -> None:
    async def work(client: Asking) -> None:
        client.sandbox.place = place = asyncio.Event()
        await client.vanish(SESSIONS, {}, "k")
        await client.vanish(SESSIONS, {})
        opening = asyncio.create_task(client.opened("k"))  # begun anew
        await client.later(0)
        place.set()
        await opening
        assert client.sandbox.open_sessions == 1

    asking(work)


def test_openings_under_one_key_give_one_session() -> None:
    async def work(client: Asking) -> None:
        client.sandbox.place = asyncio.Event()
        together = [asyncio.create_task(client.opened("k")) for _ in range(3)]
        await client.later(0)
        client.sandbox.place.set()
        paths = {*(await asyncio.gather(*together)), await client.opened("k")}
        assert (len(paths), client.sandbox.open_sessions) == (1, 1)
        assert await client.opened("other") not in paths
        await client.http.delete(*paths)
        assert await client.opened("k") not in paths  # one that is closed is no answer any more
        other = await client.post(SESSIONS, {"seed": 1}, "k")
        assert (other.status_code, other.json()["error"]["field"]) == (422, "idempotency-key")

    asking(work)


def test_a_session_that_is_lost_before_its_client_learns_of_it_is_opened_once_more() -> None:
    async def work(client: Asking) -> None:
        lost = await client.opened("k")
        await client.post(f"{lost}/run", {"code": "lose()"})
        assert (await client.http.get(lost)).status_code == 410
        again = await client.opened("k")
        assert again != lost
        assert ((await client.http.get(again)).status_code, (await client.http.get(lost)).status_code) == (200, 410)
        await client.http.delete(lost)
        assert await client.opened("k") == again

    asking(work)


def test_a_session_opened_under_a_key_that_nobody_asks_of_is_closed_after_a_minute() -> None:
    async def work(client: Asking) -> None:
        unused, told, used, plain = [await client.opened(key) for key in ("unused", "told", "used", None)]
        await client.later(50)
        assert (await client.http.get(told)).json()["session"] in told
        assert (await client.post(f"{used}/run", {"code": "print(1)"})).json()["stdout"] == "1\n"
        await client.later(11)
        assert client.sandbox.open_sessions == 3
        await client.later(120)
        assert [(await client.http.get(path)).status_code for path in (unused, told, used, plain)] == [
            404, 200, 200, 200,
        ]  # fmt: skip
        again = await client.opened("unused")
        assert (again != unused, client.sandbox.open_sessions) == (True, 4)

    asking(work)


def test_a_session_that_is_lost_to_a_busy_server_is_closed_there() -> None:
    async def work(client: Asking) -> None:
        client.sandbox.wait = release = asyncio.Event()
        run = f"{await client.opened()}/run"
        busy = [asyncio.create_task(client.post(run, {"code": "1"})) for _ in range(2)]
        while client.sandbox.begun < 2:
            await asyncio.sleep(0)
        async with SandboxClient(str(client.http.base_url), tries=1) as sandbox:
            session = await sandbox.session()
            assert (await session.run("1")).status == "infrastructure"
            assert client.sandbox.open_sessions == 2
            await session.close()
            assert client.sandbox.open_sessions == 1
            with pytest.raises(SessionLost, match="try again later"):
                await session.run("1")
        release.set()
        await asyncio.gather(*busy)

    asking(work, workers=1, queue=1)


def test_a_session_whose_cell_runs_is_not_idle() -> None:
    async def work(client: Asking) -> None:
        run = f"{await client.opened()}/run"
        client.sandbox.wait = release = asyncio.Event()
        cell = asyncio.create_task(client.post(run, {"code": "print(1)"}, "k"))
        while not client.sandbox.begun:
            await asyncio.sleep(0)
        await client.opened()
        release.set()
        assert (await cell).json().get("stdout") == "1\n"

    asking(work, session_idle=1e-9)
