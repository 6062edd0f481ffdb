"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): fresh prompts for groups that teach nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from retcon.core.types import Trajectory


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
