"""What is asked of a session under a key, by clients that vanish and ask again."""

from __future__ import annotations

import asyncio

from servers.vanishing import Asking, asking

COUNT = {"code": "n = locals().get('n', 0) + 1\nprint(n)"}


def test_what_still_runs_is_not_forgotten_for_what_is_asked_after_it() -> None:
    async def work(client: Asking) -> None:
        run = f"{await client.opened()}/run"
        client.sandbox.wait = release = asyncio.Event()
        first = asyncio.create_task(client.post(run, COUNT, "first"))
        others = [asyncio.create_task(client.post(run, COUNT, str(number))) for number in range(6)]
        while client.sandbox.begun < 7:
            await asyncio.sleep(0)
        again = asyncio.create_task(client.post(run, COUNT, "first"))
        await client.later(0)
        release.set()
        assert (await again).json() == (await first).json()
        await asyncio.gather(*others)
        assert client.sandbox.runs == 7

    asking(work)


def test_of_what_is_done_the_last_answers_are_known() -> None:
    async def work(client: Asking) -> None:
        run = f"{await client.opened()}/run"

        async def said(key: int) -> str:
            return str((await client.post(run, COUNT, str(key))).json()["stdout"])

        assert [await said(key) for key in (0, 1, 2, 3, 4, 5, 5, 2, 0)] == [
            f"{n}\n" for n in (1, 2, 3, 4, 5, 6, 6, 3, 7)
        ]

    asking(work)


def test_what_nobody_asks_for_again_is_given_up() -> None:
    async def work(client: Asking) -> None:
        run = f"{await client.opened()}/run"
        client.sandbox.wait = asyncio.Event()
        await client.vanish(run, COUNT, "k")
        await client.later(9)
        await client.vanish(run, COUNT, "k")
        await client.later(10.5)
        client.sandbox.wait.set()
        answer = await client.post(run, COUNT, "k")
        assert (answer.status_code, answer.json()["error"]["type"]) == (410, "session_lost")
        assert client.sandbox.runs == 0

    asking(work)
