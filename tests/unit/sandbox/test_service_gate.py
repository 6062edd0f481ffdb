from __future__ import annotations

import asyncio

import pytest

from retcon.http.endpoints import Gate, RequestRefused
from retcon.sandbox.service.calls import Settings
from retcon.sandbox.types import Limits


def test_who_waits_comes_in_by_turns_and_before_those_who_do_not_wait() -> None:
    async def main() -> None:
        gate, order = Gate(1), []

        async def one(name: int) -> None:
            await gate.enter(patient=True)
            order.append(name)
            gate.leave()

        await gate.enter()
        tasks = [asyncio.create_task(one(i)) for i in range(5)]
        await asyncio.sleep(0)
        assert gate.waiting == 5
        tasks[1].cancel()
        gate.leave()
        with pytest.raises(RequestRefused):
            await gate.enter()
        await asyncio.wait(tasks)
        assert order == [0, 2, 3, 4]
        assert (gate.inside, gate.waiting) == (0, 0)

    asyncio.run(main())


def test_who_is_let_in_and_cancelled_at_once_gives_its_place_on() -> None:
    async def main() -> None:
        gate = Gate(1)
        await gate.enter()
        first, second = asyncio.create_task(gate.enter(patient=True)), asyncio.create_task(gate.enter(patient=True))
        await asyncio.sleep(0)
        gate.leave()
        first.cancel()
        await second
        assert first.cancelled()
        assert (gate.inside, gate.waiting) == (1, 0)

    asyncio.run(main())


def test_who_is_cancelled_before_somebody_leaves_is_cancelled_and_nothing_else() -> None:
    async def main() -> None:
        gate = Gate(1)
        await gate.enter()
        first, second = asyncio.create_task(gate.enter(patient=True)), asyncio.create_task(gate.enter(patient=True))
        await asyncio.sleep(0)
        first.cancel()
        gate.leave()
        await second
        assert first.cancelled()
        assert (gate.inside, gate.waiting) == (1, 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"queue": 0}, "queue is 0"),
        ({"max_timeout": -1.0}, "max_timeout"),
        ({"token": "a b\n"}, "printable"),
        ({"max_timeout": 5.0}, "--timeout is 10, above --max-timeout 5: "),
        ({"limits": Limits(memory_mb=2048), "max_memory": 1024}, "--memory is 2048, above --max-memory 1024: "),
    ],
)
def test_settings_are_checked(settings: dict[str, object], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        Settings(**settings)
