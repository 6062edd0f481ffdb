"""The difficulty filter: tasks that are always or never solved teach nothing, and are left out beforehand.

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


def informative(group: Sequence[Trajectory]) -> bool:
    """Whether the rewards of the rollouts to train on differ: 0 < |{o_i right}| < G, equation 11, for two rewards.

    Where all are equal, and in a group of fewer than two, every advantage is zero. Rollouts without a reward count for
    nothing.
    """
    return len({t.reward for t in group if t.reward is not None}) > 1


@dataclass(frozen=True, slots=True)
class DynamicSampling:
    """How many informative groups a step is to have, and what it may cost.

    prompts: informative groups wanted. extra: groups at most beyond the step's own `prompts`. rounds: times at most
    that more prompts are drawn.

    The paper samples until the batch is full and knows no bound. verl's published recipe for it draws a whole
    generation batch each time, throws surplus groups away, and ends the run at its bound. Here each round draws what is
    missing, so that no informative group is ever thrown away, and at a bound the step goes on with what it has.
    """

    prompts: int
    extra: int
    rounds: int

    @classmethod
    def bounded(cls, prompts: int, max_extra: float, rounds: int) -> Self:
        """With `max_extra` groups more at most for each of the step's own, rounded down."""
        return cls(prompts, math.floor(round(max_extra * prompts, 6)), rounds)  # .29 × 100 is 28.999999999999996

    def to_draw(self, groups: Sequence[Sequence[Trajectory]], *, rounds: int) -> int:
        """How many fresh prompts to draw now.

        groups: what is there to train on of every group so far, the uninformative ones among them. rounds: how often
        more were drawn already.
        """
        if rounds >= self.rounds:
            return 0
        missing = self.prompts - sum(map(informative, groups))
        return max(0, min(missing, self.prompts + self.extra - len(groups)))
