"""Sessions that are evicted, refused, cancelled or lost with their worker."""

from __future__ import annotations

import asyncio
import os
import resource
import signal

import pytest

from retcon.core.errors import CheckpointRefused, SandboxUnavailable, SessionLost
from retcon.sandbox.jail.messages import CHECKPOINTS
from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result, Session, SessionBounds
from sessions import using


async def lost(session: Session) -> SessionLost:
    with pytest.raises(SessionLost) as caught:
        await session.run("1")
    return caught.value


def test_an_idle_session_is_evicted_and_says_so() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run("x = 1")
        again = await pool.session()  # waits until the place of the first is free
        error = await lost(session)
        assert "evicted: idle for 0.2 s" in str(error)
        assert not error.by_own_code
        assert (await again.run("import time\ntime.sleep(0.5)\n1")).value == "1"  # busy is not idle

    using(work, sessions=SessionBounds(1, idle_seconds=0.2, wait_seconds=30))


def test_no_room_for_one_more_says_what_to_do() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        with pytest.raises(SandboxUnavailable, match=r"has 1 session at a time, .* \(sessions=SessionBounds"):
            await pool.session()
        waiting = asyncio.create_task(pool.session())
        await asyncio.sleep(0)
        await session.close()
        assert (await (await waiting).run("1")).value == "1"

    using(work, sessions=SessionBounds(1, wait_seconds=0.05))


def test_a_session_that_waits_for_a_place_gets_none_of_a_pool_that_is_closed_meanwhile() -> None:
    async def work(pool: SandboxPool) -> None:
        await pool.session()
        waiting = [asyncio.create_task(pool.session()) for _ in range(3)]
        await asyncio.sleep(0)
        await pool.close()
        for one in waiting:
            with pytest.raises(SandboxUnavailable, match="not open"):
                await one
        assert not pool.open_sessions

    using(work, sessions=SessionBounds(1, wait_seconds=30))


def test_a_checkpoint_too_many_is_refused_before_the_first_cell_too() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        states = [await session.checkpoint() for _ in range(CHECKPOINTS)]
        with pytest.raises(CheckpointRefused, match="discard some") as refused:
            await session.checkpoint()
        assert refused.value.full
        assert (await session.run("x = 1\nx")).value == "1"
        await session.rollback(states[-1])
        assert (await session.run("'x' in globals()")).value == "False"

    using(work)


def test_where_memory_is_short_the_one_that_rested_longest_goes() -> None:
    async def work(pool: SandboxPool) -> None:
        sessions = [await pool.session() for _ in range(3)]
        for session in sessions[:2]:
            await session.run("x = b'x' * (40 << 20)")
        await sessions[0].run("1")
        await sessions[2].run("x = b'x' * (40 << 20)")
        assert "more than 100 MiB" in str(await lost(sessions[1]))
        assert (await sessions[0].run("len(x)")).value == (await sessions[2].run("len(x)")).value == str(40 << 20)
        await sessions[2].checkpoint()  # counted as if nothing were shared
        assert "evicted" in str(await lost(sessions[0]))

    using(work, sessions=SessionBounds(memory_mb=100))


def test_a_worker_that_dies_is_a_fault_of_ours() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run("x = 1")
        state = await session.checkpoint()
        cell = asyncio.create_task(session.run("import time\ntime.sleep(60)"))
        await asyncio.sleep(0)
        os.kill(session.worker.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        result = await cell
        assert result.status == "infrastructure"
        assert "its worker died" in result.stderr
        assert not (await lost(session)).by_own_code
        with pytest.raises(SessionLost, match="worker died"):
            await session.rollback(state)
        assert (await (await pool.session()).run("1")).value == "1"

    using(work)


def test_a_cancelled_cell_ends_its_session() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run("x = 1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await session.run("import time\ntime.sleep(60)")
        assert "cancelled" in str(await lost(session))

    using(work)


def test_a_session_that_is_closed_while_its_worker_starts_leaves_none() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        cell = asyncio.create_task(session.run("1"))
        await asyncio.sleep(0)  # now one is being forked
        await session.close()
        result = await cell
        assert (result.status, result.value) == ("infrastructure", None)
        assert "it was closed" in result.stderr
        assert not session.worker.alive  # type: ignore[attr-defined]

    using(work)


def test_where_no_worker_can_be_made_the_first_cell_says_why() -> None:
    """The machine's descriptors are used up, say."""

    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        os.close(free := os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, most[1]))
        try:
            result = await session.run("1")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)
        assert result.status == "infrastructure"
        assert "Too many open files" in result.stderr
        assert (await (await pool.session()).run("1")).value == "1"

    using(work)


def test_a_state_that_its_own_code_kept_from_being_kept_is_lost_by_own_code() -> None:
    async def work(pool: SandboxPool) -> None:
        session = await pool.session()
        await session.run("import os\nx, pid = 1, os.getpid()")
        early = await session.checkpoint()
        await session.run(
            "import gc\nit = next(o for o in gc.get_objects() if type(o).__name__ == 'Interpreter')\n"
            "own = it._operations['freeze']\n"
            "it._operations['freeze'] = lambda command: own(command) if os.getpid() == pid else os._exit(0)"
        )
        state = await session.checkpoint()
        await session.rollback(state)  # whose copy ends when it is to copy itself
        with pytest.raises(SessionLost, match="could not be copied again") as error:
            await session.rollback(state)
        assert error.value.by_own_code
        await session.rollback(early)
        assert (await session.run("x")).value == "1"

    using(work)


def test_nothing_is_left_when_the_pool_closes() -> None:
    async def main() -> tuple[int, Result, SessionLost]:
        async with SandboxPool(workers=1) as pool:
            session = await pool.session()
            await session.run("x = 1")
            await session.checkpoint()
            pid = session.worker.pid  # type: ignore[attr-defined]
            cell = asyncio.create_task(session.run("import time\ntime.sleep(60)"))
            await asyncio.sleep(0)
        return pid, await cell, await lost(session)

    pid, result, error = asyncio.run(main())
    assert result.status == "infrastructure"
    assert "the sandbox was closed" in str(error)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_bad_options_are_refused() -> None:
    for options in ({"open": 0}, {"idle_seconds": -1.0}, {"memory_mb": 0}, {"wait_seconds": 0.0}):
        with pytest.raises(ValueError, match=f"sessions: {next(iter(options))} is "):
            SessionBounds(**options)  # type: ignore[arg-type]
