"""Servers of which one goes, drained or killed, or that a proxy stands before."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack

import httpx

from retcon.sandbox.client import SandboxClient, SandboxRouter
from servers.serving import Server, server

SLOW = "import time\ntime.sleep(2)\nprint('slow')"


def draining(made: Server) -> bool:
    return httpx.get(f"{made.url}/health", trust_env=False).status_code == 503


async def until_draining(made: Server) -> None:
    while not await asyncio.to_thread(draining, made):
        await asyncio.sleep(0.01)


def test_a_server_that_drains_keeps_what_is_open_and_sends_the_rest_elsewhere() -> None:
    async def work(leaving: Server, staying: Server) -> None:
        async with SandboxClient(leaving.url) as client, SandboxRouter([leaving.url, staying.url]) as router:
            session = await client.session()
            assert (await session.run("x = 7")).status == "ok"
            running = asyncio.create_task(client.run(SLOW))
            while "retcon_sandbox_running 0" in (await asyncio.to_thread(httpx.get, f"{leaving.url}/metrics")).text:
                assert not running.done()
            leaving.process.send_signal(signal.SIGTERM)
            await until_draining(leaving)
            calls = await asyncio.gather(*(router.run(f"print({n})") for n in range(8)))
            assert [call.stdout for call in calls] == [f"{n}\n" for n in range(8)]
            assert router.up == [staying.url]
            assert (await router.session()) is not None
            assert (await running).stdout == "slow\n", "a call that had begun was given up"
            state = await session.checkpoint()
            assert (await session.run("print(x)\nx = 8")).stdout == "7\n"
            await session.rollback(state)
            assert (await session.run("print(x)")).stdout == "7\n"
            assert leaving.process.poll() is None
            await session.close()
            assert await asyncio.to_thread(leaving.process.wait, 20) == 0, "nothing was open any more"

    with ExitStack() as stack:
        leaving = stack.enter_context(server("--workers", "2", "--drain", "600"))
        staying = stack.enter_context(server("--workers", "2"))
        asyncio.run(asyncio.wait_for(work(leaving, staying), 100))


def test_sessions_of_several_servers_hand_files_back() -> None:
    async def work(servers: list[Server]) -> None:
        async with SandboxRouter([made.url for made in servers]) as router:
            sessions = [await router.session() for _ in servers]
            for number, session in enumerate(sessions):
                await session.run(f"open('a', 'w').write('{number}')")
            found = [await session.run("1", fetch=["a"]) for session in sessions]
            assert [result.files for result in found] == [{"a": b"0"}, {"a": b"1"}]

    with server("--workers", "1") as first, server("--workers", "1") as second:
        asyncio.run(asyncio.wait_for(work([first, second]), 60))


def test_of_four_servers_one_is_killed_and_no_call_is_lost() -> None:
    async def work(servers: list[Server]) -> None:
        async with SandboxRouter([made.url for made in servers]) as router:
            sessions = [await router.session() for _ in range(8)]
            calls = [asyncio.create_task(router.run(f"import time\ntime.sleep(.05)\nprint({n})")) for n in range(60)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            os.kill(servers[0].process.pid, signal.SIGKILL)
            answers = await asyncio.gather(*calls)
            assert [(answer.status, answer.stdout) for answer in answers] == [("ok", f"{n}\n") for n in range(60)]
            cells = await asyncio.gather(*(session.run("print(2)") for session in sessions))
            assert [cell.status for cell in cells].count("infrastructure") == 2, "lost with their server, and no other"
            assert {cell.stdout for cell in cells if cell.status == "ok"} == {"2\n"}
            assert (await (await router.session()).run("print(3)")).stdout == "3\n"

    with ExitStack() as stack:
        servers = [stack.enter_context(server("--workers", "1")) for _ in range(4)]
        asyncio.run(asyncio.wait_for(work(servers), 100))
