"""GRPO-RoC in a recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from retcon.config.schema import Recipe, SelectSection
from retcon.config.section import NonNegative, Rate
from retcon.core.types import Trajectory
from retcon.select.roc import Failures, penalty, roc


class RocSection(SelectSection):
    """`kind = "roc"`. See `roc`."""

    mechanisms: ClassVar = {
        **SelectSection.mechanisms,
        "kind": ("no right rollout was dropped for a penalty above those of the right ones kept", "dropped_penalty"),
    }
    reasons: ClassVar = ("penalty", "drawn", "wrong")
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

    def why(self, dropped: Sequence[Trajectory], kept: Sequence[Trajectory]) -> list[str]:
        """`penalty`: right, and above the penalties of all right ones kept; `drawn`: right, and not; `wrong`."""
        found = [penalty(t, failures=self.failures) if (t.reward or 0) > 0 else None for t in (*kept, *dropped)]
        most = max((p for p in found[: len(kept)] if p is not None), default=math.inf)
        return ["wrong" if p is None else "penalty" if p > most else "drawn" for p in found[len(kept) :]]
