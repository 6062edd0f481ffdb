"""ARPO (arXiv 2507.19849): some rollouts begin with the prompt, the others branch off where a tool's answer has made
the model unsure."""

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
