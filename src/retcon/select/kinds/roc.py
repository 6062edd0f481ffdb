"""GRPO-RoC in a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from retcon.config.schema import Recipe, SelectSection
from retcon.config.section import NonNegative, Rate
from retcon.core.types import Trajectory
from retcon.select.roc import Failures, roc


class RocSection(SelectSection):
    """`kind = "roc"`. See `roc`."""

    oversample: Rate = Field(2.0, ge=1, description="G' / G: rollouts made for each one kept")
    draw: Literal["rank", "weighted"] = "rank"
    failures: Failures = Field("purified", description="which failed calls the penalty counts: those of the purified "
                               "history, or raw: all that happened")  # fmt: skip
    min_positive: NonNegative = 0
    min_negative: NonNegative = 0

    def check(self, recipe: Recipe) -> None:
        if self.min_positive + self.min_negative > recipe.rl.group:
            raise ValueError(
                f"select: min_positive {self.min_positive} + min_negative {self.min_negative} exceed "
                f"rl.group = {recipe.rl.group}, the rollouts that are kept"
            )

    def made(self, keep: int) -> int:
        return math.ceil(round(keep * self.oversample, 6))  # 50 × 1.1 is 55.00000000000001

    def select(self, group: Sequence[Trajectory], keep: int, *, seed: int) -> list[Trajectory]:
        return roc(
            group,
            keep,
            seed=seed,
            draw=self.draw,
            min_positive=self.min_positive,
            min_negative=self.min_negative,
            failures=self.failures,
        )
