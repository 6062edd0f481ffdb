"""An engine in another thread: forwards do not block the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from retcon.engine.types import Generation, Generator, ParkableEngine, SamplingParams

T = TypeVar("T")


class ThreadedEngine:
    """A `Generator` that runs `engine` in another thread's event loop.

    It works within `async with`. Calls keep their order. On exit calls under way are cancelled, after the current
    forward.
    """

    def __init__(self, engine: Generator) -> None:
        self._engine = engine
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="retcon-engine", daemon=True)

    async def __aenter__(self) -> ThreadedEngine:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        await asyncio.to_thread(self._thread.join)

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        return await self._there(self._engine.generate(request_id, ids, params))

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        return await self._there(self._engine.score(request_id, ids, start))

    async def release(self, request_id: str) -> None:
        await self._there(self._engine.release(request_id))

    def set_aside(self, request_id: str) -> None:
        """Pass on to an engine that waits for requests."""
        if isinstance(self._engine, ParkableEngine):
            self._loop.call_soon_threadsafe(self._engine.set_aside, request_id)

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the thread; cancelling it here cancels it there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._end.wait())
