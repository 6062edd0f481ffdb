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

    chars: Positive = Field(80, description="most characters of the line that replaces a failed call")
    failures: tuple[FailureStatus, ...] = ("error", "timeout", "limit", "malformed")

    def build(self) -> Repair:
        return Describe(self.chars, frozenset(self.failures))
