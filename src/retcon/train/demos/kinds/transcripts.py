"""Transcripts in any format of `retcon purify`, in the learner's template."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from retcon.config.schema import DemosSection
from retcon.config.section import StrList

if TYPE_CHECKING:
    from retcon.train.demos.types import DemoSetup, OpenSource


class Transcripts(DemosSection):
    """Section `kind = "transcripts"`: files in the formats of `retcon purify`."""

    of_tasks: ClassVar[bool] = False
    path: StrList = Field((), description="files or folders of transcripts, one or several; or "
                           "data sets of the hub, ORG/NAME[@REVISION]")  # fmt: skip
    keep: Literal["all", "right"] = Field("all", description="all | right: those whose record says that they are")

    def open(self, setup: DemoSetup) -> OpenSource:
        from retcon.train.demos.transcripts import open_transcripts

        return open_transcripts(self, setup)
