"""Several engines as one."""

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
from retcon.engine.types import Connects, FollowsWeights, Generation, Generator, SamplingParams, TakesWeights
from retcon.models.remote import ServerFailed

T = TypeVar("T")
FAULTS = (InfrastructureFault, ConnectionError, TimeoutError)
"""What says that a replica, and not the request, is at fault."""
REPEATED = 3
"""Faults of a call at replicas that had failed it and then answered others: that many say that it is the request. Where
a server says that it is busy, or is not there, it is not the request."""


@dataclass(slots=True)
class PoolStats:
    """Counters since the pool was made. retried: calls after a fault of a replica. evicted: calls that gave way while
    they were computed, and began anew. moved: calls that went elsewhere than the trajectory's last one. waited: seconds
    that calls waited for a place, together."""

    retried: int = 0
    evicted: int = 0
    moved: int = 0
    waited: float = 0.0

    def since(self, before: PoolStats) -> PoolStats:
        """The difference to an earlier copy."""
        earlier = asdict(before)
        return PoolStats(**{name: value - earlier[name] for name, value in asdict(self).items()})

    def metrics(self) -> dict[str, float]:
        """What a run logs of a step."""
        return {f"pool_{name}": round(value, 2) for name, value in asdict(self).items()}


@dataclass(slots=True, eq=False)
class _Call:
    """placed: resolved with a replica. began: by the loop's clock. work: what runs there. evicted: whether the policy
    gave that up. released: whether its trajectory is over. last: the last fault. failed_at: by replica that failed it,
    how many others that had answered by then. repeated: see `REPEATED`."""

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
    """Does what a policy decides, in the event loop in which it is made. patience: seconds that a call waits while all
    replicas are down. who: names them in messages. forget: told where a trajectory's keys and values may go."""

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
        """What `work` gives on the replica that it is told, which may be asked of several.

        A fault of a replica (`FAULTS`) sends the call to the next one; another error is the caller's. made: tokens that
        were generated. Raises InfrastructureFault where all replicas are down and patience is at its end, or they fail
        this call again and again while they answer others, EngineError where the trajectory already has a call, or is
        released meanwhile.
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
        """The trajectory is over, and its call, if it has one. Unknown ids are ignored."""
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
        """No timer runs any longer."""
        if self._timer is not None:
            self._timer.cancel()

    async def _once(self, id: Hashable, call: _Call, work: Callable[[int], Awaitable[T]]) -> tuple[T] | None:
        """Wait for a place and try there; None where the call has to find another one."""
        asked, placed = self._loop.time(), call.placed
        replica = await placed
        if call.released:
            raise _released(id)
        if placed is not call.placed:
            return None  # it had to give way before it began
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
                    said = f"request {id} failed {REPEATED} times where others were answered: {fault}"
                    raise InfrastructureFault(said) from fault
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
        """Whether that fault is one too many. One that is down for all says nothing about a call, nor does the first
        fault of each."""
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
                waited = now - max(down, call.began)  # what it was computed before, or waited for room, is not counted
                if call.work is None and not call.placed.done() and waited > self.patience:
                    fault = InfrastructureFault(f"request {id}: {call.last or f'all {self.who} are down'}")
                    call.placed.set_exception(fault)
        self.close()
        wake = self.policy.wake(now)
        self._timer = None if wake is None else self._loop.call_at(wake, self._act)


def _released(id: Hashable) -> EngineError:
    return EngineError(f"request {id} was released while it waited")


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
