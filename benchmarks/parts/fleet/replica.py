"""One simulated engine: continuous batching with chunked prefill, a prefix cache and preemption, as vLLM's.

Between two changes of its batch a replica's forwards are known in closed form, so that no forward is simulated alone:
what it costs to simulate depends on how many calls there are, not on how many tokens.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from parts.fleet.costs import Costs


@dataclass(slots=True, eq=False)
class Call:
    """A request: `tokens` of history, `wanted` to generate. shared: tokens at the front that its group has in common.
    known: tokens of its history that were computed before, here or elsewhere. joined: forwards that had been run when
    it began to decode; ends: when it is done. made: tokens before it was preempted."""

    id: Hashable
    tokens: int
    wanted: int
    group: Hashable
    shared: int
    known: int = 0
    arrived: int = 0
    left: int = 0
    joined: int = 0
    ends: int = 0
    made: int = 0
    live: bool = True


@dataclass(slots=True)
class Counts:
    """Tokens decoded; tokens prefilled, and those of them that were computed before (`again`); forwards; preemptions,
    each an overflow of the keys' and values' memory; seconds busy."""

    decoded: int = 0
    prefilled: int = 0
    again: int = 0
    forwards: int = 0
    preempted: int = 0
    busy: float = 0.0


class SimulatedReplica:
    """One simulated engine. slow: factor on all its times. `advance` to a time at which `boundary` says that the batch
    changes, or at which something is to be called on it."""

    def __init__(self, costs: Costs, slow: float = 1.0) -> None:
        self.costs, self.slow = costs, slow
        self.counts = Counts()
        self.up = True
        self._arrivals = self._forwards = 0
        self._reset()

    def _reset(self) -> None:
        self.waiting: deque[Call] = deque()
        self.calls: dict[Hashable, Call] = {}
        self._feeding: deque[Call] = deque()
        self._decoding: dict[Hashable, Call] = {}
        self._ends: list[tuple[int, int, Call]] = []
        self._context = 0  # tokens of those that decode
        self._dead = False  # whether a call was given up since the last look
        self._fed = 0  # tokens that those that are fed will take
        self._cached: OrderedDict[Hashable, int] = OrderedDict()  # of calls that are done; the oldest first
        self._cached_tokens = 0
        self._prompts: dict[Hashable, int] = {}
        self._since = 0.0  # when the stretch of forwards began
        self._count = 0  # its forwards
        self._chunk = 0  # tokens of prefill in each of them (then there is one)

    @property
    def used(self) -> int:
        """Tokens of keys and values that calls hold."""
        return self._context + self._fed

    # --- called from outside ---

    def submit(self, call: Call, now: float) -> None:
        self._arrivals += 1
        call.arrived = self._arrivals
        self.calls[call.id] = call
        self.waiting.append(call)
        self._cut(now)

    def abort(self, id: Hashable, now: float) -> int:
        """Give a call up, at the end of the forward that runs. Returns the tokens that it had generated."""
        call = self.calls.pop(id)
        call.live, self._dead = False, True
        if self._decoding.get(id) is not call:
            return call.made
        self._cut(now)
        return call.made + self._count + self._forwards - call.joined

    def forget(self, id: Hashable) -> None:
        """What is cached for a trajectory may go."""
        self._cached_tokens -= self._cached.pop(id, 0)

    def kill(self, now: float) -> list[tuple[Call, int]]:
        """It dies: all that is cached is lost, and all calls, each with the tokens that it had generated. What a
        stretch of forwards did that is not over is neither counted nor in these."""
        lost = [
            (call, call.made + (self._forwards - call.joined if self._decoding.get(call.id) is call else 0))
            for call in self.calls.values()
        ]
        if self._count:
            self.counts.busy += now - self._since
        self._reset()
        self.up = False
        return lost

    # --- time ---

    def boundary(self) -> float | None:
        """Return when its batch next changes by itself, or None if idle."""
        if not self._count:
            return None
        return self._since + self._seconds(self._count)

    def advance(self, now: float) -> list[tuple[Call, int]]:
        """The stretch of forwards ends now, at its boundary. Returns calls that are done."""
        done: list[tuple[Call, int]] = []
        if self._count:
            self.counts.busy += now - self._since
            self.counts.forwards += self._count
            self.counts.decoded += self._count * len(self._decoding)
            self._context += self._count * len(self._decoding)
            self._forwards += self._count
            self._fed_on()
            self._count = 0
            self._squeeze()  # as it grew, what was cached gave way
            self._finish(done)
        self._since = now
        self._drop_dead()
        self._admit(done)
        self._make_room()
        self._plan()
        return done

    # --- inside ---

    def _seconds(self, count: int) -> float:
        work = self.costs.steps(count, len(self._decoding), self._context)
        return self.slow * (work + count * self.costs.prefill * self._chunk)

    def _steps_by(self, now: float) -> int:
        """Forwards that will have begun by now."""
        if self._chunk:
            return 1
        seconds = (now - self._since) / self.slow
        return min(self._count, self.costs.steps_within(seconds, len(self._decoding), self._context))

    def _cut(self, now: float) -> None:
        """The stretch ends with the forward that runs now."""
        if self._count:
            self._count = max(1, self._steps_by(now))

    def _plan(self) -> None:
        rows = len(self._decoding)
        if self._feeding:
            self._chunk = min(sum(call.left for call in self._feeding), max(1, self.costs.chunk - rows))
            self._count = 1
            return
        self._chunk = 0
        if not rows:
            self._count = 0
            return
        room = self._room()
        while self._stale(self._ends[0]):
            heapq.heappop(self._ends)
        self._count = max(1, min(self._ends[0][0] - self._forwards, room))

    def _fed_on(self) -> None:
        room = self._chunk
        self.counts.prefilled += room
        while self._feeding and room:
            call = self._feeding[0]
            part = min(room, call.left)
            call.left -= part
            room -= part
            if call.left:
                break
            self._feeding.popleft()
            self._fed -= call.tokens + call.made
            if not call.live:
                self._cache(call.id, call.tokens + call.made)
                continue
            self._context += call.tokens + call.made + 1  # the forward that ends a prefill gives the first token
            self.counts.decoded += 1
            call.joined = self._forwards - 1
            call.ends = call.joined + call.wanted - call.made
            self._decoding[call.id] = call
            heapq.heappush(self._ends, (call.ends, call.arrived, call))
            if call.group is not None:
                self._prompts[call.group] = call.shared

    def _finish(self, done: list[tuple[Call, int]]) -> None:
        while self._ends and self._ends[0][0] <= self._forwards:
            entry = heapq.heappop(self._ends)
            if self._stale(entry):
                continue
            call = entry[2]
            self._stop(call)
            if call.live:
                del self.calls[call.id]
                done.append((call, call.wanted))

    def _stale(self, entry: tuple[int, int, Call]) -> bool:
        """Whether the call no longer decodes, or does so anew after a preemption."""
        call = entry[2]
        return self._decoding.get(call.id) is not call or call.ends != entry[0]

    def _stop(self, call: Call) -> None:
        """It no longer decodes; what it computed stays cached while there is room."""
        del self._decoding[call.id]
        tokens = call.tokens + call.made + self._forwards - call.joined
        self._context -= tokens
        self._cache(call.id, tokens)

    def _cache(self, id: Hashable, tokens: int) -> None:
        self._cached[id] = tokens
        self._cached_tokens += tokens

    def _drop_dead(self) -> None:
        if not self._dead:
            return
        self._dead = False
        for call in [c for c in self._decoding.values() if not c.live]:
            self._stop(call)
        for call in [c for c in self._feeding if not c.live]:
            self._feeding.remove(call)
            self._fed -= call.tokens + call.made
        if any(not c.live for c in self.waiting):
            self.waiting = deque(c for c in self.waiting if c.live)

    def _admit(self, done: list[tuple[Call, int]]) -> None:
        """First come, first served, while the history fits and a forward's tokens of prefill are not used up."""
        for call in self._queue():
            if len(self._decoding) + len(self._feeding) >= self.costs.rows:
                break
            if self._led(call):
                continue
            tokens = call.tokens + call.made
            if not self._place(call, tokens):
                break
            self.waiting.remove(call)
            if call.wanted <= call.made:  # nothing to generate
                del self.calls[call.id]
                done.append((call, 0))
                continue
            cached = min(self._cached.get(call.id, 0), tokens)
            cached = cached or min(self._shared(call), tokens)
            self._cached_tokens -= self._cached.pop(call.id, 0)
            call.left = max(1, tokens - cached)
            self.counts.again += max(0, min(max(call.known, call.made and tokens), tokens) - cached)
            self._feeding.append(call)
            self._fed += tokens
            self._squeeze()

    def _queue(self) -> list[Call]:
        """Who is admitted, in order."""
        return list(self.waiting)

    def _led(self, call: Call) -> bool:
        """Whether it waits for a sibling to compute their prompt."""
        return False

    def _shared(self, call: Call) -> int:
        """Tokens at its front that are there, as a sibling computed them."""
        return self._prompts.get(call.group, 0)

    def _place(self, call: Call, tokens: int) -> bool:
        """Whether its history has room; it has where nothing else is computed."""
        return self.used + tokens + 1 <= self.costs.capacity or not (self._decoding or self._feeding)

    def _room(self) -> int:
        """Forwards for which those that decode have room."""
        return (self.costs.capacity - self.used) // len(self._decoding)

    def _squeeze(self) -> None:
        """What is cached gives way to calls, the oldest first, from its end."""
        over = self.used + self._cached_tokens - self.costs.capacity
        while over > 0 and self._cached:
            id, tokens = next(iter(self._cached.items()))
            if tokens <= over:
                self.forget(id)
            else:
                self._cached[id] = tokens - over
                self._cached_tokens -= over
            over = self.used + self._cached_tokens - self.costs.capacity

    def _make_room(self) -> None:
        """Where the next forward would not fit, the call that came last is put back: an overflow."""
        while self.used + len(self._decoding) > self.costs.capacity and len(self._decoding) > 1:
            call = max(self._decoding.values(), key=lambda c: c.arrived)
            self._stop(call)
            call.made += self._forwards - call.joined
            self.waiting.appendleft(call)
            self.counts.preempted += 1
        self._squeeze()
