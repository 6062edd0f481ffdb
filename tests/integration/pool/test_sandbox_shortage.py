"""A machine that refuses one more worker while others serve: here this process has no descriptor left to open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Awaitable, Callable, Iterator

import pytest

from retcon.core.errors import SandboxUnavailable
from retcon.sandbox.pool import SandboxPool

SOON = 60.0  # seconds: an end that takes longer never comes


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Within it no more than that many can be opened, besides those that are closed meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [os.dup(0) for _ in range(count + 1)]
    for fd in free:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def using(work: Callable[[SandboxPool], Awaitable[None]], **options: object) -> None:
    async def main() -> None:
        async with asyncio.timeout(SOON), SandboxPool(**options) as pool:  # type: ignore[arg-type]
            await work(pool)

    asyncio.run(main())


def test_calls_wait_for_the_workers_that_there_are() -> None:
    async def work(pool: SandboxPool) -> None:
        with descriptors_left(0):
            results = await asyncio.gather(*(pool.run(f"print({n})") for n in range(50)))
        assert [(result.status, result.stdout) for result in results] == [("ok", f"{n}\n") for n in range(50)]

    using(work, workers=4)


def test_there_are_more_workers_as_soon_as_the_machine_has_room_again() -> None:
    async def work(pool: SandboxPool) -> None:
        first = await pool.fleet.take("bare")
        with descriptors_left(0):
            waiting = [asyncio.create_task(pool.fleet.take("bare")) for _ in range(2)]
            done, _ = await asyncio.wait(waiting, timeout=0.05)
            assert not done
        for worker in [first, *await asyncio.gather(*waiting)]:  # the first was not given back meanwhile
            pool.fleet.give(worker, keep=True)

    using(work, workers=3)


def test_an_idle_worker_of_another_profile_makes_room() -> None:
    async def work(pool: SandboxPool) -> None:
        with descriptors_left(1):
            worker = await pool.fleet.take("stdlib")
        assert [other.profile for other in pool.fleet.workers] == ["stdlib"]
        pool.fleet.give(worker, keep=True)

    using(work, workers=4, warm=("stdlib",))


def test_without_any_worker_no_caller_waits_for_ever() -> None:
    async def work(pool: SandboxPool) -> None:
        first = await pool.fleet.take("bare")
        with descriptors_left(0):
            holds = []
            waiting = [asyncio.create_task(pool.fleet.take(name)) for name in ("bare", "stdlib", "bare")]
            await asyncio.wait(waiting, timeout=0.05)
            pool.fleet.give(first, keep=False)
            with contextlib.suppress(OSError):  # what it had open is not for the next one
                while True:
                    holds.append(os.dup(0))
            for task in waiting:
                with pytest.raises(SandboxUnavailable, match="open files"):
                    await task
            for fd in holds:
                os.close(fd)
        assert (await pool.run("print(1)")).stdout == "1\n"

    using(work, workers=3, warm=("stdlib",))
