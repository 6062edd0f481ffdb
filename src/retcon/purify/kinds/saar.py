"""SAAR in a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from retcon.config.schema import RepairSection
from retcon.config.section import NonNegative, Probability
from retcon.purify.types import Repair

if TYPE_CHECKING:  # numpy and rapidfuzz, which no error of a recipe needs
    from retcon.purify.saar import Saar

FailureStatus = Literal["error", "timeout", "limit", "malformed"]


class SaarSection(RepairSection):
    """`kind = "saar"`. See `Saar`."""

    attempts: NonNegative = Field(3, description="K: most lookahead attempts")
    gamma: Probability = Field(0.5, description="γ: similarity from which a repair is shallow")
    lookahead: Literal["all", "first", "latest"] = Field(
        "all", description="all | first | latest: which failed attempts at a turn the lookahead is shown"
    )
    failures: tuple[FailureStatus, ...] = ("error", "timeout", "limit", "malformed")

    def build(self) -> Repair:
        return self.saar()

    def saar(self) -> Saar:
        from retcon.purify.saar import Saar

        return Saar(self.attempts, self.gamma, self.lookahead, frozenset(self.failures))
