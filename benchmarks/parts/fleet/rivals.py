"""What the pool's policy is compared with."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Hashable, Sequence

from parts.fleet.world import Restart, number_of
from retcon.engine.pool.policy import Action, Send

RETRY = 1.0
"""Seconds after which a replica that failed is tried again."""


class Immediate:
    """Sends every call at once; `choose` says where. A replica that failed is left alone for `RETRY` seconds, and its
    calls go elsewhere at once where there is one that did not; moves: whether they can."""

    moves = True

    def __init__(self, replicas: int) -> None:
        self.calls = [0] * replicas
        self.homes: dict[Hashable, int] = {}  # where a call is, or was last
        self.groups: dict[Hashable, Hashable] = {}
        self._down = [0.0] * replicas
        self._actions: list[Action | Restart] = []
        self._later: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def choose(self, id: Hashable, group: Hashable, now: float) -> int:
        raise NotImplementedError

    def ask(self, id: Hashable, tokens: int, limit: int, now: float, group: Hashable = None) -> None:
        self.groups[id] = group
        self.send(id, now)

    def send(self, id: Hashable, now: float) -> None:
        replica = self.choose(id, self.groups[id], now)
        self.homes[id] = replica
        self.calls[replica] += 1
        self._actions.append(Send(id, replica))

    def answered(self, id: Hashable, generated: int, now: float) -> None:
        self.calls[self.homes[id]] -= 1

    def failed(self, id: Hashable, now: float) -> None:
        replica = self.homes[id]
        self.calls[replica] -= 1
        self._down[replica] = now + RETRY
        self._count += 1
        again = now if self.moves and any(until <= now for until in self._down) else now + RETRY
        heapq.heappush(self._later, (again, self._count, id))

    def released(self, id: Hashable, now: float) -> None:
        self.homes.pop(id, None)
        self.groups.pop(id, None)

    def due(self, now: float) -> Sequence[Action | Restart]:
        while self._later and self._later[0][0] <= now:
            self.send(heapq.heappop(self._later)[2], now)
        actions, self._actions = self._actions, []
        return actions

    def wake(self, now: float) -> float | None:
        return self._later[0][0] if self._later else None

    def down_since(self, now: float) -> float | None:
        """For the pool's dispatcher: it waits for replicas that are down as long as it takes."""
        return None

    def least(self, now: float) -> int:
        """Return the replica with the fewest calls among those without recent failures."""
        up = [n for n, until in enumerate(self._down) if until <= now] if any(u > now for u in self._down) else None
        return min(up or range(len(self.calls)), key=self.calls.__getitem__)


class Static(Immediate):
    """Fixed equal shares of trajectories by replica, groups kept together. As a batch is split in verl 0.2 and
    rStar2-Agent's baseline; unlike there, no trajectory waits for the tools of others."""

    moves = False

    def __init__(self, replicas: int, jobs: int) -> None:
        super().__init__(replicas)
        self._jobs = jobs

    def choose(self, id: Hashable, group: Hashable, now: float) -> int:
        return number_of(id) * len(self.calls) // self._jobs


class LeastRequests(Immediate):
    """Every call where the fewest are."""

    def choose(self, id: Hashable, group: Hashable, now: float) -> int:
        return self.least(now)


class Sticky(Immediate):
    """Routing to the least loaded replica, kept per trajectory (verl's agent loop)."""

    def choose(self, id: Hashable, group: Hashable, now: float) -> int:
        home = self.homes.get(id)
        return self.least(now) if home is None or self._down[home] > now else home


class PrefixAffinity(Immediate):
    """Where the longest prefix is: the trajectory's own, else its group's prompt; unless that replica has more than 64
    calls and half as many again as the one with the fewest, which gets it then (SGLang's cache-aware router)."""

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self._prompts: dict[Hashable, int] = {}

    def choose(self, id: Hashable, group: Hashable, now: float) -> int:
        home = self.homes.get(id, self._prompts.get(group))
        least = self.least(now)
        fewest = self.calls[least]
        full = home is not None and self.calls[home] - fewest > 64 and self.calls[home] > 1.5 * fewest
        if home is None or self._down[home] > now or full:
            home = least
        self._prompts[group] = home
        return home


