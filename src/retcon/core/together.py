"""Work that is done at once: where one piece fails, none goes on behind its back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """Results in order. The first error is raised as it is, once the others are cancelled and have cleaned up."""
    running = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        await cancelled(running)
        raise


async def cancelled(running: Collection[asyncio.Future[Any]]) -> None:
    """Cancels what has not ended, and waits until it has cleaned up."""
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives, whether a loop runs in this thread or not."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
