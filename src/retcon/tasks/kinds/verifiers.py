"""Environments of `verifiers` (docs/training/environments.md)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from retcon.tasks.environments.tasks import EnvironmentSection
from retcon.tasks.environments.types import Environment
from retcon.tasks.environments.verifiers import TasksetEnvironment, VerifiersEnvironment, has_classic_api


class Verifiers(EnvironmentSection):
    """Section [task] of kind `verifiers`."""

    environment: str = Field("", description="an installed environment's or taskset's id, or the import path of what "
                             "makes one")  # fmt: skip
    arguments: dict[str, Any] = Field({}, description="what it is loaded with: arguments, or keys of a taskset's "
                                      "configuration")  # fmt: skip

    def adapter(self) -> Environment:
        adapter = VerifiersEnvironment if has_classic_api() else TasksetEnvironment
        return adapter(self.environment, self.arguments, self.faults)
