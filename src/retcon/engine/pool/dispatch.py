"""The policy at work: calls that wait for a place, go to a replica, fail, are given up and go to another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from retcon.core.errors import EngineError, InfrastructureFault
from retcon.engine.pool.policy import Policy
from retcon.engine.pool.types import Send
from retcon.models.remote import Failed

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
                busy = isinstance(fault, Failed) and fault.said.away
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
