"""Simulated engine with keys and values in slots, like the local engine."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import torch

from parts.fleet.costs import Costs
from parts.fleet.replica import Call, SimulatedReplica
from retcon.engine.local.requests import AHEAD
from retcon.engine.local.scheduler import HEADROOM, REST
from retcon.engine.local.slabs import KeysAndValues, Memory, Place


class SlottedReplica(SimulatedReplica):
    """Trajectories that were here before go first; a new one leaves `HEADROOM`, and puts out nothing that was used in
    the last `REST` forwards. Where one that decodes cannot grow, those that came last lose their slots.

    longest: tokens of a trajectory at most.
    """

    def __init__(self, costs: Costs, slow: float = 1.0, *, longest: int) -> None:
        self.longest = longest
        super().__init__(costs, slow)

    def _reset(self) -> None:
        super()._reset()
        cpu = torch.device("cpu")
        slots = KeysAndValues({}, torch.float16, cpu)
        budget = slots.slot_bytes(self.costs.capacity)
        self._memory = Memory(slots, device=cpu, max_len=self.longest, max_slots=self.costs.rows, budget=budget)
        self._slots: dict[Hashable, Place] = {}
        self._used: dict[Hashable, int] = {}  # forwards after which a trajectory was used last
        self._ages: dict[Hashable, int] = {}
        self._leaders: dict[Hashable, Hashable] = {}  # by group, who computed its prompt last
        self._holders: dict[Hashable, Hashable] = {}  # in whose slots a prompt lies, and of which group

    def submit(self, call: Call, now: float) -> None:
        super().submit(call, now)
        self._ages.setdefault(call.id, call.arrived)

    def forget(self, id: Hashable) -> None:
        self._put_out(id)
        self._used.pop(id, None)
        self._ages.pop(id, None)

    def _put_out(self, id: Hashable) -> None:
        super().forget(id)
        self._holders.pop(id, None)
        if id in self._slots:
            self._memory.give(self._slots.pop(id))

    def _cache(self, id: Hashable, tokens: int) -> None:
        super()._cache(id, tokens)
        self._used[id] = self._forwards

    def _drop_dead(self) -> None:
        dead = [call.id for call in (*self._decoding.values(), *self._feeding) if not call.live]
        super()._drop_dead()
        for id in dead:
            self.forget(id)

    def _squeeze(self) -> None:
        """What is cached gives way where a slot is looked for."""

    def _queue(self) -> list[Call]:
        return sorted(self.waiting, key=lambda call: call.id not in self._used)

    def _led(self, call: Call) -> bool:
        if not self._begins(call) or call.id in self._slots:
            return False
        leader = self._leaders.get(call.group)
        return any(other.id == leader for other in self._feeding)

    def _shared(self, call: Call) -> int:
        """A prompt is copied from a slot in which it lies, and only where nothing follows it yet."""
        if not self._begins(call):
            return 0
        there = call.group in self._holders.values()
        self._holders[call.id] = call.group
        if not there:
            self._leaders[call.group] = call.id
        return call.shared if there else 0

    def _begins(self, call: Call) -> bool:
        return call.tokens == call.shared and not call.made

    def _place(self, call: Call, tokens: int) -> bool:
        place, room = self._slots.get(call.id), tokens + min(call.wanted - call.made, AHEAD)
        if place is None or tokens > place.capacity:
            idle, new = not self._feeding and not self._decoding, call.id not in self._used
            victims = self._resting(call.id) if idle or not new else self._left_alone()
            while new and not idle and self._memory.scarce(room, HEADROOM):
                victim = next(victims, None)
                if victim is None:
                    return False
                self._put_out(victim)
            if not self._take(call.id, room, victims):
                if place is None:
                    return False
                self._put_out(call.id)
                if not self._take(call.id, room, self._resting(call.id) if idle else ()):
                    return False
        self._used[call.id] = self._forwards
        return True

    def _resting(self, but: Hashable) -> Iterator[Hashable]:
        """Those whose tools run, then those that wait."""
        for waits in (False, True):
            yield from [id for id in self._cached if id != but and (id in self.calls) == waits]

    def _left_alone(self) -> Iterator[Hashable]:
        yield from [id for id in self._resting(None) if self._forwards - self._used[id] > REST]

    def _take(self, id: Hashable, length: int, victims: Iterable[Hashable]) -> bool:
        """Give it a slot of at least `length` in the place of what it has; put victims out as it takes."""
        length = min(length, self.longest)
        place, others = self._memory.take(length), iter(victims)
        while place is None:
            victim = next(others, None)
            if victim is None:
                return False
            self._put_out(victim)
            place = self._memory.take(length)
        if id in self._slots:
            self._memory.give(self._slots[id])
        self._slots[id] = place
        return True

    def _tokens(self, call: Call) -> int:
        """Tokens of a call that decodes; the last one is not computed yet."""
        return call.tokens + call.made + self._forwards - call.joined

    def _room(self) -> int:
        """Forwards until a slot is full."""
        return min(self._slots[id].capacity - self._tokens(call) + 1 for id, call in self._decoding.items())

    def _make_room(self) -> None:
        full = [c for id, c in self._decoding.items() if self._tokens(c) > self._slots[id].capacity]
        for call in sorted(full, key=lambda c: self._ages[c.id]):
            while call.id in self._decoding:
                room = self._tokens(call) - 1 + min(call.ends - self._forwards, AHEAD)
                if self._take(call.id, room, self._resting(call.id)):
                    break
                others = (*self._decoding.values(), *self._feeding)
                self._set_back(max(others, key=lambda c: self._ages[c.id]))

    def _set_back(self, call: Call) -> None:
        if call.id in self._decoding:
            tokens = self._tokens(call)
            del self._decoding[call.id]
            self._context -= tokens
            call.made = tokens - call.tokens
        else:
            self._feeding.remove(call)
            self._fed -= call.tokens + call.made
        self._put_out(call.id)
        self.waiting.append(call)
        self.counts.preempted += 1