class Bounded(Sticky):
    """Sticky, with at most `cap` trajectories under way; others wait for one to end."""

    cap: float = math.inf

    def __init__(self, replicas: int) -> None:
        super().__init__(replicas)
        self.open: dict[Hashable, None] = {}  # under way, the oldest first
        self.queue: deque[Hashable] = deque()

    def ask(self, id: Hashable, tokens: int, limit: int, now: float, group: Hashable = None) -> None:
        self.groups[id] = group
        if id in self.open:
            self.send(id, now)
        else:
            self.queue.append(id)

    def released(self, id: Hashable, now: float) -> None:
        super().released(id, now)
        del self.open[id]

    def due(self, now: float) -> Sequence[Action | Restart]:
        while self.queue and len(self.open) < int(self.cap):
            id = self.queue.popleft()
            self.open[id] = None
            self.send(id, now)
        return super().due(now)


class Reserving(Bounded):
    """rStar2-Agent's scheduler (arXiv 2508.20722, section 3.2): each replica gets as many trajectories as fit if all of
    them get as long as they may, and a new one when one of them ends."""

    def __init__(self, replicas: int, capacity: int, longest: int) -> None:
        super().__init__(replicas)
        self.each = max(1, capacity // longest)
        self.cap = replicas * self.each
        self._held = [0] * replicas

    def choose(self, id: Hashable, group: Hashable, now: float) -> int:
        home = self.homes.get(id)
        if home is not None and self._down[home] <= now:
            return home
        up = [n for n, until in enumerate(self._down) if until <= now] or range(len(self._held))
        if home is not None:
            self._held[home] -= 1
        home = min(up, key=self._held.__getitem__)
        self._held[home] += 1
        return home

    def released(self, id: Hashable, now: float) -> None:
        self._held[self.homes[id]] -= 1
        super().released(id, now)


class Aimd(Bounded):
    """Cap on running trajectories that follows engine gauges, as in prime-rl. Pull requests 3285, 3307 and
    3556: from as many as fit at full length it grows with each trajectory that ends, by 20 % a turnover on empty
    engines and by nothing from 80 % of their memory on; above 80 % of the fullest it is cut to what 70 % would hold,
    above 90 % those that came last are cancelled too; after preemptions it is cut to 80 %, and by calls that queue for
    long to 90 %, of what is under way. Cancelled trajectories begin anew later."""

    interval = 5.0

    def __init__(self, replicas: int, capacity: int, longest: int) -> None:
        super().__init__(replicas)
        self.cap = max(1.0, replicas * capacity / longest)
        self._usage = 0.0
        self._preempted = 0
        self._clear, self._draining = True, False
        self._cooldown = self._queued = 0
        self._sent: set[Hashable] = set()

    def released(self, id: Hashable, now: float) -> None:
        under_way = len(self.open)
        super().released(id, now)
        if self._clear and under_way >= 0.9 * self.cap:
            growth = 1.2 - 0.2 * min(1.0, self._usage / 0.8)
            self.cap *= growth ** (1 / under_way)

    def read(self, gauges: Sequence[tuple[float, int, int, int]], now: float) -> None:
        self._usage = max((usage for usage, *_ in gauges), default=0.0)
        running, waiting = sum(g[1] for g in gauges), sum(g[2] for g in gauges)
        preempted = sum(g[3] for g in gauges)
        more, self._preempted = preempted > self._preempted, preempted
        self._queued = self._queued + 1 if running and waiting > 0.5 * running else 0
        queued = self._queued >= 6
        self._clear = not more and not waiting
        self._cooldown = max(0, self._cooldown - 1)
        under_way = len(self.open)
        if self._draining and under_way <= self.cap and not more and not queued:
            self._draining = False
        if self._draining or not under_way:
            return
        if more or queued:
            self._cut((0.8 if more else 0.9) * under_way, now, cancel=True)
            self._draining, self._queued = True, 0
        elif self._usage > 0.8 and not self._cooldown:
            self._cut(under_way * 0.7 / self._usage, now, cancel=self._usage > 0.9)
            self._cooldown = 6

    def _cut(self, cap: float, now: float, *, cancel: bool) -> None:
        self.cap = max(1.0, min(self.cap, cap))
        for id in reversed(list(self.open)[int(self.cap) :] if cancel else []):
            home = self.homes.pop(id, None)
            if home is not None and id in self._sent:
                self.calls[home] -= 1
                self._sent.discard(id)
            del self.open[id]
            self._actions.append(Restart(id))
            self.queue.appendleft(id)

    def send(self, id: Hashable, now: float) -> None:
        super().send(id, now)
        self._sent.add(id)

    def answered(self, id: Hashable, generated: int, now: float) -> None:
        super().answered(id, generated, now)
        self._sent.discard(id)

    def failed(self, id: Hashable, now: float) -> None:
        super().failed(id, now)
        self._sent.discard(id)
