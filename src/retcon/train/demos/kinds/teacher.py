"""The scripted teacher of a task family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from retcon.config.schema import DemosSection
from retcon.config.section import Positive

if TYPE_CHECKING:
    from retcon.train.demos.types import DemoSetup, OpenSource


class FamilyTeacher(DemosSection):
    """Section `kind = "teacher"`: a task family with `lessons` (`Taught`), such as numbers."""

    keep: Literal["all", "right"] = Field(
        "all", description="all: wrong answers too | right: only what the grader accepts"
    )
    tries: Positive = Field(1, description="attempts at a problem, if only right ones are kept")

    def open(self, setup: DemoSetup) -> OpenSource:
        from retcon.train.demos.rolling import open_teacher

        return open_teacher(self, setup)
