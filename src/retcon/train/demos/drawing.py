"""Training tasks in the order in which demonstrations are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

from retcon.core.seeds import derive
from retcon.rollout.prompts import PATIENCE
from retcon.tasks.registry import TaskSet
from retcon.tasks.types import Task

T = TypeVar("T")


class Drawn(Generic[T]):
    """A stream, which may be endless, as a list that grows as it is asked for."""

    def __init__(self, stream: Iterator[T]) -> None:
        self._stream = stream
        self._drawn: list[T] = []

    def part(self, start: int, stop: int) -> list[T]:
        """Those from start to stop; fewer where the stream ends."""
        self._drawn += islice(self._stream, max(0, stop - len(self._drawn)))
        return self._drawn[start:stop]


def drawn_tasks(tasks: TaskSet, seed: int) -> Iterator[Task]:
    """One pass over the training tasks, in another order than that of a run's prompts. One that comes again, as in a
    mix of sources with weights, is left out: rollouts are named, and drawn, by their task. Ends, too, where PATIENCE of
    them in a row have come before: some task sets go through the same tasks without end."""
    had: set[str] = set()
    again = 0
    for task in tasks.train(derive("demonstrations", seed)):
        if task.id not in had:
            had.add(task.id)
            again = 0
            yield task
        elif (again := again + 1) == PATIENCE:
            return
