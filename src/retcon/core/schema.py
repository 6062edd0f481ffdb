"""What a tool declares of itself: its name, what it is for, and the JSON schema of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ANYTHING: Mapping[str, object] = {"type": "object"}
"""The schema that every object of arguments has."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is shown it. parameters: JSON schema of the object that its arguments are. recorded: how a
    transcript has the tool, which templates are given as it stands."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=lambda: ANYTHING, hash=False)
    recorded: Mapping[str, object] | None = field(default=None, hash=False)

    def as_function(self) -> dict[str, object]:
        """As chat templates and OpenAI's API are given it."""
        if self.recorded is not None:
            return dict(self.recorded)
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}
