"""Branch and repair in a recipe."""

from __future__ import annotations

from pydantic import Field

from retcon.config.section import NonNegative, Positive
from retcon.purify.branch import Branch
from retcon.purify.kinds.saar import SaarSection
from retcon.purify.types import Repair


class BranchSection(SaarSection):
    """`kind = "branch"`. See `Branch`; the keys of SAAR are those of what follows the fresh tries."""

    fresh: Positive = Field(2, description="fresh tries at a failed turn, before SAAR's attempts")
    attempts: NonNegative = Field(1, description="K: most lookahead attempts, after the fresh tries")

    def build(self) -> Repair:
        return Branch(self.fresh, self.saar())
