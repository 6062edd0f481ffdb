"""Environments written for TRL's `environment_factory` (docs/training/environments.md)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from retcon.config.section import NonNegative, StrList
from retcon.tasks.environments.methods import Factory, MethodEnvironment
from retcon.tasks.environments.tasks import EnvironmentSection
from retcon.tasks.environments.types import Environment, load_rows


class Trl(EnvironmentSection):
    """Section [task] of kind `trl`."""

    environment: str = Field("", description="import path of the class, or of a function that gives an instance")
    arguments: dict[str, Any] = Field({}, description="what that is called with")
    path: str = Field("", description="file whose rows `reset` is called with; column `prompt` is the prompt")
    seeds: NonNegative = Field(0, description="in place of a file: that many rows {seed = 0}, {seed = 1}, …")
    reward_functions: StrList = Field((), description="import paths of reward functions, beside `get_reward`")

    def adapter(self) -> Environment:
        factory = Factory(self.environment, self.arguments, self.reward_functions, self.faults)
        return MethodEnvironment(factory, load_rows(self.path, self.seeds))
