"""Section of [repair] for SAAR."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from retcon.config.schema import RepairSection
from retcon.config.section import NonNegative, Positive, Probability
from retcon.purify.types import Repair

if TYPE_CHECKING:  # numpy and rapidfuzz, which no error of a recipe needs
    from retcon.purify.saar import Saar

FailureStatus = Literal["error", "timeout", "limit", "malformed"]


class SaarSection(RepairSection):
    """Section of `kind = "saar"`, for `Saar`."""

    attempts: NonNegative = Field(3, description="K: most lookahead attempts")
    gamma: Probability = Field(0.5, description="γ: similarity from which a repair is shallow")
    lookahead: Literal["all", "first", "latest"] = Field(
        "all", description="all | first | latest: which failed attempts at a turn the lookahead is shown"
    )
    failures: tuple[FailureStatus, ...] = ("error", "timeout", "limit", "malformed")
    agree: Positive = Field(1, description="ours: attempts that must work with the same output before the last of them "
                            "is the fix")  # fmt: skip

    @model_validator(mode="after")
    def _agreement_is_possible(self) -> SaarSection:
        if self.attempts and self.agree > self.attempts:
            raise ValueError(
                f"agree = {self.agree} is more than attempts = {self.attempts}: lower it, or raise attempts"
            )
        return self

    def build(self) -> Repair:
        return self.saar()

    def saar(self) -> Saar:
        from retcon.purify.saar import Saar

        return Saar(self.attempts, self.gamma, self.lookahead, frozenset(self.failures), self.agree)
