"""The difficulty filter: tasks that are always or never solved teach nothing, and are left out beforehand.

rStar2-Agent (arXiv 2508.20722) does so once, before its last stage: with 8 rollouts of the newest policy on each of
its problems, it drops those that all of them solve. That drops the trivial; here both bounds are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from retcon.core.errors import RecipeError


class Identified(Protocol):
    """What has the id that a rate was measured under: a task."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=Identified)


def within(tasks: Iterable[T], rates: Mapping[str, float], *, low: float, high: float) -> Iterator[T]:
    """The tasks whose pass rate lies in [low, high], in their order.

    tasks may be endless. Raises RecipeError at a task that has no rate, for whether it would be kept is not known, and
    once so many in a row were left out that none can be kept: twice as many as there are rates, since a set may be gone
    through in ever new orders.
    """
    left_out = 0
    for task in tasks:
        if task.id not in rates:
            raise RecipeError(f"task {task.id} has no pass rate")
        if low <= rates[task.id] <= high:
            left_out = 0
            yield task
        else:
            left_out += 1
            if left_out >= 2 * len(rates):
                raise RecipeError(f"no task has a pass rate within [{low:g}, {high:g}]")
