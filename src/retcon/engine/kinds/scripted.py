"""The scripted engine in a recipe: to try a task, a grader or a tool without a model."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from retcon.config.schema import EngineSection, Recipe
from retcon.core.errors import RecipeError
from retcon.engine.scripted import ScriptedEngine
from retcon.engine.types import EngineSetup


class ScriptedSection(EngineSection):
    """`kind = "scripted"`. See `ScriptedEngine`."""

    in_process: ClassVar[bool] = False

    replies: tuple[str, ...] = Field((), description="what every rollout is given, in order")

    def refuse_training(self, recipe: Recipe) -> None:
        raise RecipeError("engine.kind = 'scripted' cannot be trained with: its replies follow no weights")

    def build(self, setup: EngineSetup) -> ScriptedEngine:
        return ScriptedEngine(setup.tokenizer, self.replies)
