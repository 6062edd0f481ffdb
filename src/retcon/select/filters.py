"""Difficulty filter, and dynamic sampling of informative groups.

rStar2-Agent (arXiv 2508.20722) does so once, before its last stage: with 8 rollouts of the newest policy on each of
its problems, it drops those that all of them solve. That drops the trivial; here both bounds are the caller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from retcon.core.errors import RecipeError
from retcon.core.types import Trajectory


class HasId(Protocol):
    """A task, or any object with the id of a pass rate."""

    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=HasId)


def filter_by_pass_rate(tasks: Iterable[T], rates: Mapping[str, float], *, low: float, high: float) -> Iterator[T]:
    """Yield the tasks whose pass rate lies in [low, high], in order.

    tasks may be endless. Raises RecipeError at a task without a rate, and once so many in a row were left out that none
    can be kept: twice as many as there are rates, since each pass over a set may have another order.
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


def is_informative(group: Sequence[Trajectory]) -> bool:
    """Whether a group's rewards differ (DAPO, equation 11: 0 < |{o_i right}| < G).

    If all are equal, or there are fewer than two, every advantage is zero. Rollouts without a reward do not count.
    """
    return len({t.reward for t in group if t.reward is not None}) > 1


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """Dynamic sampling (DAPO): draws prompts until a step has enough informative groups.

    prompts: informative groups wanted. extra: most groups beyond `prompts`. rounds: most times that more are drawn.

    The paper samples without a bound until the batch is full. verl's published recipe draws a whole generation batch
    each time, drops surplus groups, and ends the run at its bound. Here each round draws as many as are missing, so
    that no informative group is dropped, and at a bound the step continues with what it has.
    """

    prompts: int
    extra: int
    rounds: int

    @classmethod
    def bounded(cls, prompts: int, max_extra: float, rounds: int) -> Self:
        """Return bounds with `max_extra` extra groups per prompt, rounded down."""
        return cls(prompts, math.floor(round(max_extra * prompts, 6)), rounds)  # .29 × 100 is 28.999999999999996

    def to_draw(self, groups: Sequence[Sequence[Trajectory]], *, rounds: int) -> int:
        """Return how many fresh prompts to draw now.

        groups: rollouts to train on of every group so far, uninformative ones included. rounds: drawn already.
        """
        if rounds >= self.rounds:
            return 0
        missing = self.prompts - sum(map(is_informative, groups))
        return max(0, min(missing, self.prompts + self.extra - len(groups)))
