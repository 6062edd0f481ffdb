"""Calls that fail again and again: whose fault it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.pool.engine import REPEATED, Dispatcher
from retcon.engine.pool.policy import Policy, PoolSettings

Work = Callable[[int], Awaitable[int]]


def dispatcher(replicas: int, at_once: int = 8) -> Dispatcher:
    """One that soon tries a replica that failed again, and has all patience. at_once: calls of each."""
    settings = PoolSettings(pause=0.002, longest_pause=0.002)
    return Dispatcher(Policy([None] * replicas, max_requests=at_once, settings=settings), patience=1000.0)


async def asked(pool: Dispatcher, id: str, work: Work) -> int:
    made = await pool.run(id, 10, 100, work, lambda made: made)
    pool.release(id)
    return made


async def answers(replica: int) -> int:
    return 10


def run(work: Awaitable[int]) -> int:
    async def limited() -> int:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(limited())


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_request_that_always_fails_is_given_up_where_others_are_answered(replicas: int) -> None:
    tries = 0

    async def main() -> int:
        pool = dispatcher(replicas)

        async def fails(replica: int) -> int:
            nonlocal tries
            tries += 1
            for n in range(2 * replicas):  # so that each replica answers some
                await asked(pool, f"other {tries}.{n}", answers)
            raise InfrastructureFault("no answer")

        return await asked(pool, "poison", fails)

    with pytest.raises(InfrastructureFault, match=f"request poison failed {REPEATED} times where .*: no answer"):
        run(main())
    assert tries > REPEATED


def test_a_server_that_is_down_for_all_says_nothing_against_a_request() -> None:
    async def main() -> int:
        pool, left = dispatcher(1), iter(range(20))

        async def back_at_last(replica: int) -> int:
            if next(left, None) is not None:
                raise ConnectionError("down")
            return 7

        return await asked(pool, "patient", back_at_last)

    assert run(main()) == 7


def test_a_replica_that_is_down_says_nothing_where_another_one_answers() -> None:
    """A call that finds room at the dead one alone, again and again, is not at fault."""

    async def main() -> int:
        pool, left, places = dispatcher(2, at_once=1), 20, list[int]()
        done, begun = asyncio.Event(), asyncio.Event()

        async def other(replica: int) -> int:
            places.append(replica)
            begun.set()
            await done.wait()
            done.clear()
            return 10

        async def patient(replica: int) -> int:
            nonlocal running, left
            assert replica != places[0], "that one has no room"
            left -= 1
            if not left:
                return 7
            done.set()
            await running
            begun.clear()
            running = asyncio.ensure_future(asked(pool, f"other {left}", other))
            await begun.wait()
            raise ConnectionError("down")

        running = asyncio.ensure_future(asked(pool, "other", other))
        await begun.wait()
        made = await asked(pool, "patient", patient)
        done.set()
        await running
        assert set(places) == {places[0]}
        return made

    assert run(main()) == 7


@pytest.mark.parametrize("fails", [False, True])
def test_a_caller_released_as_the_answer_comes_is_informed_and_others_are_served(fails: bool) -> None:
    """There is nothing left to cancel then."""

    async def main() -> int:
        pool = dispatcher(1, at_once=1)

        async def ends(replica: int) -> int:
            asyncio.get_running_loop().call_soon(pool.release, "gone")
            if fails:
                raise ConnectionError("down")
            return 7

        with pytest.raises(EngineError, match="request gone was released"):
            await pool.run("gone", 10, 100, ends, lambda made: made)
        return await asked(pool, "other", answers)

    assert run(main()) == 10
