"""Environments of `verifiers` (docs/training/environments.md)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from retcon.tasks.environments.section import EnvironmentSection
from retcon.tasks.environments.types import Environment
from retcon.tasks.environments.verifiers import VerifiersEnvironment


class Verifiers(EnvironmentSection):
    """`kind = "verifiers"`."""

    environment: str = Field("", description="an installed environment's id, or the import path of what makes one")
    arguments: dict[str, Any] = Field({}, description="what the environment is loaded with")

    def adapter(self) -> Environment:
        return VerifiersEnvironment(self.environment, self.arguments, self.faults)
