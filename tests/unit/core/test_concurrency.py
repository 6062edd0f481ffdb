"""Work that is done at once: whoever waits for it knows that all of it has ended, however it did."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from retcon.core.concurrency import gather_or_cancel, run_sync


def test_results_come_in_order_whoever_is_first() -> None:
    async def after(passes: int) -> int:
        for _ in range(passes):
            await asyncio.sleep(0)
        return passes

    async def work() -> list[int]:
        return await gather_or_cancel(after(passes) for passes in (3, 0, 2))

    assert asyncio.run(work()) == [3, 0, 2]


def test_the_first_error_is_raised_once_the_others_have_cleaned_up() -> None:
    """Which takes a while: what they used is closed next."""
    begun, cleaned = asyncio.Event(), []

    async def stuck(name: str) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append(name)

    async def fails() -> None:
        await begun.wait()
        raise KeyError("first")

    async def work() -> list[str]:
        with pytest.raises(KeyError, match="first"):
            await gather_or_cancel([stuck("a"), fails(), stuck("b")])
        return list(cleaned)

    assert asyncio.run(work()) == ["a", "b"]


def test_ctrl_c_ends_work_in_another_loop_and_lets_it_clean_up() -> None:
    cleaned: list[str] = []

    async def work() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cleaned.append("work")

    async def cell() -> None:
        run_sync(work())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()
    assert cleaned == ["work"]
