"""Fission-GRPO (arXiv 2601.15625): groups of recoveries are sampled after failed calls."""

from __future__ import annotations

import random
from typing import ClassVar

from pydantic import Field

from retcon.config.schema import Recipe, StrategySection
from retcon.config.section import Positive
from retcon.rollout.strategy import Measured, Point, check_initial


class Fission(StrategySection):
    """`kind = "fission"`: with `rl.shared_advantage = "siblings"` each group of recoveries has advantages by itself.

    The paper keeps failed trajectories in a buffer for later steps, and a model writes the errors' diagnostics. Here
    recoveries are sampled in the same step, by the same weights, from the tool's own answer.
    """

    branching: ClassVar[bool] = True
    mechanisms: ClassVar = {"kind": ("no call failed where a tree had rollouts left for a recovery", "branches")}
    initial: Positive = Field(4, description="rollouts that begin with the prompt; what is left of the group is for "
                              "recoveries, or begins there too in the end")  # fmt: skip
    recoveries: Positive = Field(3, description="G': recoveries that are sampled after a failed call")

    def check(self, recipe: Recipe) -> None:
        check_initial(self.initial, recipe)
        made = recipe.select.made(recipe.rl.group)
        if (made - self.initial) // self.initial < self.recoveries:
            raise ValueError(
                f"strategy: of {made} rollouts of a prompt (rl.group, [select]) initial = {self.initial} leaves "
                f"{made - self.initial} for recoveries, fewer than recoveries = {self.recoveries} for each: lower one"
            )

    @property
    def entropy_tokens(self) -> int:
        return 20  # for the metrics alone

    def from_start(self, count: int, measured: Measured | None) -> int:
        return self.initial

    def branches(self, point: Point, draw: random.Random) -> int:
        return self.recoveries if point.failed and point.left >= self.recoveries else 0
