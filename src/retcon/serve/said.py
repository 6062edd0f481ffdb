"""Messages, as a session compares them: what a harness sends back is what was said if it says the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Called:
    """A call in a message: arguments are text, JSON or not."""

    id: str
    name: str
    arguments: str

    @property
    def key(self) -> Key:
        """Equal for calls that say the same, whatever they are called and however their JSON is spaced."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return (self.name, self.arguments)
        return (self.name, json.dumps(value, sort_keys=True))


@dataclass(frozen=True, slots=True)
class Said:
    """A message. call_id: of a tool's, which call it answers. failed: whether its sender says that the call failed,
    None where it does not say. at: its place in the request."""

    role: Role
    text: str
    calls: tuple[Called, ...] = ()
    call_id: str = ""
    failed: bool | None = None
    at: int = field(default=0, compare=False)

    @property
    def key(self) -> Key:
        """Equal for messages that say the same. Clients trim what an assistant said, and keep what others did."""
        text = self.text.strip() if self.role == "assistant" else self.text
        return (self.role, text, *(part for call in self.calls for part in call.key))


def keys_of(messages: Sequence[Said]) -> tuple[Key, ...]:
    return tuple(message.key for message in messages)
