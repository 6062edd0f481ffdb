"""AEPO (arXiv 2510.14545): rollouts start or branch where entropy is higher.

The more often a path has branched in a row, the less likely it branches again. The paper measures entropies on a
rollout that it drops; here it is the group's first, without branches. Its scripts use a fixed number: `initial`.
"""

from __future__ import annotations

import math
from statistics import fmean

from pydantic import Field

from retcon.config.schema import Recipe
from retcon.config.section import NonNegative, Probability, Rate
from retcon.rollout.strategy import Measured, Point, UncertainSection, check_initial


class Aepo(UncertainSection):
    """`kind = "aepo"`."""

    initial: NonNegative = Field(0, description="m: rollouts that begin with the prompt; 0: by the entropies of the "
        "group's first rollout, ⌊G′ σ(balance (H_first - H_after_tools))⌋ + 1 of the G′ that are made")  # fmt: skip
    balance: Rate = Field(0.5, description="factor of the difference in that")
    penalty: Probability = Field(0.05, description="share of its probability that a branch loses for each point in a "
                                 "row at which its path has branched just before")  # fmt: skip

    @property
    def measures(self) -> bool:
        return not self.initial

    def check(self, recipe: Recipe) -> None:
        check_initial(self.initial, recipe)

    def from_start(self, count: int, measured: Measured | None) -> int:
        if self.initial:
            return self.initial
        gap = 0.0
        if measured is not None and measured.later:
            gap = self.summed(measured.first - fmean(measured.later), measured.vocabulary)
        share = (1 + math.tanh(self.balance * gap / 2)) / 2  # σ, without overflow
        return min(count, math.floor(count * share) + 1)

    def chance(self, point: Point) -> float:
        return super().chance(point) * max(0.0, 1 - self.penalty * point.in_a_row)
