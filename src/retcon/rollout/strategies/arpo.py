"""ARPO (arXiv 2507.19849): rollouts branch where a tool's answer raised the entropy."""

from __future__ import annotations

from pydantic import Field

from retcon.config.schema import Recipe
from retcon.config.section import Positive
from retcon.rollout.strategy import Measured, UncertainSection, check_initial


class Arpo(UncertainSection):
    """`kind = "arpo"`."""

    initial: Positive = Field(4, description="N: rollouts that begin with the prompt; what is left of the group "
                              "branches off, or begins there too in the end")  # fmt: skip

    def check(self, recipe: Recipe) -> None:
        check_initial(self.initial, recipe)

    def from_start(self, count: int, measured: Measured | None) -> int:
        return self.initial
