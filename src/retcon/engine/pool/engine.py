"""Several engines as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType

from retcon.core.errors import EngineError
from retcon.engine.pool.dispatch import Dispatcher, PoolStats
from retcon.engine.pool.policy import Policy
from retcon.engine.pool.types import PoolSettings
from retcon.engine.types import Connects, FollowsWeights, Generation, Generator, SamplingParams, TakesWeights


class PoolEngine:
    """A `Generator` over engines of the same weights, within `connected`; see `Policy` for which one answers what.

    capacities: tokens of keys and values that each engine holds; None where that is unknown. max_requests: calls that
    one of them is given at a time. patience: seconds that a call waits while all of them are down. An engine that
    raises InfrastructureFault, ConnectionError or TimeoutError is left alone for a while, and its calls go to others; a
    call that engines fail again after they have answered others is given up (`dispatch.REPEATED`).
    """

    def __init__(
        self,
        engines: Sequence[Generator],
        capacities: Sequence[float | None],
        *,
        max_requests: int = 256,
        patience: float = 300.0,
        settings: PoolSettings | None = None,
    ) -> None:
        if not engines or len(engines) != len(capacities):
            raise EngineError(
                f"a pool of {len(engines)} engines with {len(capacities)} capacities; one of each is needed"
            )
        self.engines = tuple(engines)
        self.stats = PoolStats()
        self._policy = Policy(capacities, max_requests=max_requests, settings=settings)
        self._patience = patience
        self._dispatcher: Dispatcher | None = None
        self._served: dict[str, set[int]] = {}
        self._releases: dict[tuple[str, int], asyncio.Future[None]] = {}

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Within, it can be asked. What was learnt of lengths stays from one time to the next."""
        policy, self._policy = self._policy, self._policy.anew()
        async with AsyncExitStack() as stack:
            for engine in self.engines:
                if isinstance(engine, Connects):
                    await stack.enter_async_context(engine.connected())
            self._dispatcher = Dispatcher(policy, self._patience, stats=self.stats, forget=self._forget)
            try:
                yield
            finally:
                for request_id in list(self._served):  # their callers are gone
                    await self.release(request_id)
                await asyncio.gather(*self._releases.values())
                self._dispatcher.close()
                self._dispatcher = None

    async def generate(self, request_id: str, ids: Sequence[int], params: SamplingParams) -> Generation:
        """Continue `ids`, on one of the engines. Raises what the engine raises, InfrastructureFault where all are
        down."""

        async def work(replica: int) -> Generation:
            return await (await self._engine_for(request_id, replica)).generate(request_id, ids, params)

        return await self._dispatching(request_id).run(
            request_id, len(ids), params.max_tokens, work, lambda made: len(made.ids), group=hash(tuple(ids))
        )

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        """Log-probs of ids[start:], from the engine that has the trajectory. Raises as `generate`."""

        async def work(replica: int) -> Sequence[float] | None:
            return await (await self._engine_for(request_id, replica)).score(request_id, ids, start)

        return await self._dispatching(request_id).run(
            request_id, len(ids), 0, work, lambda _: 0, group=hash(tuple(ids[:start]))
        )

    async def release(self, request_id: str) -> None:
        """The trajectory is over, wherever it was."""
        try:
            for replica in self._served.pop(request_id, ()):
                await self.engines[replica].release(request_id)
        finally:
            if self._dispatcher is not None:
                self._dispatcher.release(request_id)

    def invalidate(self) -> None:
        """Of all engines that share their weights with somebody. Raises EngineError while one computes."""
        for engine in self.engines:
            if isinstance(engine, TakesWeights):
                engine.invalidate()

    async def follow(self) -> None:
        """All engines with weights of their own get the model's."""
        await asyncio.gather(*(engine.follow() for engine in self.engines if isinstance(engine, FollowsWeights)))

    async def _engine_for(self, request_id: str, replica: int) -> Generator:
        self._served.setdefault(request_id, set()).add(replica)
        if (release := self._releases.get((request_id, replica))) is not None:
            await asyncio.wait([release])  # of an earlier stay there; it goes on where this caller is cancelled
        return self.engines[replica]

    def _dispatching(self, request_id: str) -> Dispatcher:
        if self._dispatcher is None:
            raise EngineError(f"request {request_id}: the pool is not connected: see `PoolEngine.connected`")
        return self._dispatcher

    def _forget(self, id: Hashable, replica: int) -> None:
        """An engine may drop what it keeps for a trajectory."""
        key = (str(id), replica)
        self._releases[key] = release = asyncio.ensure_future(self.engines[replica].release(key[0]))
        release.add_done_callback(lambda _: self._releases.pop(key, None))

    async def __aenter__(self) -> PoolEngine:
        async with AsyncExitStack() as stack:  # where one cannot be entered, those before it are left
            for engine in self.engines:
                if isinstance(engine, AbstractAsyncContextManager):
                    await stack.enter_async_context(engine)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
