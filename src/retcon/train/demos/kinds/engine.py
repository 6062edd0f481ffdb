"""A model as teacher in this process: its rollouts that the grader accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from retcon.config.schema import DemosSection
from retcon.config.section import Positive

if TYPE_CHECKING:
    from retcon.train.demos.types import DemoSetup, OpenSource


class Engine(DemosSection):
    """Section `kind = "engine"`: generation by [engine], sampling by [rollout]."""

    model: str = Field("", description="the teacher: a folder, a name of `retcon model list`, or a hub id, which "
        "speaks its own style; empty: the model that will learn")  # fmt: skip
    style: str = Field("auto", description="of a teacher that is another model: as model.style")
    tries: Positive = Field(4, description="attempts at a problem, until one is right")

    def open(self, setup: DemoSetup) -> OpenSource:
        from retcon.train.demos.engine import open_engine

        return open_engine(self, setup)
