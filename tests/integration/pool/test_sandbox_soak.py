"""Five hundred calls at once, with faults in the middle; benchmarks/soak.py measures the same with 45,000."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from retcon.sandbox.pool import SandboxPool
from retcon.sandbox.types import Result

CALLS = 500
ENDLESS_SECONDS = 0.3


async def call(pool: SandboxPool, number: int) -> bool:
    """Whether the answer is right, and this call's own."""
    if number % 50 == 7:
        result = await pool.run("while True: pass", timeout=ENDLESS_SECONDS)
        return result.status == "timeout"
    if number % 10 == 3:
        result = await pool.run(f"raise ValueError({number})")
        return result.error_type == "ValueError" and f"ValueError: {number}\n" in result.stderr
    if number % 50 == 9:
        result = await pool.run(f"import numpy\nprint(numpy.int64({number}))")
    else:
        result = await pool.run(f"print({number})")
    return (result.status, result.stdout) == ("ok", f"{number}\n")


async def kill_in_the_middle(pool: SandboxPool, calls: list[asyncio.Task[bool]]) -> None:
    await asyncio.wait(calls[: CALLS // 3])
    assert pool.full
    os.kill(pool.fleet.zygotes["bare"], signal.SIGKILL)
    await asyncio.wait(calls[: CALLS // 2])
    os.kill(pool.worker.pid, signal.SIGKILL)


@pytest.mark.slow
def test_every_call_is_answered_by_its_own_answer() -> None:
    async def main() -> list[bool]:
        async with SandboxPool(queue=100) as pool:
            calls = [asyncio.create_task(call(pool, number)) for number in range(CALLS)]
            await kill_in_the_middle(pool, calls)
            return await asyncio.gather(*calls)

    right = asyncio.run(main())
    assert [number for number, fine in enumerate(right) if not fine] == []


def test_calls_that_die_with_their_pool_are_answered_too() -> None:
    async def main() -> list[Result | BaseException]:
        async with SandboxPool(workers=2) as pool:
            calls = [asyncio.create_task(pool.run("import time\ntime.sleep(60)")) for _ in range(200)]
            await asyncio.sleep(0)
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(main())
    kinds = {answer.status if isinstance(answer, Result) else type(answer).__name__ for answer in answers}
    assert kinds == {"infrastructure", "SandboxUnavailable"}
