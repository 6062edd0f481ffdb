"""Pool of engines behind one `Generator`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.pool.policy import Policy, PoolSettings, Send
from retcon.engine.types import Connectable, Generation, Generator, RemoteWeights, SamplingParams, SharedWeights
from retcon.models.remote import ServerFailed

T = TypeVar("T")
FAULTS = (InfrastructureFault, ConnectionError, TimeoutError)
"""Errors for which a replica, and not the request, is at fault."""
REPEATED = 3
"""Faults of a call at replicas that had failed it and then answered others, from which on the request is at fault. A
server that is busy or away does not count."""


@dataclass(slots=True)
class PoolStats:
    """Counters since the pool was made. retried: calls after a fault of a replica. evicted: calls that were evicted
    while they were computed, and began anew. moved: calls to another replica than the trajectory's last one. waited:
    seconds that calls waited for a place, together."""

    retried: int = 0
    evicted: int = 0
    moved: int = 0
    waited: float = 0.0

    def since(self, before: PoolStats) -> PoolStats:
        """Return the difference to an earlier copy."""
        earlier = asdict(before)
        return PoolStats(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def metrics(self) -> dict[str, float]:
        """Return a step's metrics."""
        return {f"pool_{name}": round(value, 2) for name, value in asdict(self).items()}


@dataclass(slots=True, eq=False)
class _Call:
    """A call. placed: resolved with a replica. began: by the loop's clock. work: its task there. evicted: whether the
    policy cancelled that. released: whether its trajectory is over. last: the last fault. failed_at: by replica that
    failed it, how many others that had answered by then. repeated: faults as in `REPEATED`."""

    placed: asyncio.Future[int]
    began: float
    work: asyncio.Future[Any] | None = None
    evicted: bool = False
    released: bool = False
    last: str = ""
    failed_at: dict[int, int] = field(default_factory=dict)
    repeated: int = 0


@dataclass(slots=True)
class Dispatcher:
    """Executor of a policy's actions in the current event loop. patience: seconds that a call waits while all replicas
    are down. who: names them in messages. forget: called with a trajectory and a replica that may drop its cache."""

    policy: Policy
    patience: float
    who: str = "engines"
    stats: PoolStats = field(default_factory=PoolStats)
    forget: Callable[[Hashable, int], None] = lambda _, __: None
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _calls: dict[Hashable, _Call] = field(default_factory=dict)
    _homes: dict[Hashable, int] = field(default_factory=dict)
    _answered: Counter[int] = field(default_factory=Counter)
    _timer: asyncio.TimerHandle | None = None

    async def run(
        self,
        id: Hashable,
        tokens: int,
        limit: int,
        work: Callable[[int], Awaitable[T]],
        made: Callable[[T], int],
        group: Hashable = None,
    ) -> T:
        """Run `work` on the policy's replica, and on others after faults.

        A fault of a replica (`FAULTS`) sends the call to the next one; another error is the caller's. made: counts the
        generated tokens. Raises InfrastructureFault if all replicas are down for longer than `patience`, or they fail
        this call repeatedly while they answer others, EngineError if the trajectory already has a call, or is released
        meanwhile.
        """
        if id in self._calls:
            raise EngineError(f"request {id} already waits for an answer; one call at a time")
        call = self._calls[id] = _Call(self._loop.create_future(), self._loop.time())
        self.policy.ask(id, tokens, limit, call.began, group)
        try:
            while True:
                self._act()
                result = await self._once(id, call, work)
                if result is not None:
                    self.policy.answered(id, made(result[0]), self._loop.time())
                    return result[0]
        except BaseException:
            self.policy.released(id, self._loop.time())
            raise
        finally:
            del self._calls[id]
            self._act()

    def release(self, id: Hashable) -> None:
        """End the trajectory, and its call, if it has one. Unknown ids are ignored."""
        self._homes.pop(id, None)
        if (call := self._calls.get(id)) is not None:
            call.released = True
            if call.work is not None:
                call.work.cancel()
            elif not call.placed.done():
                call.placed.set_exception(_released(id))
        self.policy.released(id, self._loop.time())
        self._act()

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    async def _once(self, id: Hashable, call: _Call, work: Callable[[int], Awaitable[T]]) -> tuple[T] | None:
        """Wait for a place and try there; return None if the call needs another one."""
        asked, placed = self._loop.time(), call.placed
        replica = await placed
        if call.released:
            raise _released(id)
        if placed is not call.placed:
            return None  # evicted before it began
        self.stats.waited += self._loop.time() - asked
        self.stats.moved += self._homes.get(id, replica) != replica
        self._homes[id] = replica
        call.placed, call.evicted = self._loop.create_future(), False
        running = asyncio.ensure_future(work(replica))
        call.work = running
        try:
            result = await running
        except FAULTS as fault:
            if call.released:  # at the same moment, so that there was nothing left to cancel
                raise _released(id) from fault
            if not call.evicted:
                call.last = str(fault)
                self.policy.failed(id, self._loop.time())
                busy = isinstance(fault, ServerFailed) and fault.error.unavailable
                if not busy and self._repeats(call, replica):
                    text = f"request {id} failed {REPEATED} times where others were answered: {fault}"
                    raise InfrastructureFault(text) from fault
                self.stats.retried += 1
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if call.released:
                raise _released(id) from None
            if call.evicted:
                return None
            raise
        finally:
            call.work = None
        if call.released:
            raise _released(id)
        self._answered[replica] += 1
        return None if call.evicted else (result,)

    def _repeats(self, call: _Call, replica: int) -> bool:
        """Return whether this is one fault too many. A replica that is down for all does not count against a call, nor
        does the first fault of each."""
        answered, before = self._answered[replica], call.failed_at.get(replica)
        call.failed_at[replica] = answered
        call.repeated += before is not None and answered > before
        return call.repeated >= REPEATED

    def _act(self) -> None:
        now = self._loop.time()
        for action in self.policy.due(now):
            call = self._calls.get(action.id)
            if isinstance(action, Send):
                if call is not None and not call.placed.done():
                    call.placed.set_result(action.replica)
            elif action.running and call is not None:
                self.stats.evicted += 1
                if call.work is None:
                    call.placed = self._loop.create_future()
                else:
                    call.evicted = True
                    call.work.cancel()
            else:
                self.forget(action.id, action.replica)
        down = self.policy.down_since(now)
        if down is not None:
            for id, call in self._calls.items():
                waited = now - max(down, call.began)  # without time computed or waiting for room before
                if call.work is None and not call.placed.done() and waited > self.patience:
                    fault = InfrastructureFault(f"request {id}: {call.last or f'all {self.who} are down'}")
                    call.placed.set_exception(fault)
        self.close()
        wake = self.policy.wake(now)
        self._timer = None if wake is None else self._loop.call_at(wake, self._act)


