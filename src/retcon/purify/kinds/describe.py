"""Describe in a recipe."""

from __future__ import annotations

from pydantic import Field

from retcon.config.schema import RepairSection
from retcon.config.section import Positive
from retcon.purify.describe import Describe
from retcon.purify.kinds.saar import FailureStatus
from retcon.purify.types import Repair


class DescribeSection(RepairSection):
    """`kind = "describe"`. See `Describe`."""

    chars: Positive = Field(80, description="characters of the line that takes the place of a failed call, at most")
    failures: tuple[FailureStatus, ...] = ("error", "timeout", "limit", "malformed")

    def build(self) -> Repair:
        return Describe(self.chars, frozenset(self.failures))
