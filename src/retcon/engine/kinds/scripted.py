"""The scripted engine in a recipe: to try a task, a grader or a tool without a model."""

from __future__ import annotations

from pydantic import Field

from retcon.config.schema import EngineSection
from retcon.engine.scripted import ScriptedEngine
from retcon.engine.types import EngineSetup


class ScriptedSection(EngineSection):
    """`kind = "scripted"`. See `ScriptedEngine`."""

    replies: tuple[str, ...] = Field((), description="what every rollout is given, in order")

    def build(self, setup: EngineSetup) -> ScriptedEngine:
        return ScriptedEngine(setup.tokenizer, self.replies)
