"""Calls that wait for a worker: in order of arrival, but for a bounded preference for the worker's own profile."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")
PATIENCE = 32  # how often the oldest call may be overtaken: changing a worker's profile costs about as many short calls


@dataclass(slots=True, eq=False)
class Ticket(Generic[T]):
    """A place in the queue. number: rises with arrival. overtaken: how many later calls were served before it."""

    profile: str
    number: int
    item: T
    overtaken: int = field(default=0)


class Waiting(Generic[T]):
    """A queue for each profile. Every operation takes time in the number of profiles, none in that of the tickets."""

    def __init__(self, patience: int = PATIENCE) -> None:
        self._queues: dict[str, OrderedDict[int, Ticket[T]]] = {}
        self._patience = patience
        self._count = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def count(self, profile: str) -> int:
        return len(self._queues.get(profile, ()))

    def push(self, profile: str, item: T) -> Ticket[T]:
        self._count += 1
        ticket = Ticket(profile, self._count, item)
        self._queues.setdefault(profile, OrderedDict())[ticket.number] = ticket
        return ticket

    def remove(self, ticket: Ticket[T]) -> None:
        """Take it out wherever it stands; one that is out already is no error."""
        if ticket.profile in self._queues:
            self._queues[ticket.profile].pop(ticket.number, None)

    def next(self, profile: str, ready: Collection[str]) -> str | None:
        """Whose turn it is when a worker of `profile` is free: a profile among `ready`, None where none of them waits.

        `profile` itself, unless no call of it waits or the oldest call of all has been overtaken too often.
        """
        oldest = self._oldest(ready)
        if oldest is None or not self.count(profile) or oldest.profile == profile:
            return oldest.profile if oldest else None
        if oldest.overtaken >= self._patience:
            return oldest.profile
        oldest.overtaken += 1
        return profile

    def oldest(self, ready: Collection[str]) -> str | None:
        """The profile of the oldest call of those in `ready`."""
        oldest = self._oldest(ready)
        return oldest.profile if oldest else None

    def profiles(self) -> list[str]:
        """Those of which a call waits."""
        return [name for name, queue in self._queues.items() if queue]

    def pop(self, profile: str) -> T | None:
        queue = self._queues.get(profile)
        return queue.popitem(last=False)[1].item if queue else None

    def move(self, profile: str, to: str) -> None:
        """Let the calls of `profile` wait with those of another, each at the place that its arrival gives it."""
        tickets = [*self._queues.pop(profile, {}).values(), *self._queues.pop(to, {}).values()]
        for ticket in tickets:
            ticket.profile = to
        self._queues[to] = OrderedDict((t.number, t) for t in sorted(tickets, key=lambda t: t.number))

    def clear(self) -> list[T]:
        """Take all out, in order of arrival."""
        tickets = [ticket for queue in self._queues.values() for ticket in queue.values()]
        self._queues.clear()
        return [ticket.item for ticket in sorted(tickets, key=lambda t: t.number)]

    def _oldest(self, ready: Collection[str]) -> Ticket[T] | None:
        first = [next(iter(queue.values())) for name, queue in self._queues.items() if queue and name in ready]
        return min(first, key=lambda ticket: ticket.number, default=None)
