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
        """Equal for calls that say the same, whatever they are called and however their JSON is spaced. Arguments that
        are null may be left out, as OpenHands does."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return (self.name, self.arguments)
        if isinstance(value, dict):
            value = {name: said for name, said in value.items() if said is not None}
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
        """Equal for messages that say the same. Clients space anew what an assistant said, and keep what others did."""
        text = _bare(self.text) if self.role == "assistant" else self.text
        return (self.role, text, *(part for call in self.calls for part in call.key))


def keys_of(messages: Sequence[Said]) -> tuple[Key, ...]:
    return tuple(message.key for message in messages)


def after(count: int, text: str) -> str:
    """What a text says after its first `count` characters that are no white space."""
    spots = [n for n, char in enumerate(text) if not char.isspace()]
    return text[spots[count - 1] + 1 :] if count else text


def _bare(text: str) -> str:
    """Without white space."""
    return "".join(text.split())