def _released(id: Hashable) -> EngineError:
    return EngineError(f"request {id} was released while it waited")


class PoolEngine:
    """A `Generator` over engines of the same weights, routed by `Policy`. It works within `connected`.

    capacities: tokens of keys and values that each engine holds; None where unknown. max_requests: calls of one engine
    at a time. patience: seconds that a call waits while all of them are down. An engine that raises
    InfrastructureFault, ConnectionError or TimeoutError gets no calls for a while, and its calls go to others; a call
    that engines fail again after they have answered others is given up (`REPEATED`).
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
        """Connect all engines for a block. Learnt lengths stay for the next one."""
        policy, self._policy = self._policy, self._policy.anew()
        async with AsyncExitStack() as stack:
            for engine in self.engines:
                if isinstance(engine, Connectable):
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
        """Continue `ids` on one of the engines. Raises its errors, and InfrastructureFault if all are down."""

        async def work(replica: int) -> Generation:
            return await (await self._engine_for(request_id, replica)).generate(request_id, ids, params)

        return await self._dispatching(request_id).run(
            request_id, len(ids), params.max_tokens, work, lambda made: len(made.ids), group=hash(tuple(ids))
        )

    async def score(self, request_id: str, ids: Sequence[int], start: int) -> Sequence[float] | None:
        """Return log-probs of ids[start:], from the trajectory's engine. Raises as `generate`."""

        async def work(replica: int) -> Sequence[float] | None:
            return await (await self._engine_for(request_id, replica)).score(request_id, ids, start)

        return await self._dispatching(request_id).run(
            request_id, len(ids), 0, work, lambda _: 0, group=hash(tuple(ids[:start]))
        )

    async def release(self, request_id: str) -> None:
        """Release the trajectory on all engines."""
        try:
            for replica in self._served.pop(request_id, ()):
                await self.engines[replica].release(request_id)
        finally:
            if self._dispatcher is not None:
                self._dispatcher.release(request_id)

    def invalidate(self) -> None:
        """Invalidate all engines over the trainer's weights. Raises EngineError while one computes."""
        for engine in self.engines:
            if isinstance(engine, SharedWeights):
                engine.invalidate()

    async def follow(self) -> None:
        """Send the model's weights to all engines with copies."""
        await asyncio.gather(*(engine.follow() for engine in self.engines if isinstance(engine, RemoteWeights)))

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
        """Release a trajectory on one engine, in the background."""
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
