"""Transcripts, in any format that `retcon purify` reads, through the template of the model that will learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from retcon.config.schema import DemosSection
from retcon.config.section import StrList

if TYPE_CHECKING:
    from retcon.train.demos.types import DemoSetup, OpenSource


class Transcripts(DemosSection):
    """`kind = "transcripts"`."""

    of_tasks: ClassVar[bool] = False
    path: StrList = Field((), description="files or folders of transcripts, one or several; or "
                           "data sets of the hub, ORG/NAME[@REVISION]")  # fmt: skip
    keep: Literal["all", "right"] = Field("all", description="all | right: those whose record says that they are")

    def open(self, setup: DemoSetup) -> OpenSource:
        from retcon.train.demos.transcripts import open_transcripts

        return open_transcripts(self, setup)
