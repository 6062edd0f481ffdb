"""Who is next, of the calls that wait for room."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from retcon.engine.pool.replicas import Trajectory

PROBES = 2
"""Trajectories of each group that are admitted before others: their lengths tell the siblings'."""


@dataclass(slots=True)
class _Group:
    """What is known of a group: how many were admitted, and left; how many ended by themselves, with so many tokens
    together; those that wait."""

    admitted: int = 0
    left: int = 0
    ended: int = 0
    tokens: int = 0
    waiting: deque[Trajectory] = field(default_factory=deque)
    version: int = 0


class Waiting:
    """Calls without a place. Trajectories that were under way go on first, the oldest of them before others; then new
    ones: first some of each group, then groups with the longest trajectories, as what starts last ends last."""

    def __init__(self) -> None:
        self._again: list[tuple[int, Trajectory]] = []
        self._groups: dict[Hashable, _Group] = {}
        self._order: list[tuple[bool, float, int, int, Hashable]] = []
        self._gone: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def new(self, one: Trajectory) -> None:
        """A trajectory's first call."""
        group = self._groups.setdefault(one.group, _Group())
        group.waiting.append(one)
        self._count += 1
        self._rank(one.group, group)

    def again(self, one: Trajectory) -> None:
        """A call of a trajectory that was under way."""
        heapq.heappush(self._again, (one.arrived, one))
        self._count += 1

    def remove(self, one: Trajectory) -> None:
        """It waits no longer, and was not placed."""
        self._gone.add(one.arrived)
        self._count -= 1

    def left(self, one: Trajectory, *, ended: bool) -> None:
        """One that had a place is gone; where it ended by itself, its siblings may get as long."""
        group = self._groups[one.group]
        group.left += 1
        if ended:
            group.ended += 1
            group.tokens += one.tokens
        if group.waiting:
            self._rank(one.group, group)
        else:
            self._drop(one.group, group)

    def first(self) -> Trajectory | None:
        """Who is next."""
        while self._again:
            if self._again[0][0] not in self._gone:
                return self._again[0][1]
            self._gone.remove(heapq.heappop(self._again)[0])
        while self._order:
            *_, version, name = self._order[0]
            group = self._groups.get(name)
            if group is None or group.version != version or not group.waiting:
                heapq.heappop(self._order)
                continue
            one = group.waiting[0]
            if one.arrived not in self._gone:
                return one
            self._gone.remove(group.waiting.popleft().arrived)
            self._rank(name, group)
            self._drop(name, group)
        return None

    def placed(self, one: Trajectory) -> None:
        """`first` has a place now."""
        self._count -= 1
        if self._again and self._again[0][1] is one:
            heapq.heappop(self._again)
            return
        group = self._groups[one.group]
        group.waiting.popleft()
        group.admitted += 1
        self._rank(one.group, group)

    def _drop(self, name: Hashable, group: _Group) -> None:
        """Forget the group where none of it is there any more."""
        if not group.waiting and group.left == group.admitted:
            del self._groups[name]

    def _rank(self, name: Hashable, group: _Group) -> None:
        group.version += 1
        if group.waiting:
            mean = group.tokens / group.ended if group.ended else 0.0
            entry = (group.admitted >= PROBES, -mean, group.waiting[0].arrived, group.version, name)
            heapq.heappush(self._order, entry)
