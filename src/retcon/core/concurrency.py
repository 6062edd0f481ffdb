"""Structured asyncio helpers: gather with cancellation, and running a coroutine synchronously."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine, Iterable
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


async def gather_or_cancel(work: Iterable[Awaitable[T]]) -> list[T]:
    """Return the results in order; on the first error, cancel the rest, wait for their cleanup, and raise it."""
    running = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*running)
    except BaseException:
        await cancel_all(running)
        raise


async def cancel_all(running: Collection[asyncio.Future[Any]]) -> None:
    """Cancel what is still running and wait for its cleanup."""
    for one in running:
        one.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also inside a running loop. Ctrl-C cancels it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = Future()

    async def run() -> T:
        running.set_result((asyncio.get_running_loop(), asyncio.current_task()))
        return await work

    made: Future[T] = Future()

    def compute() -> None:
        try:
            made.set_result(asyncio.run(run()))
        except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
            made.set_exception(error)

    thread = Thread(target=compute)  # not a pool's, which forgets one whose start is interrupted
    try:
        thread.start()
        return made.result()
    except KeyboardInterrupt:
        loop, task = running.result(timeout=1)
        if task is not None:
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()
